"""Retry policy: computes the delays after failures, and decides which failures are reported.

The delays after cloud errors are in the table in `ccm.cloud.errors`; errors of the API server map
to the same kinds of delay. When a key that failed in an outage succeeds, all keys that failed in
the outage are retried at once, without their back-off. A failure is reported when its cause is new,
and again at intervals while the cause lasts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ccm.base.backoff import ExponentialBackoff, jittered
from ccm.base.log import REPEAT_WARNING_S
from ccm.base.throttle import Bucket
from ccm.cloud import errors as cloud
from ccm.cloud.errors import Retry
from ccm.kube import errors as kube

K = TypeVar("K", bound=Hashable)

DEFAULT = ExponentialBackoff(base_s=0.005, cap_s=1000.0)
"""Delays from 5 ms, doubled at each failure, to 1000 s (client-go, default controller limiter)."""

DEFAULT_QPS = 10.0
DEFAULT_BURST = 100
"""Tokens per second, and size, of the token bucket that all keys of a controller share
(client-go, default controller limiter)."""

LONG = ExponentialBackoff(base_s=30.0, cap_s=600.0)
"""Delays of `Retry.LONG`: an administrator has to change credentials or quotas first."""

MIN_RETRY_AFTER_S = 1.0
"""Minimum delay of `Retry.AFTER`: repeated delays of 0 s would be a busy loop."""

BUSY_SHARE = 0.2
"""Minimum delay of `Retry.AFTER`, as a share of the time for which the cloud has been busy with the
key. So a long operation is polled rarely, and the delay until its end is noticed is about this
share of its duration at most."""

RETRY_AFTER_JITTER = 0.2
"""Jitter added to Retry-After delays, as a fraction: many keys get the same delay."""

SLOW_S = 600.0
"""Delay of `Retry.SLOW` in seconds. A retry seldom helps before the object changes, and a change
requeues the object at once."""

NEW_OBJECT_BACKOFF = ExponentialBackoff(base_s=1.0, cap_s=60.0)
"""Delays of `Retry.SLOW` for a new object, which may be rejected only because it is new."""

PRIORITY_RETRIES = 8
"""Number of retries for which an item has priority over items with more failures. Later retries
have equal priority; their delays exceed a second anyway."""

MIN_WAKE_INTERVAL_S = 2.0
"""Minimum seconds between two wake-ups of keys that failed in an outage: a cloud or API server that
works only partly must not be overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """Retry decision for an error.

    Attributes:
        retry: kind of delay.
        after_s: seconds until the next attempt, if the error states them; else None.
        event: whether to record a Warning event.
        report: whether to log a warning about the failure, see `FailureReports`; set by the
            controller.
        eager: whether `Retry.SLOW` has shorter delays, because the object is new.
        outage: whether the error is an outage of the cloud or the API server, which ends for all
            keys at the same time.
        defect: whether the error is unexpected, and so a bug of this program.
    """

    retry: Retry
    after_s: float | None = None
    event: bool = True
    report: bool = False
    eager: bool = False
    outage: bool = False
    defect: bool = False

    def delay_s(self, failures: int) -> float | None:
        """Return the seconds until the next attempt; None = use the item's exponential back-off.

        Args:
            failures: number of earlier consecutive failures.
        """
        if self.retry is Retry.AFTER and self.after_s is not None:
            return max(self.after_s, MIN_RETRY_AFTER_S)
        if self.retry is Retry.LONG:
            return LONG.delay_without_jitter(failures)
        if self.retry is Retry.SLOW:
            return NEW_OBJECT_BACKOFF.delay_without_jitter(failures) if self.eager else SLOW_S
        return None


def classify(error: Exception) -> RetryDecision:
    """Return the retry decision for an error of a reconcile."""
    if isinstance(error, cloud.CloudError):
        retry = cloud.policy_for(error)
        after_s = error.seconds if isinstance(error, cloud.RetryAfter) else None
        # Rejected credentials make all keys fail, and one success shows that all keys can continue.
        passing = cloud.Unavailable | cloud.DeadlineExceeded | cloud.Unauthenticated
        outage = isinstance(error, passing)
        return RetryDecision(retry=retry, after_s=after_s, event=retry.event, outage=outage)
    if isinstance(error, kube.KubeError):
        return _of_api_server(error)
    return RetryDecision(retry=Retry.BACK_OFF, defect=True)


