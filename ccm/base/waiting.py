"""Waiting with a deadline that follows the clock, so that tests own the time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ccm.base import tasks
from ccm.base.clock import Clock

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T], *, clock: Clock, name: str) -> T:
    """Run a coroutine for at most that long and return its result.

    When time is up the coroutine is cancelled and has ended before this returns.

    Raises:
        TimeoutError: time was up.
        Exception: whatever the coroutine raised.
    """
    worker = tasks.spawn(work, name=name)
    timer = tasks.spawn(clock.sleep(seconds), name=f"{name}-deadline")
    try:
        await asyncio.wait((worker, timer), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise TimeoutError(f"{name} took longer than {seconds:g} s")
    finally:
        await tasks.cancel_and_join(timer, worker)


async def wait_for(event: asyncio.Event, seconds: float, *, clock: Clock, name: str) -> bool:
    """Wait until an event is set, at most that long; say whether it is set."""
    if event.is_set() or seconds <= 0:
        await clock.sleep(0)
        return event.is_set()
    await tasks.first_of(event.wait(), clock.sleep(seconds), name=name)
    return event.is_set()
