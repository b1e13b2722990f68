"""Deadlines in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base import waiting
from ccm.testing.clock import elapsed_s, settle

pytestmark = pytest.mark.virtual_time


async def answer_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_a_result_in_time_is_returned_at_once() -> None:
    assert await waiting.within(5, answer_after(2), name="t") == "done"
    assert elapsed_s() == 2


async def test_too_late_raises_after_the_work_has_ended() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(elapsed_s())

    with pytest.raises(TimeoutError, match="t took longer than 5 s"):
        await waiting.within(5, work(), name="t")
    assert ended == [5]

    cancelled = asyncio.create_task(waiting.within(90, work(), name="t"))
    await settle()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert ended == [5, 5]


async def test_an_error_of_the_work_comes_out() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await waiting.within(5, work(), name="t")


async def test_an_event_is_awaited_no_longer_than_allowed() -> None:
    event = asyncio.Event()
    assert not await waiting.wait_for(event, 3)
    assert elapsed_s() == 3
    event.set()
    assert await waiting.wait_for(event, 0)
    assert elapsed_s() == 3


async def test_a_cancellation_is_heard_together_with_the_event() -> None:
    event = asyncio.Event()
    waits = asyncio.create_task(waiting.wait_for(event, 3))
    await settle()

    event.set()
    waits.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waits
