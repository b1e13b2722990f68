"""When the members of all load balancers are changed: once for many changes of nodes, at a pace.

A burst of changes ends when they pause, but not for ever later. While new nodes are initialised,
each of which changes the members twice, it lasts until all are or none has been for a while. And
since one pass over all Services may be dear, the next one rests first, in proportion. A node that
goes away waits for none of this longer than `longest_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

PACE = 10.0
"""A pass rests so many times as long as the last one took."""

LONGEST_REST_S = 60.0
"""But not longer."""

LONGEST_WAVE_S = 600.0
"""Longest time that a wave of initialisation counts as one burst: 5,000 nodes at the default rate
of writes."""


class Bursts:
    """Collects changes and acts once for all of them.

    Args:
        act: called once per burst of changes; returns at once.
        quiet_s: seconds without a change that end a burst.
        longest_s: seconds after its first change at which a burst ends, and after which a wave
            of initialisation that gets nowhere is none any more.
    """

    def __init__(
        self,
        act: Callable[[], None],
        *,
        quiet_s: float,
        longest_s: float,
    ) -> None:
        self._act = act
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._first = math.inf
        self._last = math.inf
        self._left = math.inf
        self._wave = -math.inf
        self._rests_until = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def note(self, *, leaves: bool = False) -> None:
        """Something changed; `leaves`: a node went away."""
        self._last = asyncio.get_running_loop().time()
        self._first = min(self._first, self._last)
        if leaves:
            self._left = min(self._left, self._last)
        self._arm()

    def wave(self, *, goes_on: bool) -> None:
        """A new node waits for its initialisation or has it; `goes_on`: others still wait."""
        self._wave = asyncio.get_running_loop().time() if goes_on else -math.inf

    def passes(self) -> None:
        """A pass over all Services begins."""
        self._rest(LONGEST_REST_S)

    def passed(self, took_s: float) -> None:
        """The pass is over, after so many seconds."""
        self._rest(min(LONGEST_REST_S, PACE * took_s))

    def _rest(self, seconds: float) -> None:
        self._rests_until = asyncio.get_running_loop().time() + seconds
        self._arm()

    @property
    def _due(self) -> float:
        """When the burst is over; infinity while there is none."""
        burst = min(self._last + self._quiet_s, self._first + self._longest_s)
        wave = min(self._wave + self._longest_s, self._first + LONGEST_WAVE_S)
        return min(max(burst, wave, self._rests_until), self._left + self._longest_s)

    def _arm(self) -> None:
        """Look when the burst is over; one that ends later than thought is looked at twice."""
        due = self._due
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        if due < math.inf:
            self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() < self._due:
            self._arm()
            return
        self._first = self._last = self._left = math.inf
        self._act()
