"""Delays between attempts: arithmetic only, no waiting.

All delays are seconds. Jitter is a fraction: 0.2 multiplies the delay by a uniform random factor
between 1 and 1.2. Jitter never shortens a delay.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

RETRY_AFTER_LIMIT_S = 300.0
"""Maximum seconds that a client waits because of a `Retry-After` header; longer values are reduced
to it. Otherwise an absurd value would stop the client forever."""


def jittered(delay_s: float, fraction: float, rng: random.Random) -> float:
    """Return a delay stretched by up to `fraction`; a fraction of zero or less changes nothing."""
    if fraction <= 0:
        return delay_s
    return delay_s * (1 + rng.random() * fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """Delay that grows with consecutive failures, up to a cap."""

    base_s: float
    factor: float = 2.0
    cap_s: float
    jitter: float = 0.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after a failure that follows `failures` earlier failures."""
        return jittered(self.delay_without_jitter(failures), self.jitter, rng)

    def delay_without_jitter(self, failures: int) -> float:
        """Return the delay without jitter."""
        # Bound the exponent: a float would overflow, and the cap applies long before.
        return min(self.base_s * self.factor ** min(failures, 64), self.cap_s)


@dataclass(slots=True, kw_only=True)
class FailureStreak:
    """Consecutive failures of one operation, and the delay before its next attempt.

    After `reset_after_s` seconds without a failure the count restarts, so that one failure a day
    never leads to a long delay. None = the count restarts only after a success.
    """

    policy: ExponentialBackoff
    reset_after_s: float | None = None
    rng: random.Random = field(default_factory=random.Random)
    failures: int = 0
    _last: float | None = None

    def next_delay(self, now_s: float) -> float:
        """Record a failure at `now_s` (monotonic) and return the delay before the next attempt."""
        quiet = None if self._last is None else now_s - self._last
        if self.reset_after_s is not None and quiet is not None and quiet > self.reset_after_s:
            self.failures = 0
        delay = self.policy.delay(self.failures, self.rng)
        self.failures += 1
        self._last = now_s
        return delay

    def reset(self) -> None:
        """Reset the count after a success."""
        self.failures = 0
        self._last = None
