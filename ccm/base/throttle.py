"""Rate limiters with one interface: `await limiter.acquire()` returns the seconds waited.

`Bucket` has the arithmetic of Go's x/time/rate and never waits. `TokenBucket` is the rate limiter
of the API server's client: it serves waiters in the order of their arrival, as client-go does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ccm.base import clock


class Bucket:
    """Token bucket that refills steadily, as in Go's x/time/rate; it starts full.

    Args:
        qps: tokens per second, above zero; may be fractional.
        burst: size of the bucket, at least one; may be fractional.

    Raises:
        ValueError: `qps` or `burst` is out of range.
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
        """Take the next token; return the seconds until it is available, 0 = now."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def take(self, now: float) -> bool:
        """Take a token if a whole one is available; return whether one was taken."""
        if self.missing_s(now):
            return False
        self._tokens -= 1
        return True

    def missing_s(self, now: float) -> float:
        """Return the seconds until a whole token is available; 0 = now."""
        self._refill(now)
        # Tolerate rounding errors: otherwise a waiter could wake up just too early, repeatedly.
        return 0.0 if self._tokens > 1 - 1e-6 else (1 - self._tokens) / self._qps

    def _refill(self, now: float) -> None:
        grown = 0.0 if self._updated is None else max(0.0, now - self._updated) * self._qps
        self._tokens = min(self._burst, self._tokens + grown)
        self._updated = now


class Limiter(Protocol):
    """Rate limiter: makes callers wait."""

    async def acquire(self) -> float:
        """Wait for a token and return the seconds waited."""
        ...


class Unlimited:
    """Rate limiter without a limit."""

    async def acquire(self) -> float:
        """Return at once."""
        return 0.0


class TokenBucket:
    """`Bucket` with a queue of waiters, served first come, first served.

    Args:
        qps: tokens per second, above zero; may be fractional.
        burst: size of the bucket, at least one. The bucket starts full.

    Raises:
        ValueError: `qps` or `burst` is out of range.
    """

    def __init__(self, *, qps: float, burst: int) -> None:
        self._bucket = Bucket(qps=qps, burst=burst)
        self._waiters: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a token if one is available and no caller waits; return whether one was taken."""
        if self._waiters:
            return False
        return self._bucket.take(clock.monotonic())

    async def acquire(self) -> float:
        """Wait for a token in order of arrival; return the seconds waited.

        A cancelled caller takes no token.
        """
        if self.try_acquire():
            return 0.0
        started = clock.monotonic()
        await self._queue_up()
        try:
            while not self._bucket.take(now := clock.monotonic()):  # noqa: ASYNC110 - time refills it
                await asyncio.sleep(self._bucket.missing_s(now))
        finally:
            self._wake_next()
        return clock.monotonic() - started

    async def _queue_up(self) -> None:
        """Wait to become the head of the queue; only the head sleeps until a token is available."""
        ticket = asyncio.get_running_loop().create_future()
        self._waiters.append(ticket)
        if self._waiters[0] is ticket:
            return
        try:
            await ticket
        except asyncio.CancelledError:
            if self._waiters[0] is ticket:
                self._wake_next()
            else:
                self._waiters.remove(ticket)
            raise

    def _wake_next(self) -> None:
        """Remove the head of the queue and wake the next waiter, which is the new head.

        If the new head was cancelled but has not run since, it calls this method when it runs.
        """
        self._waiters.popleft()
        if self._waiters and not self._waiters[0].done():
            self._waiters[0].set_result(None)


def client_go_limiter(qps: float, burst: int) -> Limiter:
    """Return the limiter for a qps/burst pair as in client-go: negative qps = no limit.

    Zero stands for client-go's defaults of 5 (qps) and 10 (burst).
    """
    if qps < 0:
        return Unlimited()
    return TokenBucket(qps=qps or 5.0, burst=burst or 10)
