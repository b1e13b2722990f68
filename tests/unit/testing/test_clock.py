"""The fake clock: order, exactness, and automatic jumps."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ccm.testing.clock import START, FakeClock, settle


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = FakeClock()
    await settle()
    assert clock.now() == START
    await clock.advance(1.5)
    assert clock.now() == START + timedelta(seconds=1.5)
    assert clock.monotonic() - FakeClock().monotonic() == 1.5


async def test_sleepers_wake_in_order_at_their_own_moment() -> None:
    clock = FakeClock()
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            seen.append((name, clock.elapsed_s))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 3.0))
        group.create_task(sleeper("b", 1.0, 1.0))
        group.create_task(sleeper("c", 1.0))
        await clock.advance(2.5)
        assert seen == [("b", 1.0), ("c", 1.0), ("b", 2.0)]
        assert clock.sleepers == 1
        await clock.advance(0.5)
    assert seen[-1] == ("a", 3.0)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5))
    await settle()
    task.cancel()
    await settle()
    assert clock.sleepers == 0
    await clock.advance(10)
    assert task.cancelled()


async def test_automatic_time_runs_a_program_to_its_end() -> None:
    clock = FakeClock(auto=True)
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def producer() -> None:
        for number in range(3):
            await clock.sleep(3600)
            queue.put_nowait(number)

    task = asyncio.create_task(producer())
    got = [await queue.get() for _ in range(3)]
    await task
    assert got == [0, 1, 2]
    assert clock.elapsed_s == 3 * 3600


async def test_automatic_time_waits_for_ready_work_first() -> None:
    clock = FakeClock(auto=True)
    done_at: list[float] = []

    async def busy() -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        done_at.append(clock.elapsed_s)

    task = asyncio.create_task(busy())
    await clock.sleep(1)
    await task
    assert done_at == [0.0]


async def test_a_nap_of_zero_only_yields() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.elapsed_s == 0


async def test_a_jump_wakes_nobody_until_time_moves_again() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5))
    await settle()
    clock.jump(60)
    await settle()
    assert not task.done()
    await clock.advance(0)
    assert task.done()
    assert clock.elapsed_s == 60
