"""Waiting with a deadline that says what took too long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


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
