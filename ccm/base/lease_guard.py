"""The limits of a leader: nothing is begun once its lease may have run out, and the process ends.

A leader learns of its loss through its event loop, which may be blocked just then, or stand still
with the whole process. So each change looks at the clock first, as late as possible. What remains
is a pause between that look and the act itself.

The guard in force is found through the task's context, as the drain is, and in threads that have
the context of their caller: with two leases each piece of work is held by its own. Without a guard
everything may be done.
"""

from __future__ import annotations

import asyncio
import faulthandler
import math
import time
from contextvars import ContextVar
from types import TracebackType

from ccm.base import clock


class Lapsed(TimeoutError):
    """The lease may have run out, so it was not begun. As after any timeout, nothing is known."""


class LeaseGuard:
    """Until when the work that it governs is protected; at first it is not."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._end: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def left_s(self) -> float:
        """For how many seconds something may still be begun; none are left at 0 and below."""
        return self._until - clock.monotonic()

    def govern(self) -> None:
        """Be the guard of this task and of those that it starts from now on."""
        _GUARD.set(self)

    def extend(self, until: float) -> None:
        """The lease holds until then, by `clock.monotonic`; what is under way may last as long."""
        self._until = until
        if self._end is not None:
            self._end.cancel()
        # One timer for all that is under way: there are many more requests than renewals.
        self._end = asyncio.get_running_loop().call_later(self.left_s, self.lapse)

    def lapse(self) -> None:
        """The lease is lost; what is under way ends at once."""
        self._until = -math.inf
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(-math.inf)

    def check(self) -> None:
        """Raise `Lapsed` unless something may be begun."""
        if self.left_s <= 0:
            raise Lapsed("not begun, because the lease may have run out")

    def begin(self, limit: asyncio.Timeout) -> None:
        """Something is begun, and the lease limits it; raises `Lapsed`."""
        self.check()
        self._under_way.add(limit)

    def ended(self, limit: asyncio.Timeout) -> None:
        """It is over."""
        self._under_way.discard(limit)


_GUARD: ContextVar[LeaseGuard | None] = ContextVar("lease_guard", default=None)


def check() -> None:
    """Something is about to be begun.

    Raises:
        Lapsed: it must not.
    """
    if (guard := _GUARD.get()) is not None:
        guard.check()


class limit:  # noqa: N801 - used as `asyncio.timeout` is
    """What is begun inside ends in time, and when the lease does, renewals on the way counted in.

    Entering raises `Lapsed` where it must not be begun.

    Args:
        seconds: its time; None = as long as the lease.

    Raises:
        TimeoutError: its time was up, or the lease ended meanwhile.
    """

    __slots__ = ("_guard", "_timeout")

    # Neither a generator nor a second timeout: this is around each request.
    def __init__(self, seconds: float | None = None) -> None:
        self._guard = _GUARD.get()
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        if self._guard is not None:
            self._guard.begin(self._timeout)
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._guard is not None:
            self._guard.ended(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)


_STDERR = 2
"""Where the log goes; the number, for somebody may have put another object in its place."""

_AT_ONCE_S = 0.001


class Watchdog:
    """Ends the process with exit code 1 at a deadline, unless it is called off before.

    The interpreter's own does it, a thread without Python code: a blocked event loop, a
    task that does not let itself be cancelled, a hanging thread or an extension that never lets
    go of the interpreter cannot hold it up. It says where each thread was, and may fall over a
    thread that runs on meanwhile: SIGSEGV ends the process then. Nothing is cleaned up.
    A process has only one watchdog, so of several ends the earliest counts, and there is one
    object of this class.
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def arm(self, why: str, seconds: float) -> None:
        """End the process after so many seconds; takes the place of an end with the same reason."""
        self._ends[why] = time.monotonic() + seconds
        self._set()

    def call_off(self, *reasons: str) -> None:
        """Nothing hangs for these reasons, or for none if none is named; safe to repeat."""
        for why in reasons or tuple(self._ends):
            self._ends.pop(why, None)
        self._set()

    def _set(self) -> None:
        if not self._ends:
            faulthandler.cancel_dump_traceback_later()
            return
        left = min(self._ends.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(left, _AT_ONCE_S), exit=True, file=_STDERR)
