"""Deadlines in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base import waiting
from ccm.testing.clock import FakeClock, settle


async def answer_after(clock: FakeClock, seconds: float) -> str:
    await clock.sleep(seconds)
    return "done"


async def test_a_result_in_time_is_returned_at_once() -> None:
    clock = FakeClock(auto=True)
    assert await waiting.within(5, answer_after(clock, 2), clock=clock, name="t") == "done"
    assert clock.elapsed_s == 2


async def test_too_late_raises_after_the_work_has_ended() -> None:
    clock = FakeClock(auto=True)
    ended = []

    async def work() -> None:
        try:
            await clock.sleep(60)
        finally:
            ended.append(clock.elapsed_s)

    with pytest.raises(TimeoutError, match="t took longer than 5 s"):
        await waiting.within(5, work(), clock=clock, name="t")
    assert ended == [5]


async def test_an_error_of_the_work_comes_out() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await waiting.within(5, work(), clock=FakeClock(), name="t")


async def test_cancellation_reaches_the_work() -> None:
    clock = FakeClock()
    ended = []

    async def work() -> None:
        try:
            await clock.sleep(60)
        finally:
            ended.append(True)

    task = asyncio.create_task(waiting.within(90, work(), clock=clock, name="t"))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert clock.sleepers == 0


async def test_an_event_is_awaited_no_longer_than_allowed() -> None:
    clock = FakeClock(auto=True)
    event = asyncio.Event()
    assert not await waiting.wait_for(event, 3, clock=clock, name="t")
    assert clock.elapsed_s == 3
    event.set()
    assert await waiting.wait_for(event, 0, clock=clock, name="t")
    assert clock.elapsed_s == 3
