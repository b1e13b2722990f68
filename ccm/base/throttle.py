"""Limiters of the rate and of the concurrency of requests.

Rate limiters have one interface: `await limiter.acquire()` returns the seconds waited. `Bucket` has
the arithmetic of Go's x/time/rate and never waits. `TokenBucket` is the rate limiter of the API
server's client: it serves waiters in the order of their arrival, as client-go does.

`ConcurrencyLimiter` adapts the number of concurrent requests to the server.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
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
        lifted: returns whether the limit no longer applies.

    Raises:
        ValueError: `qps` or `burst` is out of range.
    """

    def __init__(
        self, *, qps: float, burst: int, lifted: Callable[[], bool] = lambda: False
    ) -> None:
        self._bucket = Bucket(qps=qps, burst=burst)
        self._lifted = lifted
        self._waiters: deque[asyncio.Future[None]] = deque()

    def try_acquire(self) -> bool:
        """Take a token if one is available and no caller waits; return whether one was taken.

        A lifted limit always returns True.
        """
        if self._lifted():
            return True
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
            # The limit may be lifted meanwhile: then each waiter ends the wait of the next one.
            while not (self._lifted() or self._bucket.take(now := clock.monotonic())):  # noqa: ASYNC110 - time refills it
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


INITIAL_CONCURRENCY = 8
"""Default of the initial number of concurrent requests."""

STEP_S = 0.1
"""Minimum interval in seconds of the steps by which the limit of concurrent requests rises. With
`ConcurrencyLimiter.observe` it is the duration of a request, so that its effect is known."""

BUSY_RESPONSES_PER_S = 200
"""From this rate of responses, the limit does not exceed its initial value: requests wait because
they are many, not because responses are slow."""

MAX_STEP_S = 1.0
"""Maximum interval in seconds of the steps. It applies after a refusal: a refusal pauses all
requests, usually for 1 s, so refusals must stay rare."""

CAUTIOUS_S = 60.0
"""Seconds after a refusal in which the limit rises in steps of `MAX_STEP_S`."""

SLOW_FACTOR = 2.0
"""Average ratio of recent durations of requests to the usual ones at which the limit falls."""

_MAX_FACTOR = 2 * SLOW_FACTOR
"""Maximum ratio of one duration: a single slow response must not reduce the limit."""

_RECENT_WEIGHT, _USUAL_WEIGHT = 0.2, 0.1
"""Weights of a new value in the moving averages of the ratio, and of the usual duration."""


class ConcurrencyLimiter:
    """Limiter of concurrent requests, in order of arrival, which adapts its limit to the server.

    The limit rises by one in each interval in which requests wait although responses are few. It is
    halved when the server refuses a request because there are too many (`back_off`), and reduced
    by a quarter while requests take longer than usual (`observe`).

    When no request is in flight, the limit returns to the initial value, unless a refusal was
    recent or requests take longer than usual.

    Args:
        initial: number of concurrent requests at the start.
        lowest: minimum of the limit if requests take longer than usual. The durations while no more
            than these are in flight count as usual.
        highest: maximum of the limit.
    """

    def __init__(
        self, initial: int = INITIAL_CONCURRENCY, *, lowest: int = 1, highest: float = math.inf
    ) -> None:
        self._initial = self._limit = initial
        self._lowest, self._highest = lowest, highest
        self._in_flight = 0
        self._recent_responses = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._resume_at = self._cautious_until = self._reduced_at = -math.inf
        self._usual_s: dict[str, float] = {}
        self._slowness = 1.0
        self._step_s = STEP_S

    async def __aenter__(self) -> None:
        if self._in_flight < self._limit:
            self._in_flight += 1
            return
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._start_timer()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self._leave()  # granted and cancelled at the same time: release the slot
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    @property
    def pause_s(self) -> float:
        """Seconds until requests may be sent again; 0 = now."""
        return max(0.0, self._resume_at - clock.monotonic())

    async def wait_while_paused(self) -> None:
        """Wait until requests may be sent; call it in the context, just before a request."""
        while pause_s := self.pause_s:  # noqa: ASYNC110 - another response may prolong the pause
            await asyncio.sleep(pause_s)

    def back_off(self, seconds: float) -> None:
        """Pause all requests and halve the limit, because the server refused a request.

        A refusal during a pause only prolongs it: that request was sent before the pause.
        """
        now = clock.monotonic()
        if now >= self._resume_at:
            self._limit = max(1, self._limit // 2)
        self._resume_at = max(self._resume_at, now + seconds)
        self._cautious_until = self._resume_at + CAUTIOUS_S

    def observe(self, kind: str, seconds: float) -> None:
        """Record the duration of a successful request; reduce the limit if many take too long.

        `kind` names requests whose durations are alike. There must be few kinds.
        """
        usual_s = self._usual_s.get(kind, seconds)
        now = clock.monotonic()
        is_new = now - seconds >= self._reduced_at  # others show nothing about the new limit
        # With more requests in flight, they may be the cause of a longer duration.
        if seconds <= usual_s or (is_new and self._in_flight <= self._lowest):
            self._usual_s[kind] = usual_s + (seconds - usual_s) * _USUAL_WEIGHT
        factor = min(seconds / usual_s, _MAX_FACTOR) if usual_s else 1.0
        self._slowness += (factor - self._slowness) * _RECENT_WEIGHT
        self._step_s = min(max(STEP_S, seconds), MAX_STEP_S)
        if self._is_slow and is_new:
            self._reduced_at = now
            used = min(self._limit, self._in_flight)
            self._limit = min(self._limit, max(self._lowest, used * 3 // 4))

    @property
    def _is_slow(self) -> bool:
        return self._slowness > SLOW_FACTOR

    def _leave(self) -> None:
        self._in_flight -= 1
        self._recent_responses += 1
        self._grant_slots()
        if not (self._in_flight or self._is_slow or clock.monotonic() < self._cautious_until):
            self._limit = self._initial

    def _grant_slots(self) -> None:
        while self._waiting and self._in_flight < self._limit:
            slot = self._waiting.popleft()
            if not slot.done():
                self._in_flight += 1
                slot.set_result(None)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._recent_responses = 0
            is_cautious = clock.monotonic() < self._cautious_until
            interval_s = MAX_STEP_S if is_cautious else self._step_s
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._widen, interval_s)

    def _widen(self, interval_s: float) -> None:
        self._timer = None
        is_busy = self._recent_responses >= BUSY_RESPONSES_PER_S * interval_s
        highest = self._initial if is_busy else self._highest
        # Without any response, hanging requests may occupy all slots.
        is_slow = self._is_slow and self._recent_responses > 0
        if self._waiting and self._limit < highest and not (is_slow or self.pause_s):
            self._limit += 1
            self._grant_slots()
        if self._waiting:
            self._start_timer()
