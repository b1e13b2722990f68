"""Bounded thread pools for synchronous vendor SDKs, so that they never block the event loop.

Each operation, such as `ensure_load_balancer`, has its own pool: if all threads of one operation
hang, the others keep working.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ccm.base import clock, lease_guard

if TYPE_CHECKING:
    from ccm.base.metrics import Gauge

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 32
"""Maximum concurrent calls of one operation; further calls wait for a thread. Twice the number of
threads that hanging calls of one controller can occupy, so that other objects are still served."""

OPERATION: contextvars.ContextVar[str] = contextvars.ContextVar("kind", default="other")
"""Operation of the current call. The daemon sets it for each call to a provider."""

WAIT_FOR_THREAD: contextvars.ContextVar[bool] = contextvars.ContextVar("outlasted", default=False)
"""Whether a cancelled `blocking` waits for its thread to end. True in the daemon's calls to a
provider: such a call counts as running until its thread has ended, but `ccm.cloud.calls.inflight`
abandons it after its deadline."""


@functools.cache
def _free_threads() -> Gauge:
    from ccm.base import metrics  # only the daemon needs it, but providers import this module

    text = "Free threads for synchronous cloud libraries, by operation; at 0, calls wait."
    return metrics.gauge("ccm_cloud_threads_free", text, ["operation"])


class _OperationPool:
    """Thread pool of one operation."""

    def __init__(self, kind: str) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"cloud-{kind}")
        self._lock = threading.Lock()  # done callbacks run in the pool's threads
        self.busy = 0
        self.last_progress_at = clock.monotonic()
        _free_threads().labels(kind).set_function(lambda: max(0, MAX_THREADS - self.busy))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        with self._lock:
            self.busy += 1
            if self.busy == MAX_THREADS:  # exhausted from now on, see `exhausted_pools`
                self.last_progress_at = clock.monotonic()
        running = self._threads.submit(call)
        running.add_done_callback(self._on_done)
        return running

    def _on_done(self, call: Future[Any]) -> None:
        with self._lock:
            self.busy -= 1
            if not call.cancelled():  # a cancelled call never occupied a thread
                self.last_progress_at = clock.monotonic()


class _Submission(Executor):
    """Executor of one call, which keeps the future of the thread for `_wait_for`.

    The call goes through `run_in_executor`, so that the event loops of tests notice the call and
    stop virtual time.
    """

    def __init__(self, pool: _OperationPool) -> None:
        self._pool = pool
        self.running: Future[Any]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.running = self._pool.submit(functools.partial(fn, *args, **kwargs))
        return self.running


_pools: dict[str, _OperationPool] = {}


def exhausted_pools() -> Mapping[str, float]:
    """Return the seconds without progress of each operation whose pool has no free thread.

    The seconds count from the last end of a call, or from the exhaustion of the pool if later.
    """
    now = clock.monotonic()
    return {
        kind: now - pool.last_progress_at
        for kind, pool in _pools.items()
        if pool.busy >= MAX_THREADS
    }


async def blocking(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread; return its result or raise its exception.

    A thread cannot be interrupted: when the call is cancelled, for example by its deadline, the
    function runs on in the background and its result is dropped. Further calls about the same
    Service, route or machine are rejected until the function returns. So give the vendor's client
    its own timeout.

    Raises:
        LeaseExpired: the leader lease may have expired, so `function` was not called.
    """
    call = functools.partial(
        contextvars.copy_context().run, _run_checked, function, *args, **kwargs
    )
    kind = OPERATION.get()
    pool = _pools.get(kind) or _pools.setdefault(kind, _OperationPool(kind))
    submission = _Submission(pool)
    try:
        return await asyncio.get_running_loop().run_in_executor(submission, call)
    except asyncio.CancelledError:
        if WAIT_FOR_THREAD.get():
            await _wait_for(submission.running)
        raise


async def invoke(function: Callable[..., Any], /, *args: object) -> Any:
    """Await a coroutine function; call a synchronous function in a thread, as `blocking` does."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    answer = await blocking(function, *args)
    return await answer if isinstance(answer, Awaitable) else answer


def _run_checked(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    # The lease may have expired while the call waited for a thread.
    lease_guard.check_current_guard()
    return function(*args, **kwargs)


async def _wait_for(running: Future[Any]) -> None:
    """Wait until the function has returned; ignore further cancellations of the caller."""
    if running.cancelled():
        return
    ended = asyncio.wrap_future(running)
    while not ended.done():
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            # `blocking` re-raises its own CancelledError once the thread has ended.
            continue
    if not ended.cancelled():
        ended.exception()  # marks the exception as retrieved; the outcome is dropped
