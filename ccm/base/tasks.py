"""The only place where asyncio tasks are started: named, supervised and joined.

A `Group` owns its tasks: the first one that fails cancels the others, and leaving
the group waits for all of them. `bounded` runs many small jobs with a limit.
`cancel_and_join` ends a task and waits until it really ended. `within` and `wait_for` wait with a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a named task whose owner promises to join it (see `cancel_and_join`)."""
    return asyncio.get_running_loop().create_task(coroutine, name=name)


class Group(asyncio.TaskGroup):
    """A task group whose tasks must have a name.

    Leaving it waits for every task. The first exception of a task cancels the rest
    and is raised from the group as part of an `ExceptionGroup`.
    """

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this group."""
        return self.create_task(coroutine, name=name)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What really happened behind an exception of groups in groups, in its order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


async def cancel_and_join(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until each has ended; their outcome is dropped.

    Safe to call with finished tasks, with None, and twice. If the caller itself is
    cancelled meanwhile, the tasks stay cancelled and the cancellation is passed on.
    """
    living = [task for task in tasks if task is not None]
    for task in living:
        task.cancel()
    if not living:
        return
    done, _ = await asyncio.wait(living)
    for task in done:
        if not task.cancelled():
            task.exception()  # mark as retrieved: the owner chose to drop it


async def bounded(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, limit: int, name: str
) -> None:
    """Run `work` for every item, at most `limit` at once, and wait for all.

    `work` must handle its own errors: the first exception cancels the other jobs.
    A limit below one runs nothing.

    Raises:
        ExceptionGroup: a job failed.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    async with Group() as group:
        for number in range(limit):
            group.start(worker(), name=f"{name}-{number}")


async def first_of(*waits: Coroutine[Any, Any, Any], name: str) -> None:
    """Wait until one of several coroutines ends, cancel and join the others.

    Raises:
        Exception: whatever the first finished coroutine raised.
    """
    tasks = [spawn(wait, name=f"{name}-{number}") for number, wait in enumerate(waits)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_join(*tasks)


async def within(seconds: float, work: Coroutine[Any, Any, T], *, name: str) -> T:
    """Run a coroutine for at most that long and return its result.

    When time is up the coroutine is cancelled and has ended before this returns.

    Raises:
        TimeoutError: time was up.
        Exception: whatever the coroutine raised.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"{name} took longer than {seconds:g} s") from None
        raise


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, at most that long; say whether it is set."""
    if event.is_set() or seconds <= 0:
        await asyncio.sleep(0)
    else:
        with suppress(TimeoutError):
            # Not asyncio's wait_for: before Python 3.12 a cancellation that comes together with
            # the event gets lost in it, and what was to stop goes on for ever.
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()
