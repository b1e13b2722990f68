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


class Stage:
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


async def looks_only(stage: Stage) -> None:
    async with drain.unit():
        await asyncio.Event().wait()


def changes(*what: str, in_unit: bool = True) -> Callable[[Stage], Coroutine[Any, Any, None]]:
    async def work(stage: Stage) -> None:
        async with drain.unit() if in_unit else contextlib.nullcontext():
            for each in what:
                await stage.change(each, long=each == "long")
            stage.said.append("done")

    return work


ONE, LONE = changes("first"), changes("lone", in_unit=False)


async def leaves_a_task_behind(stage: Stage) -> None:
    async with drain.unit():
        stage.tasks.append(tasks.spawn(stage.change("left behind"), name="left-behind"))


async def changes_twice_at_once(stage: Stage) -> None:
    async with drain.unit():
        stage.tasks.append(tasks.spawn(stage.change("first", long=True), name="beside"))
        await stage.door_of_second.wait()
        await stage.change("second", long=True)


async def ends_before_its_change(stage: Stage) -> None:
    async with drain.unit():
        stage.tasks.append(tasks.spawn(stage.change("beside"), name="beside"))
        await asyncio.sleep(0)


async def run(work: Callable[[Stage], Coroutine[Any, Any, None]]) -> Stage:
    stage = Stage()
    await stage.start(lambda: work(stage))
    return stage


async def ended(stage: Stage) -> None:
    await tasks.cancel_and_join(*stage.tasks)


async def test_what_only_looks_is_not_waited_for() -> None:
    stage = await run(looks_only)

    stopped = await stage.stop()

    assert stopped.result() is True
    await ended(stage)


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
    work: Callable[[Stage], Coroutine[Any, Any, None]], said: list[str]
) -> None:
    stage = await run(work)
    stopped = await stage.stop()
    assert not stopped.done()

    stage.door.set()
    await settle()

    assert stopped.result() is True
    assert stage.said == said
    assert stage.drain.under_way == 0
    await ended(stage)


@pytest.mark.parametrize("work", [changes_twice_at_once, ends_before_its_change])
async def test_a_change_beside_another_comes_to_its_end_too(
    work: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    stage = await run(work)
    stopped = await stage.stop()
    stage.door_of_second.set()
    await settle()
    assert not stopped.done()

    stage.door.set()
    await settle()

    assert stopped.result() is True
    assert len(stage.said) == 1
    await ended(stage)
    assert stage.drain.under_way == 0


async def test_what_takes_too_long_is_reported() -> None:
    stage = await run(ONE)
    stopped = await stage.stop()

    await advance(GRACE_S - 0.1)
    assert not stopped.done()
    await advance(0.2)

    assert stopped.result() is False
    assert stage.drain.under_way == 1
    await ended(stage)
    assert stage.drain.under_way == 0


@pytest.mark.parametrize("work", [ONE, LONE, leaves_a_task_behind])
async def test_nothing_new_is_begun(work: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    stage = Stage()
    stage.door.set()
    assert await stage.drain.drained(GRACE_S)

    await stage.start(lambda: work(stage))
    await settle()

    assert stage.drain.begun
    assert stage.said == []
    await ended(stage)


async def test_without_a_drain_everything_is_allowed() -> None:
    stage = Stage()
    stage.door.set()

    await changes("first", "long")(stage)

    assert stage.said == ["first", "long", "done"]
