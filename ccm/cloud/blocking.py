"""Runs a synchronous vendor SDK in bounded threads, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 16
"""Most calls of synchronous SDKs that run at once; further ones wait for a thread."""

_pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="cloud")


async def blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread and return or raise what it does.

    A thread cannot be interrupted: when the call is cancelled, for example by its
    deadline, the function runs on in the background and its result is dropped. Give the
    vendor's client a timeout of its own.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool, call)
