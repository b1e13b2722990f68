"""When routes are compared: after changes of nodes, after pauses, and once in a while anyway. Pure.

There is one moment at which the next comparison is due, and every reason for one can only
bring it forward. With a fixed period (the Go reference's default) the period alone counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often to compare.

    Attributes:
        period_s: seconds between the starts of two comparisons; None = when nodes change.
        interval_s: shortest time between two comparisons that changes of nodes cause.
        settle_s: how long the first change waits for others.
        safety_s: longest time without a comparison, before jitter.
    """

    period_s: float | None = None
    interval_s: float = 10.0
    settle_s: float = 0.5
    safety_s: float = 600.0


class Schedule:
    """The next comparison; all moments are monotonic seconds.

    Args:
        times: how often.
    """

    def __init__(self, times: Times) -> None:
        self._times = times
        self._compared_at = -math.inf
        self.due = math.inf
        """When the next comparison is due; infinity while nothing asks for one."""

    def begin(self, now: float) -> bool:
        """Begin a comparison, if one is due."""
        if now < self.due:
            return False
        self._compared_at = now
        self.due = math.inf
        return True

    def listed(self) -> None:
        """Changes that came during the listing are part of what is compared now."""
        self.due = math.inf

    def listing_failed(self, now: float, pause_s: float) -> None:
        """There is nothing to compare with: try again after a pause."""
        period_s = self._times.period_s
        self.force(now + pause_s if period_s is None else self._compared_at + period_s)

    def finished(self, wishes: Iterable[float], *, safety_s: float) -> None:
        """A comparison is over: the next comes at the first of some moments at latest.

        Args:
            wishes: when it would find something to do; moments of the past say nothing.
            safety_s: when it comes in any case, in seconds since the one that is over.
        """
        began, period_s = self._compared_at, self._times.period_s
        if period_s is None:
            period_s = min([safety_s, *(wish - began for wish in wishes if wish > began)])
        self.force(began + period_s)

    def soon(self, now: float) -> None:
        """Something changed: compare when it has settled, and not too often."""
        self._wish(max(now + self._times.settle_s, self._compared_at + self._times.interval_s))

    def retry(self, now: float, pause_s: float) -> None:
        """A call failed: compare when its pause is over."""
        spacing_s = min(pause_s, self._times.interval_s)
        self._wish(max(now + pause_s, self._compared_at + spacing_s))

    def force(self, due: float) -> None:
        """Compare at that moment at latest, fixed period or not."""
        self.due = min(self.due, due)

    def _wish(self, due: float) -> None:
        if self._times.period_s is None:
            self.force(due)
