"""The only module that starts asyncio tasks: named, supervised and joined.

A `NamedTaskGroup` owns its tasks: the first failure cancels the others, and leaving the group waits
for all of them. `run_bounded` runs many small jobs with a limit. `in_slices` divides a long loop.
`cancel_and_join` ends a task and waits for its end. `with_timeout` and `wait_for` wait with a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a named task, which the caller must join (see `cancel_and_join`)."""
    return asyncio.get_running_loop().create_task(coroutine, name=name)


class NamedTaskGroup(asyncio.TaskGroup):
    """Task group whose tasks must have a name.

    Leaving the group waits for every task. The first exception of a task cancels the others and is
    raised as part of an `ExceptionGroup`.
    """

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task of this group."""
        return self.create_task(coroutine, name=name)


SLICE = 250
"""Items that `in_slices` yields before other tasks run: a few milliseconds of work."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run after each `SLICE` items."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % SLICE == 0:
            await asyncio.sleep(0)


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside nested exception groups, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_exceptions(inner)
    else:
        yield error


async def cancel_and_join(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until each has ended; drop their results and exceptions.

    Finished tasks, None and repeated calls are allowed. If the caller is cancelled meanwhile, the
    tasks stay cancelled and the caller's cancellation propagates.
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


async def run_bounded(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, limit: int, name: str
) -> None:
    """Run `work` for every item, at most `limit` at once, and wait for all.

    `work` must handle its own errors: the first exception cancels the other jobs. A limit below one
    runs nothing.

    Raises:
        ExceptionGroup: a job failed.
    """
    queue = enumerate(items)

    async def worker() -> None:
        # The workers share one iterator, so each item is taken once.
        for number, item in queue:
            await work(item)
            # Thousands of jobs may end without a wait, for example with a cached result. After
            # `SLICE` jobs of all workers, other tasks run.
            if number % max(1, SLICE // limit) == 0:
                await asyncio.sleep(0)

    async with NamedTaskGroup() as group:
        for number in range(limit):
            group.start(worker(), name=f"{name}-{number}")


async def first_of(*waits: Coroutine[Any, Any, Any], name: str) -> None:
    """Wait until one of several coroutines ends; then cancel and join the others.

    Raises:
        Exception: the exception of the coroutine that ended first.
    """
    tasks = [spawn(wait, name=f"{name}-{number}") for number, wait in enumerate(waits)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel_and_join(*tasks)


async def with_timeout(seconds: float, work: Coroutine[Any, Any, T], *, name: str) -> T:
    """Run a coroutine with a time limit and return its result.

    At the limit the coroutine is cancelled; this function returns after it has ended.

    Raises:
        TimeoutError: the limit was exceeded.
        Exception: the exception of the coroutine.
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
    """Wait at most some seconds until an event is set; return whether it is set."""
    if event.is_set() or seconds <= 0:
        # Yield in any case, so that a loop of waits cannot block the event loop.
        await asyncio.sleep(0)
    else:
        with suppress(TimeoutError):
            # Not asyncio's wait_for: before Python 3.12 it loses a cancellation that coincides with
            # the event, and the cancelled task would continue forever.
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()
