"""Tasks are named, joined, and never outlive their owner."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base import tasks

pytestmark = pytest.mark.virtual_time


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_groups_in_groups_are_taken_apart_in_their_order() -> None:
    first, second, third = ValueError("a"), KeyError("b"), OSError("c")
    error = ExceptionGroup("outer", [ExceptionGroup("inner", [first, second]), third])

    assert list(tasks.leaves(error)) == [first, second, third]
    assert list(tasks.leaves(third)) == [third]


async def test_a_spawned_task_has_its_name() -> None:
    task = tasks.spawn(for_ever(), name="waits")

    assert task.get_name() == "waits"
    await tasks.cancel_and_join(task)
    assert task.cancelled()


async def test_joining_takes_finished_tasks_nothing_and_a_second_time() -> None:
    failed = tasks.spawn(fails(), name="fails")
    await asyncio.wait([failed])
    waits = tasks.spawn(for_ever(), name="waits")

    await tasks.cancel_and_join(failed, None, waits)
    await tasks.cancel_and_join(failed, None, waits)
    await tasks.cancel_and_join()

    assert waits.cancelled()


async def tidies(tidied: asyncio.Event) -> None:
    try:
        await for_ever()
    finally:
        await asyncio.sleep(0.01)
        tidied.set()


async def fails() -> None:
    raise ValueError("broken")


async def test_joining_waits_until_a_task_has_tidied_up() -> None:
    tidied = asyncio.Event()
    task = tasks.spawn(tidies(tidied), name="tidies")
    await asyncio.sleep(0)

    await tasks.cancel_and_join(task)

    assert tidied.is_set()


async def test_a_joiner_that_is_cancelled_passes_it_on() -> None:
    task = tasks.spawn(tidies(asyncio.Event()), name="stubborn")
    await asyncio.sleep(0)
    joiner = tasks.spawn(tasks.cancel_and_join(task), name="joiner")
    await asyncio.sleep(0)

    joiner.cancel()
    await asyncio.wait([joiner, task])

    assert joiner.cancelled()
    assert task.cancelled()


async def test_bounded_runs_everything_with_at_most_the_limit_at_once() -> None:
    running, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await tasks.bounded(iter(range(20)), work, limit=3, name="job")

    assert sorted(done) == list(range(20))
    assert most == 3


async def test_bounded_stops_at_the_first_failure() -> None:
    done = []

    async def work(item: int) -> None:
        if item == 2:
            raise ValueError(item)
        await asyncio.sleep(0)
        done.append(item)

    with pytest.raises(ExceptionGroup):
        await tasks.bounded(range(1000), work, limit=2, name="job")

    assert len(done) < 5


async def test_bounded_with_no_workers_runs_nothing() -> None:
    async def work(item: int) -> None:
        raise AssertionError(item)

    await tasks.bounded([1, 2], work, limit=0, name="job")


async def test_the_first_to_end_cancels_the_others() -> None:
    tidied = asyncio.Event()

    await tasks.first_of(tidies(tidied), asyncio.sleep(0.001), name="race")

    assert tidied.is_set()


async def test_the_first_to_fail_is_raised() -> None:
    with pytest.raises(ValueError, match="broken"):
        await tasks.first_of(for_ever(), fails(), name="race")
