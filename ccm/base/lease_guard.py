"""Limits for a leader: once its lease may have expired, no operation starts, and the process ends.

A leader learns about a lost lease through its event loop, which may be blocked, or paused together
with the process. Each change therefore checks the clock as late as possible. The only remaining gap
is a pause between that check and the change itself.

The current guard is a context variable. Tasks, and threads that copy their caller's context,
inherit it. A process with two leases therefore runs all work under the guard of the right lease, or
under both guards, if the work needs both leases. Without a guard every operation may start.
"""

from __future__ import annotations

import asyncio
import faulthandler
import math
import time
from contextvars import ContextVar
from types import TracebackType

from ccm.base import clock


class LeaseExpired(TimeoutError):
    """The lease may have expired, so the operation did not start; callers treat it as a timeout."""


class LeaseGuard:
    """Expiry of the leader's lease; before the first `extend`, no operation may start."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._outer: LeaseGuard | None = None
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._operations: set[asyncio.Timeout] = set()

    @property
    def remaining_s(self) -> float:
        """Seconds during which operations may still start; 0 or less = none."""
        return self._until - clock.monotonic()

    def activate(self, *, nested: bool = False) -> None:
        """Make this the guard of the current task and of tasks it starts later.

        `nested`: whether the guard that was active before stays in force, so that an operation
        needs both leases.
        """
        self._outer = _GUARD.get() if nested else None
        _GUARD.set(self)

    def extend(self, until: float) -> None:
        """Set the expiry of the lease, which also ends the operations that run at that time.

        Args:
            until: the expiry, in seconds of `clock.monotonic`.
        """
        self._until = until
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        # One timer for all operations: there are many more requests than renewals.
        self._expiry_timer = asyncio.get_running_loop().call_later(self.remaining_s, self.expire)

    def expire(self) -> None:
        """Record the loss of the lease and end all running operations at once."""
        self._until = -math.inf
        for limit in self._operations:
            # asyncio rejects a new deadline for a timeout that has expired.
            if not limit.expired():
                limit.reschedule(-math.inf)

    def check(self) -> None:
        """Raise `LeaseExpired` unless operations may start."""
        if self.remaining_s <= 0:
            raise LeaseExpired("operation not started: the lease may have expired")
        if self._outer is not None:
            self._outer.check()

    def register(self, limit: asyncio.Timeout) -> None:
        """Register the time limit of an operation, so that the expiry of the lease ends it.

        Raises:
            LeaseExpired: the lease may have expired; the operation must not start.
        """
        self.check()
        self._operations.add(limit)
        if self._outer is not None:
            self._outer.register(limit)

    def unregister(self, limit: asyncio.Timeout) -> None:
        """Unregister an operation that `register` registered."""
        self._operations.discard(limit)
        if self._outer is not None:
            self._outer.unregister(limit)


_GUARD: ContextVar[LeaseGuard | None] = ContextVar("lease_guard", default=None)


def check_current_guard() -> None:
    """Check that an operation may start under the current guard.

    Raises:
        LeaseExpired: the lease may have expired.
    """
    if (guard := _GUARD.get()) is not None:
        guard.check()


class limit:  # noqa: N801 - used as `asyncio.timeout` is
    """Context manager that ends its block after a time limit or when the lease expires.

    If the lease is renewed while the block runs, the new expiry counts.

    Args:
        seconds: time limit; None = the lease is the only limit.

    Raises:
        LeaseExpired: the block must not start, because the lease may have expired.
        TimeoutError: the time limit was exceeded, or the lease expired.
    """

    __slots__ = ("_guard", "_timeout")

    # No generator and only one timeout, because this wraps every request.
    def __init__(self, seconds: float | None = None) -> None:
        self._guard = _GUARD.get()
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        if self._guard is not None:
            self._guard.register(self._timeout)
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._guard is not None:
            self._guard.unregister(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)


_STDERR = 2
"""File descriptor for the tracebacks; a number, because `sys.stderr` may have been replaced."""

_MIN_DELAY_S = 0.001
"""Delay in seconds for a deadline that has passed: faulthandler requires a positive delay."""


class Watchdog:
    """Ends the process with exit code 1 at a deadline, unless the deadline is cancelled.

    The watchdog thread of faulthandler ends the process without running Python code. A blocked
    event loop, a task that ignores cancellation, a hanging thread, or an extension that holds the
    GIL cannot delay it. The watchdog thread writes the tracebacks of all threads to stderr. If
    another thread runs meanwhile, that dump may crash with SIGSEGV. No cleanup code runs.

    faulthandler has one timer per process, so the timer has the earliest deadline, and a process
    must have only one instance of this class.
    """

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}

    def arm(self, reason: str, seconds: float) -> None:
        """End the process after `seconds`; this replaces the former deadline for the reason."""
        self._deadlines[reason] = time.monotonic() + seconds
        self._set()

    def cancel(self, *reasons: str) -> None:
        """Cancel the deadlines for these reasons; without arguments, all deadlines. Idempotent."""
        for why in reasons or tuple(self._deadlines):
            self._deadlines.pop(why, None)
        self._set()

    def _set(self) -> None:
        if not self._deadlines:
            faulthandler.cancel_dump_traceback_later()
            return
        left = min(self._deadlines.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(left, _MIN_DELAY_S), exit=True, file=_STDERR)
