"""Many changes close together are one: act when they pause, but not for ever later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Debouncer:
    """Collects changes and acts once for all of them.

    Args:
        act: called once per burst of changes; returns at once.
        quiet_s: seconds without a change that end a burst.
        longest_s: seconds after its first change at which a burst ends in any case.
    """

    def __init__(self, act: Callable[[], None], *, quiet_s: float, longest_s: float) -> None:
        self._act = act
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._due = 0.0
        self._ends_by: float | None = None

    def note(self) -> None:
        """Something changed; every change moves the end further away, never nearer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._ends_by is None:
            self._ends_by = now + self._longest_s
            loop.call_at(min(now + self._quiet_s, self._ends_by), self._look)
        self._due = min(now + self._quiet_s, self._ends_by)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:
            loop.call_at(self._due, self._look)
            return
        self._ends_by = None
        self._act()
