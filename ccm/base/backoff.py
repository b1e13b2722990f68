"""Delays between attempts: pure arithmetic, no waiting.

All delays are seconds. Jitter is given as a fraction: 0.2 means the delay is
stretched by a uniform random factor between 1 and 1.2, never shortened.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

RETRY_AFTER_LIMIT_S = 300.0
"""Longest time that a server's `Retry-After` is believed; one that is wrong stops us for ever."""


def jittered(delay_s: float, fraction: float, rng: random.Random) -> float:
    """Stretch a delay by up to `fraction`; a fraction of zero or less leaves it alone."""
    if fraction <= 0:
        return delay_s
    return delay_s * (1 + rng.random() * fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """A delay that grows with each failure in a row, up to a cap."""

    base_s: float
    factor: float = 2.0
    cap_s: float
    jitter: float = 0.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after `failures` earlier failures (0 = first failure)."""
        return jittered(self.even_delay(failures), self.jitter, rng)

    def even_delay(self, failures: int) -> float:
        """The same without jitter."""
        # The exponent is bounded because a float overflows long before the cap matters.
        return min(self.base_s * self.factor ** min(failures, 64), self.cap_s)


@dataclass(slots=True, kw_only=True)
class Streak:
    """Counts failures in a row of one thing and says how long to wait before the next try.

    A quiet time of `reset_after_s` since the last failure starts the count anew, so
    that one hiccup a day never grows into a long pause.
    """

    policy: Exponential
    reset_after_s: float | None = None
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0
    _last: float | None = None

    def next(self, now_s: float) -> float:
        """Record a failure at `now_s` (monotonic) and return the delay before the next try."""
        quiet = None if self._last is None else now_s - self._last
        if self.reset_after_s is not None and quiet is not None and quiet > self.reset_after_s:
            self.failures = 0
        delay = self.policy.delay(self.failures, self.rng)
        self.failures += 1
        self._last = now_s
        return delay

    def reset(self) -> None:
        """Forget the failures: the thing works again."""
        self.failures = 0
        self._last = None