class FairRateLimiter:
    """Rate limiter shared by many items, where items with few failures have priority.

    There is one token bucket per failure count. An item takes a token from the bucket of its
    failure count and from the buckets of all higher counts, but waits only for the first token. So
    items with more failures wait for the tokens of items with fewer failures, and the total rate is
    the rate of one bucket.

    Args:
        qps: tokens per second.
        burst: size of each bucket.
    """

    def __init__(self, *, qps: float, burst: float) -> None:
        self._buckets = [Bucket(qps=qps, burst=burst) for _ in range(PRIORITY_RETRIES + 1)]

    def reserve(self, failures: int, now: float) -> float:
        """Reserve a token for an item with this failure count; return the seconds to wait."""
        own, *later = self._buckets[min(failures, PRIORITY_RETRIES) :]
        for bucket in later:
            bucket.reserve(now)
        return own.reserve(now)


class ItemBackoff(Generic[K]):
    """Consecutive failures and current delay of each item.

    Times are monotonic seconds.

    Args:
        policy: exponential delays, for errors whose `RetryDecision` has no delay.
        rng: source of jitter.
        limiter: rate limiter shared by all items; an exponential delay lasts at least until the
            item's token is available.
    """

    def __init__(
        self,
        policy: ExponentialBackoff = DEFAULT,
        *,
        rng: random.Random | None = None,
        limiter: FairRateLimiter | None = None,
    ) -> None:
        self._policy = policy
        self._rng = rng or random.Random()
        self._limiter = limiter
        self._failures: dict[K, int] = {}
        self._until: dict[K, float] = {}
        self._busy_since: dict[K, float] = {}
        self._outage: set[K] = set()
        self._woken_at = -math.inf

    def __len__(self) -> int:
        """Return the number of items whose last attempt failed or has to be repeated."""
        return len(self._failures)

    @property
    def in_outage(self) -> bool:
        """Whether the last attempt of some item failed in an outage."""
        return bool(self._outage)

    def record_failure(self, key: K, decision: RetryDecision, now: float) -> float:
        """Record a failure; return the seconds until the next attempt."""
        if decision.outage:
            self._outage.add(key)
        else:
            self._outage.discard(key)
        seconds = decision.delay_s(self._failures.get(key, 0))
        if decision.retry is Retry.AFTER and seconds is not None:
            busy_s = now - self._busy_since.setdefault(key, now)
            seconds = max(seconds, min(busy_s * BUSY_SHARE, self._policy.cap_s))
            seconds = jittered(seconds, RETRY_AFTER_JITTER, self._rng)
            # The cloud works, so that the delay after a later failure must not be longer for it.
            self._failures.setdefault(key, 0)
            self._until[key] = now + seconds
            return seconds
        self._busy_since.pop(key, None)
        return self._pause(key, seconds, now)

    def postpone(self, key: K, now: float) -> float:
        """Delay an item whose attempt succeeded but has to be repeated; return the delay.

        The delay grows as after failures.
        """
        self._busy_since.pop(key, None)
        return self._pause(key, None, now)

    def record_success(self, key: K, now: float) -> Sequence[K]:
        """Record a success; if the item's last failure was in an outage, call `end_outage`.

        Returns:
            The items that `end_outage` returned; empty if it was not called.
        """
        if key not in self._outage:
            return ()
        self._outage.discard(key)
        return self.end_outage(now)

    def end_outage(self, now: float) -> Sequence[K]:
        """End the delays of all items that failed in the outage, and return these items.

        Within `MIN_WAKE_INTERVAL_S` of the last call that ended delays, do nothing and return an
        empty sequence.
        """
        if now - self._woken_at < MIN_WAKE_INTERVAL_S:
            return ()
        if self._outage:
            self._woken_at = now
        # Items stay in `_outage` until retried: the outage may not have ended for all.
        for key in self._outage:
            self._failures.pop(key, None)
            self._until.pop(key, None)
        return sorted(self._outage, key=str)

    def end_all(self) -> Sequence[K]:
        """Forget all failures, since their cause may be gone; return the items that had a delay."""
        waiting = sorted(self._until, key=str)
        self.retain(())
        return waiting

    def forget(self, key: K) -> None:
        """Forget the failures and the delay of an item that succeeded, changed or was deleted."""
        self._failures.pop(key, None)
        self._until.pop(key, None)
        self._busy_since.pop(key, None)
        self._outage.discard(key)

    def busy_s(self, key: K, now: float) -> float:
        """Return the seconds since the first of the item's consecutive `Retry.AFTER` failures.

        0 = the last attempt ended differently.
        """
        return now - self._busy_since.get(key, now)

    def retain(self, keys: Collection[K]) -> None:
        """Keep only the failures and delays of `keys`; other items need no work any more."""
        wanted = set(keys)
        for key in (self._failures.keys() | self._outage) - wanted:
            self.forget(key)

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of one item."""
        return self._failures.get(key, 0)

    def is_waiting(self, key: K, now: float) -> bool:
        """Return whether the item's delay has not ended yet."""
        return self._until.get(key, now) > now

    def delay_end(self, key: K) -> float | None:
        """Return the end of the item's delay, which may be past; None: the item has no delay."""
        return self._until.get(key)

    def earliest_end(self, now: float) -> float:
        """Return the earliest end of a delay after `now`; infinity if no delay is pending."""
        return min((until for until in self._until.values() if until > now), default=math.inf)

    def _pause(self, key: K, seconds: float | None, now: float) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if seconds is None:
            seconds = self._policy.delay(failures, self._rng)
            if self._limiter is not None:
                seconds = max(seconds, self._limiter.reserve(failures, now))
        self._until[key] = now + seconds
        return seconds


