"""Runs a synchronous vendor SDK in bounded threads, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16
"""Most calls of synchronous SDKs that run at once; further ones wait for a thread."""

OUTLASTED: contextvars.ContextVar[bool] = contextvars.ContextVar("outlasted", default=False)
"""Whether a cancelled caller waits for its thread, because somebody waits in its stead; so it
is in the daemon's calls to a provider."""

_pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="cloud")


async def blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread and return or raise what it does.

    A thread cannot be interrupted: when the call is cancelled, for example by its
    deadline, the function runs on in the background and its result is dropped. Nothing else
    is done about the same Service or route until it has ended. Give the vendor's client a
    timeout of its own.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    running = _pool.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if OUTLASTED.get():
            await _end_of(running)
        raise


async def _end_of(running: Future[Any]) -> None:
    """Wait until the thread is done with it, whoever else wants to end that."""
    if running.cancelled():
        return
    ended = asyncio.wrap_future(running)
    while not ended.done():
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            # The caller's caller is long gone; ours is the one that raises in the end.
            continue
    if not ended.cancelled():
        ended.exception()  # mark as retrieved: nobody wants the outcome
