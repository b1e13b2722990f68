"""What a provider leaves behind: tasks that it started, sessions and connections that it opened.

A fake cloud may run in the same event loop. Its tasks are told apart by who started them: only
what begins in a call to the provider, or in what such a call began, counts.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from ccm.testing.harness import Harness

T = TypeVar("T")

GRACE_S = 1.0
"""How long tasks may take to end."""

_BY_PROVIDER: ContextVar[bool] = ContextVar("by_provider", default=False)


async def by_provider(ask: Callable[[], Awaitable[T]]) -> T:
    """Call the provider; tasks that begin meanwhile, and all that they begin, count as its own."""
    token = _BY_PROVIDER.set(True)
    try:
        return await ask()
    finally:
        _BY_PROVIDER.reset(token)


class Started:
    """The tasks that a provider started since; use `watched`."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._tasks: set[asyncio.Task[Any]] = set()

    def note(self, task: asyncio.Task[Any]) -> None:
        """One more."""
        self._tasks.add(task)

    async def have_ended(self, when: str) -> None:
        """Fail if some still run after a moment."""
        until = asyncio.get_running_loop().time() + GRACE_S
        while left := [task for task in self._tasks if self._counts(task)]:
            names = sorted(str(task.get_coro()) for task in left)
            assert asyncio.get_running_loop().time() < until, f"tasks left {when}: {names}"
            await asyncio.sleep(0.01)

    def _counts(self, task: asyncio.Task[Any]) -> bool:
        return not (task.done() or self._harness.is_task_of_fake(task))


@contextmanager
def watched(harness: Harness) -> Iterator[Started]:
    """Watch which tasks the provider starts."""
    loop, started = asyncio.get_running_loop(), Started(harness)
    former = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **how: Any) -> Any:
        task = former(loop, coro, **how) if former else asyncio.Task(coro, loop=loop, **how)
        context = how.get("context")
        if _BY_PROVIDER.get() if context is None else context.get(_BY_PROVIDER, False):
            started.note(task)  # type: ignore[arg-type]
        return task

    loop.set_task_factory(make)
    try:
        yield started
    finally:
        loop.set_task_factory(former)


async def left_open(work: Callable[[], Awaitable[object]]) -> list[str]:
    """What some work opened and never closed, as Python and libraries tell when they find it."""
    gc.collect()  # what others left is none of it
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        await work()
        await asyncio.sleep(0.01)  # what is being closed ends in the next rounds of the loop
        gc.collect()
    return sorted({str(one.message) for one in told if issubclass(one.category, ResourceWarning)})
