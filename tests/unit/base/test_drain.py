"""Stopping in good order: what may begin, what may end, what is cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ccm.base import drain, tasks
from ccm.base.drain import Drain
from ccm.testing.clock import advance, settle

pytestmark = pytest.mark.virtual_time

GRACE_S = 20.0

Work = Callable[[], Coroutine[Any, Any, None]]


class Environment:
    """A drain, tasks that it governs, and a door that holds changes up."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.door = asyncio.Event()
        self.door_of_second = asyncio.Event()
        self.said: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self, work: Work) -> asyncio.Task[None]:
        async def governed() -> None:
            self.drain.govern()
            await work()

        task = tasks.spawn(governed(), name="work")
        self.tasks.append(task)
        await settle()
        return task

    async def stop(self) -> asyncio.Task[bool]:
        task = tasks.spawn(self.drain.drained(GRACE_S), name="stop")
        self.tasks.append(task)
        await settle()
        return task

    async def change(self, what: str, *, long: bool = False) -> None:
        async with drain.change(long=long):
            self.said.append(what)
            await self.door.wait()


async def looks_only(env: Environment) -> None:
    async with drain.unit():
        await asyncio.Event().wait()


def changes(*what: str, in_unit: bool = True) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def work(env: Environment) -> None:
        async with drain.unit() if in_unit else contextlib.nullcontext():
            for each in what:
                await env.change(each, long=each == "long")
            env.said.append("done")

    return work


ONE, LONE = changes("first"), changes("lone", in_unit=False)


async def leaves_a_task_behind(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("left behind"), name="left-behind"))


async def changes_twice_at_once(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("first", long=True), name="beside"))
        await env.door_of_second.wait()
        await env.change("second", long=True)


async def ends_before_its_change(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("beside"), name="beside"))
        await asyncio.sleep(0)


async def run(work: Callable[[Environment], Coroutine[Any, Any, None]]) -> Environment:
    env = Environment()
    await env.start(lambda: work(env))
    return env


async def ended(env: Environment) -> None:
    await tasks.cancel_and_join(*env.tasks)


async def test_what_only_looks_is_not_waited_for() -> None:
    env = await run(looks_only)

    stopped = await env.stop()

    assert stopped.result() is True
    await ended(env)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        pytest.param(ONE, ["first", "done"], id="a-unit-comes-to-its-end"),
        pytest.param(
            changes("first", "second"), ["first", "second", "done"], id="its-next-change-is-made"
        ),
        pytest.param(changes("first", "long"), ["first"], id="but-none-that-takes-long"),
        pytest.param(LONE, ["lone", "done"], id="a-change-without-a-unit"),
        pytest.param(leaves_a_task_behind, ["left behind"], id="a-task-that-outlives-its-unit"),
    ],
)
async def test_a_change_under_way_comes_to_its_end(
    work: Callable[[Environment], Coroutine[Any, Any, None]], said: list[str]
) -> None:
    env = await run(work)
    stopped = await env.stop()
    assert not stopped.done()

    env.door.set()
    await settle()

    assert stopped.result() is True
    assert env.said == said
    assert env.drain.under_way == 0
    await ended(env)


@pytest.mark.parametrize("work", [changes_twice_at_once, ends_before_its_change])
async def test_a_change_beside_another_comes_to_its_end_too(
    work: Callable[[Environment], Coroutine[Any, Any, None]],
) -> None:
    env = await run(work)
    stopped = await env.stop()
    env.door_of_second.set()
    await settle()
    assert not stopped.done()

    env.door.set()
    await settle()

    assert stopped.result() is True
    assert len(env.said) == 1
    await ended(env)
    assert env.drain.under_way == 0


async def test_what_takes_too_long_is_reported() -> None:
    env = await run(ONE)
    stopped = await env.stop()

    await advance(GRACE_S - 0.1)
    assert not stopped.done()
    await advance(0.2)

    assert stopped.result() is False
    assert env.drain.under_way == 1
    await ended(env)
    assert env.drain.under_way == 0


@pytest.mark.parametrize("work", [ONE, LONE, leaves_a_task_behind])
async def test_nothing_new_is_begun(
    work: Callable[[Environment], Coroutine[Any, Any, None]],
) -> None:
    env = Environment()
    env.door.set()
    assert await env.drain.drained(GRACE_S)

    await env.start(lambda: work(env))
    await settle()

    assert env.drain.begun
    assert env.said == []
    await ended(env)


async def test_without_a_drain_everything_is_allowed() -> None:
    env = Environment()
    env.door.set()

    await changes("first", "long")(env)

    assert env.said == ["first", "long", "done"]
