"""The end of what a leader may do: nothing is begun once its lease may have run out.

A leader learns of its loss through its event loop, and that may be blocked just then, or stand
still with the whole process. So whoever is about to change something looks at the clock first, as
late as it can. What is left is a pause between that look and the act itself.

The fence in force is found through the task's context, as the drain is, and in threads that have
the context of their caller: with two leases each piece of work is held by that of its own. Outside
of a fence everything may be done.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from types import TracebackType

from ccm.base import clock


class Lapsed(TimeoutError):
    """The lease may have run out, so it was not begun. As after any timeout, nothing is known."""


class Fence:
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
        """Be the fence of this task and of those that it starts from now on."""
        _FENCE.set(self)

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


_FENCE: ContextVar[Fence | None] = ContextVar("fence", default=None)


def check() -> None:
    """Something is about to be begun.

    Raises:
        Lapsed: it must not.
    """
    if (fence := _FENCE.get()) is not None:
        fence.check()


class limit:  # noqa: N801 - used as `asyncio.timeout` is
    """What is begun inside ends in time, and when the lease does, renewals on the way counted in.

    Entering raises `Lapsed` where it must not be begun.

    Args:
        seconds: its time; None = as long as the lease.

    Raises:
        TimeoutError: its time was up, or the lease ended meanwhile.
    """

    __slots__ = ("_fence", "_timeout")

    # Neither a generator nor a second timeout: this is around each request.
    def __init__(self, seconds: float | None = None) -> None:
        self._fence = _FENCE.get()
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        if self._fence is not None:
            self._fence.begin(self._timeout)
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fence is not None:
            self._fence.ended(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
