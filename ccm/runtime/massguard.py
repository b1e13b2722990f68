"""Whether the absence of many owners may be believed.

An API server restored from a backup, one of another cluster behind the same name, or one that
lists nothing makes the owners of load balancers and routes disappear without anybody having
deleted them. A few such absences are believed. Many are not: the deletions are held until the
owners are back, or until a person allows them. Pure: whoever asks says what time it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

MOST = 3
SHARE = 3
"""More than that many, and more than one of so many, are many."""

QUIET_S = 0.5
"""How long no owner may disappear before those that did are counted: they come in a burst."""

DOUBT_S = 60.0
"""How long a doubt outlives its cause: owners come back page by page."""


def is_mass(doomed: int, settled: int) -> bool:
    """Whether so many of what was settled are many."""
    return doomed > MOST and doomed * SHARE > settled


class MassGuard:
    """Holds the deletions of one kind while too many owners are missing.

    Args:
        allowed: whether a person said that they may go on.
    """

    def __init__(self, allowed: Callable[[], bool]) -> None:
        self._allowed = allowed
        self._until = -math.inf
        self.in_doubt = False
        """Whether there are, or were lately, so many that people should know."""

    def missing(self, now: float) -> None:
        """An owner is not there any more, and nobody saw it deleted."""
        self._until = max(self._until, now + QUIET_S)

    def back(self, now: float) -> None:
        """An owner is there again, and others may follow."""
        if self.in_doubt:
            self._until = max(self._until, now + DOUBT_S)

    def wait_s(
        self, doomed: int, settled: int, now: float, *, is_many: bool | None = None
    ) -> float:
        """Seconds until the next look at it; 0 = what is doomed may be deleted.

        Args:
            doomed: of what was settled, what has no owner, though nobody saw it deleted.
            settled: all that was settled, this included.
            now: monotonic seconds.
            is_many: whether they are; None: as their numbers say.
        """
        if self._allowed():
            self.in_doubt = False
            return 0.0
        if is_mass(doomed, settled) if is_many is None else is_many:
            self.in_doubt = True
            self._until = now + DOUBT_S
        elif now >= self._until:
            self.in_doubt = False
        return max(0.0, self._until - now)
