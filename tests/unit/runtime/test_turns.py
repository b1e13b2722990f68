"""Few turns do for many, while those wait for something slow."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.runtime.turns import Turn
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


async def test_waiting_takes_no_turn() -> None:
    free, at_once, most = asyncio.Semaphore(2), 0, 0

    async def work() -> None:
        nonlocal at_once, most
        async with Turn(free) as turn:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1
            async with turn.put_down():
                await asyncio.sleep(100)
            at_once += 1
            most = max(most, at_once)
            at_once -= 1

    began = asyncio.get_running_loop().time()
    async with Group() as group:
        for number in range(10):
            group.start(work(), name=str(number))

    assert most == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(105)


async def test_an_error_goes_on_with_the_turn() -> None:
    free = asyncio.Semaphore(1)
    async with Turn(free) as turn:
        with pytest.raises(ValueError, match="x"):
            async with turn.put_down():
                raise ValueError("x")
        assert free.locked()

    assert not free.locked()


async def test_a_cancellation_waits_for_nobody() -> None:
    free = asyncio.Semaphore(1)

    async def work() -> None:
        async with Turn(free) as turn, turn.put_down():
            await asyncio.sleep(1000)

    task = spawn(work(), name="work")
    await settle()
    async with Turn(free):
        await cancel_and_join(task)
        assert free.locked()

    assert not free.locked()
