"""Runs a synchronous vendor SDK in bounded threads, so that the event loop never waits.

Each kind of call, such as `ensure_load_balancer`, has threads of its own: where those of one
hang for good, the others go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ccm.base import clock, lease_guard

if TYPE_CHECKING:
    from ccm.base.metrics import Gauge

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 32
"""Most calls of one kind that run at once; further ones wait for a thread. Twice as many as hung
objects of one controller can hold, so that the others are served."""

KIND: contextvars.ContextVar[str] = contextvars.ContextVar("kind", default="other")
"""The kind of call under way; the daemon's calls to a provider set it."""

OUTLASTED: contextvars.ContextVar[bool] = contextvars.ContextVar("outlasted", default=False)
"""Whether a cancelled caller waits for its thread, because somebody waits in its stead; so it
is in the daemon's calls to a provider."""


@functools.cache
def _free() -> Gauge:
    from ccm.base import metrics  # only the daemon needs it, and every provider imports this

    text = "Threads for a synchronous cloud library that are free, by operation; at 0 calls wait."
    return metrics.gauge("ccm_cloud_threads_free", text, ["operation"])


class _Pool:
    """The threads for one kind of call."""

    def __init__(self, kind: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"cloud-{kind}")
        self._lock = threading.Lock()  # calls end in their threads
        self.taken = 0
        self.moved_at = clock.monotonic()
        _free().labels(kind).set_function(lambda: max(0, THREADS - self.taken))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        with self._lock:
            self.taken += 1
            if self.taken == THREADS:
                self.moved_at = clock.monotonic()
        running = self._threads.submit(call)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, call: Future[Any]) -> None:
        with self._lock:
            self.taken -= 1
            if not call.cancelled():  # else it never had a thread
                self.moved_at = clock.monotonic()


_pools: dict[str, _Pool] = {}


def exhausted() -> Mapping[str, float]:
    """Seconds for which no thread has become free, by kind of call, where none is free."""
    now = clock.monotonic()
    return {kind: now - one.moved_at for kind, one in _pools.items() if one.taken >= THREADS}


async def blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread and return or raise what it does.

    A thread cannot be interrupted: when the call is cancelled, for example by its
    deadline, the function runs on in the background and its result is dropped. Nothing else
    is done about the same Service or route until it has ended. Give the vendor's client a
    timeout of its own. Once our lease may have run out, no function is begun any more.
    """
    call = functools.partial(contextvars.copy_context().run, _begin, function, *args, **kwargs)
    kind = KIND.get()
    pool = _pools.get(kind) or _pools.setdefault(kind, _Pool(kind))
    running = pool.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if OUTLASTED.get():
            await _end_of(running)
        raise


def _begin(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    # It may have waited for its thread for long.
    lease_guard.check()
    return function(*args, **kwargs)


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
