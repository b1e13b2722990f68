"""Rate limiters with one interface: `await limiter.acquire()` returns the seconds waited.

`TokenBucket` is the API-server limiter: it starts full, refills steadily and serves
waiters in the order of arrival (the semantics of Go's x/time/rate as client-go uses
it).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ccm.base import clock
from ccm.base.bucket import Bucket


class Limiter(Protocol):
    """Something that makes callers wait for their turn."""

    async def acquire(self) -> float:
        """Wait for a turn and return the seconds waited."""
        ...


class Unlimited:
    """A limiter that never waits."""

    async def acquire(self) -> float:
        """Return at once."""
        return 0.0


class TokenBucket:
    """A `Bucket` with a line before it, served first come, first served.

    Args:
        qps: tokens per second, may be fractional; above zero.
        burst: size of the bucket, at least one. It starts full.

    Raises:
        ValueError: one of them is out of its range.
    """

    def __init__(self, *, qps: float, burst: int) -> None:
        self._bucket = Bucket(qps=qps, burst=burst)
        self._waiters: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a token if one is there and nobody waits; never waits itself."""
        if self._waiters:
            return False
        return self._bucket.take(clock.monotonic())

    async def acquire(self) -> float:
        """Wait for a token, in order of arrival; a cancelled waiter takes none."""
        if self.try_acquire():
            return 0.0
        started = clock.monotonic()
        await self._queue_up()
        try:
            while not self._bucket.take(now := clock.monotonic()):  # noqa: ASYNC110 - time brings them
                await asyncio.sleep(self._bucket.missing_s(now))
        finally:
            self._hand_over()
        return clock.monotonic() - started

    async def _queue_up(self) -> None:
        """Wait to be the head of the line; only the head sleeps, the rest wait for it."""
        ticket = asyncio.get_running_loop().create_future()
        self._waiters.append(ticket)
        if self._waiters[0] is ticket:
            return
        try:
            await ticket
        except asyncio.CancelledError:
            if self._waiters[0] is ticket:
                self._hand_over()
            else:
                self._waiters.remove(ticket)
            raise

    def _hand_over(self) -> None:
        """Leave the head of the line to the next waiter.

        One that was cancelled but has not run since hands over itself when it does.
        """
        self._waiters.popleft()
        if self._waiters and not self._waiters[0].done():
            self._waiters[0].set_result(None)


def bucket(qps: float, burst: int) -> Limiter:
    """The limiter for a qps/burst pair as client-go reads it: negative qps = no limit.

    Zero takes client-go's defaults of 5 (qps) and 10 (burst).
    """
    if qps < 0:
        return Unlimited()
    return TokenBucket(qps=qps or 5.0, burst=burst or 10)