def default_backoff(
    *, cap_s: float = DEFAULT.cap_s, rng: random.Random | None = None
) -> ItemBackoff[str]:
    """Return client-go's default for controllers: `DEFAULT` and a shared rate limiter.

    Args:
        cap_s: maximum exponential delay in seconds.
        rng: source of jitter.
    """
    policy = ExponentialBackoff(base_s=DEFAULT.base_s, cap_s=cap_s)
    return ItemBackoff(
        policy, rng=rng, limiter=FairRateLimiter(qps=DEFAULT_QPS, burst=DEFAULT_BURST)
    )


def _of_api_server(error: kube.KubeError) -> RetryDecision:
    if isinstance(error, kube.Invalid):
        return RetryDecision(retry=Retry.SLOW)
    if isinstance(error, kube.Forbidden):
        # A starting API server refuses requests until it has read its roles, so the first
        # retries follow soon. If a permission is really missing, the retries become rare.
        return RetryDecision(retry=Retry.BACK_OFF)
    if isinstance(error, kube.TooManyRequests) and error.retry_after is not None:
        return RetryDecision(retry=Retry.AFTER, after_s=error.retry_after, event=False)
    # A conflict or an unhealthy API server is no fault of the object, so it causes no event.
    outage = isinstance(error, kube.Unreachable | kube.ServerError | kube.TooManyRequests)
    return RetryDecision(retry=Retry.BACK_OFF, event=False, outage=outage)


REPORT_AFTER_S = 60.0
"""Seconds for which an error without an event, such as a conflict, must last before it is reported:
most of these errors end sooner by themselves."""


@dataclass(slots=True)
class _Cause:
    text: str
    since: float
    reported_at: float


class FailureReports(Generic[K]):
    """Rate limit of failure reports: decides whether a failure is reported.

    Args:
        repeat_s: minimum seconds between two reports about the same key with the same cause.
    """

    def __init__(self, *, repeat_s: float = REPEAT_WARNING_S) -> None:
        self._repeat_s = repeat_s
        self._causes: dict[K, _Cause] = {}

    def is_due(self, key: K, error: Exception, decision: RetryDecision, now: float) -> bool:
        """Record a failure; return whether to report it."""
        # Transient errors are compared by class: their text may contain the ID of a request.
        text = str(error) if decision.retry is Retry.SLOW else type(error).__name__
        cause = self._causes.get(key)
        if cause is None or cause.text != text:
            cause = self._causes[key] = _Cause(text, now, now - self._repeat_s)
        patience_s = 0.0 if decision.event else REPORT_AFTER_S
        if now < max(cause.since + patience_s, cause.reported_at + self._repeat_s):
            return False
        cause.reported_at = now
        return True

    def forget(self, key: K) -> None:
        """Forget the cause of a key that succeeded or was deleted."""
        self._causes.pop(key, None)

    def retain(self, keys: Collection[K]) -> None:
        """Keep only the causes of `keys`; other keys need no work any more."""
        for key in self._causes.keys() - set(keys):
            del self._causes[key]
