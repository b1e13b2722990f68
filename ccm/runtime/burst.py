"""Many changes close together are one: act when they pause, but not for ever later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ccm.base.clock import SYSTEM, Clock


class Burst:
    """Collects changes and acts once for all of them.

    Args:
        act: called once per burst; returns at once.
        quiet_s: seconds without a change that end a burst.
        longest_s: seconds after its first change at which a burst ends in any case.
        clock: where time comes from.
    """

    def __init__(
        self,
        act: Callable[[], None],
        *,
        quiet_s: float,
        longest_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self._act = act
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._clock = clock
        self._ends_by: float | None = None
        self._due = 0.0
        self._changed = asyncio.Event()

    def note(self) -> None:
        """Something changed."""
        now = self._clock.monotonic()
        if self._ends_by is None:
            self._ends_by = now + self._longest_s
        self._due = min(now + self._quiet_s, self._ends_by)
        self._changed.set()

    async def run(self) -> None:
        """Act for every burst, until cancelled."""
        while True:
            await self._changed.wait()
            # Every change moves the end further away, never nearer.
            while (left := self._due - self._clock.monotonic()) > 0:
                await self._clock.sleep(left)
            self._ends_by = None
            self._changed.clear()
            self._act()
