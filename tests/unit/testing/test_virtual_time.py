"""The virtual-time loop: order, exactness, and jumps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from ccm.base import clock
from ccm.cloud.blocking import blocking
from ccm.testing.clock import START, START_S, VirtualTimeLoop, advance, elapsed_s, jump, settle

pytestmark = pytest.mark.virtual_time


def test_endless_wait_beside_a_ticking_task_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccm.testing.clock._JUMP_LIMIT", 1000)

    async def ticker() -> None:
        while True:
            await asyncio.sleep(1)

    async def stuck() -> None:
        task = asyncio.create_task(ticker())
        await asyncio.Event().wait()
        await task

    with (
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
        pytest.raises(RuntimeError, match="wait for an event that never comes"),
    ):
        runner.run(stuck())


def test_advance_refuses_a_loop_in_real_time() -> None:
    with pytest.raises(RuntimeError, match="runs in real time"):
        asyncio.run(advance(1))


async def test_wall_and_monotonic_clocks_show_the_time_of_the_loop() -> None:
    before = clock.now(), clock.monotonic(), elapsed_s()

    await asyncio.sleep(1.5)

    assert before == (START, START_S, 0.0)
    moved = timedelta(seconds=1.5)
    assert (clock.now() - START, clock.monotonic(), elapsed_s()) == (moved, START_S + 1.5, 1.5)


async def test_sleeping_tasks_wake_in_order_at_their_times() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            seen.append((name, elapsed_s()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 3.0))
        group.create_task(sleeper("b", 1.0, 1.0))
        group.create_task(sleeper("c", 1.0))
        await advance(2.5)
        assert seen == [("b", 1.0), ("c", 1.0), ("b", 2.0)]
    assert seen[-1] == ("a", 3.0)


@pytest.mark.parametrize("run", [asyncio.to_thread, blocking])
async def test_virtual_time_stands_still_during_work_in_a_thread(
    run: Callable[..., Awaitable[None]],
) -> None:
    async with asyncio.timeout(0.001):
        await run(time.sleep, 0.02)

    assert elapsed_s() == 0.0


async def test_jump_wakes_no_task_until_time_advances() -> None:
    task = asyncio.create_task(asyncio.sleep(5, result=None))
    await settle()

    jump(60)

    assert not task.done()
    await advance(0)
    assert task.done()
    assert elapsed_s() == 60


async def test_advance_waits_until_all_woken_tasks_settled() -> None:
    seen: list[float] = []

    async def sleeper() -> None:
        await asyncio.sleep(2)
        for _ in range(10):
            await asyncio.sleep(0)
        seen.append(elapsed_s())

    task = asyncio.create_task(sleeper())
    await advance(2)

    assert seen == [2.0]
    await task


async def test_settle_reports_a_spinning_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccm.testing.clock._SETTLE_LIMIT", 100)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    with pytest.raises(RuntimeError, match="find the task that spins"):
        await settle()
    task.cancel()
