"""A token bucket as pure arithmetic: whoever asks says what time it is."""

from __future__ import annotations


class Bucket:
    """Tokens that refill steadily, as Go's x/time/rate counts them; it starts full.

    Args:
        qps: tokens per second, may be fractional; above zero.
        burst: size of the bucket, at least one; may be fractional too.

    Raises:
        ValueError: one of them is out of its range.
    """

    def __init__(self, *, qps: float, burst: float) -> None:
        if qps <= 0:
            raise ValueError(f"qps must be above 0, not {qps}")
        if burst < 1:
            raise ValueError(f"burst must be at least 1, not {burst}")
        self._qps = qps
        self._burst = burst
        self._tokens = burst
        self._updated: float | None = None

    def reserve(self, now: float) -> float:
        """Take a token, of those to come if need be; the seconds until it is there."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def take(self, now: float) -> bool:
        """Take a token if a whole one is there."""
        if self.missing_s(now):
            return False
        self._tokens -= 1
        return True

    def missing_s(self, now: float) -> float:
        """Seconds until a whole token is there; zero when it is."""
        self._refill(now)
        # A token short by rounding error counts as whole, else a waiter could spin.
        return 0.0 if self._tokens > 1 - 1e-6 else (1 - self._tokens) / self._qps

    def _refill(self, now: float) -> None:
        grown = 0.0 if self._updated is None else max(0.0, now - self._updated) * self._qps
        self._tokens = min(self._burst, self._tokens + grown)
        self._updated = now
