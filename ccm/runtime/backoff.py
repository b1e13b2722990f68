"""When work that failed is tried again, and whether its failure is worth a warning. No waiting.

The policy of cloud errors is the table in `ccm.cloud.errors`; errors of the API server
follow the same kinds. Keys that an outage of the other side stopped return together, as
soon as one of them succeeds, instead of waiting out a back-off each. A new cause is reported, and
one that lasts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ccm.base.backoff import Exponential, jittered
from ccm.base.log import REPEAT_S
from ccm.base.throttle import Bucket
from ccm.cloud import errors as cloud
from ccm.cloud.errors import Retry
from ccm.kube import errors as kube

K = TypeVar("K", bound=Hashable)

DEFAULT = Exponential(base_s=0.005, cap_s=1000.0)
"""5 ms doubled with each failure, up to 1000 s (client-go, default controller limiter)."""

DEFAULT_QPS = 10.0
DEFAULT_BURST = 100
"""The bucket that all keys of a controller share (client-go, default controller limiter)."""

LONG = Exponential(base_s=30.0, cap_s=600.0)
"""Delays of `Retry.LONG`: credentials and quotas are changed by people."""

LEAST_AFTER_S = 1.0
"""Shortest delay of `Retry.AFTER`: "at once", said again and again, would spin."""

BUSY_SHARE = 0.2
"""A cloud that stays busy is left alone for this share of the time it has been busy, so that work
of minutes ends at most so much later than its provider's own delays would notice."""

AFTER_JITTER = 0.2
"""Whoever is told when to come back comes up to this part later: many are told the same."""

SLOW_S = 600.0
"""Delay of `Retry.SLOW`; a change of the object comes earlier."""

EAGER = Exponential(base_s=1.0, cap_s=60.0)
"""Delays of `Retry.SLOW` for what is new, and may be refused only because it is."""

FIRST_TRIES = 8
"""So many retries of an item do not wait for those of items that failed more often."""

WAKE_PAUSE_S = 2.0
"""Shortest time between two wake-ups of the keys that an outage had stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """What follows from an error.

    Attributes:
        retry: the kind of delay.
        after_s: seconds until the next try, where the error says so.
        event: whether people should get a Warning event.
        report: whether the cause is new for the object, or has lasted, so that a line is due; set
            by the controller.
        eager: `Retry.SLOW` comes sooner, because the object is new.
        outage: the other side was unreachable or overloaded, which passes for all keys at
            once.
        defect: the error is one nobody foresaw: a defect of ours.
    """

    retry: Retry
    after_s: float | None = None
    event: bool = True
    report: bool = False
    eager: bool = False
    outage: bool = False
    defect: bool = False

    def delay_s(self, failures: int) -> float | None:
        """Seconds until the next try after `failures` earlier ones; None = the back-off says."""
        if self.retry is Retry.AFTER and self.after_s is not None:
            return max(self.after_s, LEAST_AFTER_S)
        if self.retry is Retry.LONG:
            return LONG.even_delay(failures)
        if self.retry is Retry.SLOW:
            return EAGER.even_delay(failures) if self.eager else SLOW_S
        return None


def classify(error: Exception) -> RetryDecision:
    """What follows from an error of a reconcile."""
    if isinstance(error, cloud.CloudError):
        retry = cloud.policy_for(error)
        after_s = error.seconds if isinstance(error, cloud.RetryAfter) else None
        # Refused credentials stop every key alike, and one success means all may go on.
        passing = cloud.Unavailable | cloud.DeadlineExceeded | cloud.Unauthenticated
        outage = isinstance(error, passing)
        return RetryDecision(retry=retry, after_s=after_s, event=retry.event, outage=outage)
    if isinstance(error, kube.KubeError):
        return _of_api_server(error)
    return RetryDecision(retry=Retry.BACK_OFF, defect=True)


class FairTurns:
    """Token buckets that many items share: few failures go before many.

    An item takes a token from the bucket of its number of failures and of all higher numbers,
    and waits for the first alone. So each bucket counts what those before it take, and in the
    long run no more tokens are handed out than one bucket has.

    Args:
        qps: tokens per second.
        burst: size of the buckets.
    """

    def __init__(self, *, qps: float, burst: float) -> None:
        self._buckets = [Bucket(qps=qps, burst=burst) for _ in range(FIRST_TRIES + 1)]

    def reserve(self, failures: int, now: float) -> float:
        """Take a token, of those to come if need be; the seconds until it is there."""
        own, *later = self._buckets[min(failures, FIRST_TRIES) :]
        for bucket in later:
            bucket.reserve(now)
        return own.reserve(now)


class ItemBackoff(Generic[K]):
    """How often in a row each item failed, and until when it is left alone.

    Args:
        policy: delays where the error says nothing more special.
        rng: jitter.
        turns: shared by all items: a back-off lasts at least until it has a token.
    """

    def __init__(
        self,
        policy: Exponential = DEFAULT,
        *,
        rng: random.Random | None = None,
        turns: FairTurns | None = None,
    ) -> None:
        self._policy = policy
        self._rng = rng or random.Random()
        self._turns = turns
        self._failures: dict[K, int] = {}
        self._until: dict[K, float] = {}
        self._busy_since: dict[K, float] = {}
        self._outage: set[K] = set()
        self._woken_at = -math.inf

    def __len__(self) -> int:
        """Items whose last try failed."""
        return len(self._failures)

    @property
    def in_outage(self) -> bool:
        """Whether an outage stopped some item that has not been tried since."""
        return bool(self._outage)

    def failed(self, key: K, decision: RetryDecision, now: float) -> float:
        """Record a failure; the seconds until the next try."""
        if decision.outage:
            self._outage.add(key)
        else:
            self._outage.discard(key)
        seconds = decision.delay_s(self._failures.get(key, 0))
        if decision.retry is Retry.AFTER and seconds is not None:
            busy_s = now - self._busy_since.setdefault(key, now)
            seconds = max(seconds, min(busy_s * BUSY_SHARE, self._policy.cap_s))
            seconds = jittered(seconds, AFTER_JITTER, self._rng)
        else:
            self._busy_since.pop(key, None)
        return self._pause(key, seconds, now)

    def postponed(self, key: K, now: float) -> float:
        """The item is not ready, which is no fault; the seconds until the next try."""
        self._busy_since.pop(key, None)
        return self._pause(key, None, now)

    def recovered(self, key: K, now: float) -> Sequence[K]:
        """The other side answered about an item; others whose pause that ended."""
        if key not in self._outage:
            return ()
        self._outage.discard(key)
        return self.end_outage(now)

    def end_outage(self, now: float) -> Sequence[K]:
        """The other side answers again: end the pauses of its outage; whose they were.

        Not more often than every `WAKE_PAUSE_S`: one that half works would be stormed.
        """
        if now - self._woken_at < WAKE_PAUSE_S:
            return ()
        if self._outage:
            self._woken_at = now
        # They stay marked until tried: most, not all, will find the outage over.
        for key in self._outage:
            self._failures.pop(key, None)
            self._until.pop(key, None)
        return sorted(self._outage, key=str)

    def release(self) -> Sequence[K]:
        """End all pauses, because what they waited for is another now; whose they were."""
        waiting = sorted(self._until, key=str)
        self.keep(())
        return waiting

    def forget(self, key: K) -> None:
        """Start counting anew: the item is fine, changed or gone."""
        self._failures.pop(key, None)
        self._until.pop(key, None)
        self._busy_since.pop(key, None)
        self._outage.discard(key)

    def busy_s(self, key: K, now: float) -> float:
        """Seconds since the first `Retry.AFTER` of those in a row; 0 = the last was another."""
        return now - self._busy_since.get(key, now)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all others: nothing is to be done about them any more."""
        wanted = set(keys)
        for key in (self._failures.keys() | self._outage) - wanted:
            self.forget(key)

    def failures(self, key: K) -> int:
        """Failures in a row of one item."""
        return self._failures.get(key, 0)

    def waits(self, key: K, now: float) -> bool:
        """Whether an item is to be left alone now."""
        return self._until.get(key, now) > now

    def until(self, key: K) -> float | None:
        """When its pause ends, or ended; None: its last try did not fail."""
        return self._until.get(key)

    def first_end(self, now: float) -> float:
        """When the first of the pauses that last ends; infinity when there is none."""
        return min((until for until in self._until.values() if until > now), default=math.inf)

    def _pause(self, key: K, seconds: float | None, now: float) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if seconds is None:
            seconds = self._policy.delay(failures, self._rng)
            if self._turns is not None:
                seconds = max(seconds, self._turns.reserve(failures, now))
        self._until[key] = now + seconds
        return seconds


def default_backoff(
    *, cap_s: float = DEFAULT.cap_s, rng: random.Random | None = None
) -> ItemBackoff[str]:
    """client-go's default for controllers: `DEFAULT`, and a bucket that all keys share."""
    policy = Exponential(base_s=DEFAULT.base_s, cap_s=cap_s)
    return ItemBackoff(policy, rng=rng, turns=FairTurns(qps=DEFAULT_QPS, burst=DEFAULT_BURST))


def _of_api_server(error: kube.KubeError) -> RetryDecision:
    if isinstance(error, kube.Invalid):
        return RetryDecision(retry=Retry.SLOW)
    if isinstance(error, kube.Forbidden):
        # A starting API server refuses what it will allow once it has read its roles, so the
        # first tries come soon; where a right is really missing, they become rare.
        return RetryDecision(retry=Retry.BACK_OFF)
    if isinstance(error, kube.TooManyRequests) and error.retry_after is not None:
        return RetryDecision(retry=Retry.AFTER, after_s=error.retry_after, event=False)
    # A conflict or an API server in trouble is nobody's mistake: no event about the object.
    outage = isinstance(error, kube.Unreachable | kube.ServerError | kube.TooManyRequests)
    return RetryDecision(retry=Retry.BACK_OFF, event=False, outage=outage)


PATIENCE_S = 60.0
"""Age at which an error without an event is worth a warning: a busy cloud, a conflict."""


@dataclass(slots=True)
class _Cause:
    text: str
    since: float
    reported_at: float


class FailureReports(Generic[K]):
    """Decides for each failure whether it is reported.

    Args:
        repeat_s: shortest time between two reports with one cause about one key.
    """

    def __init__(self, *, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._causes: dict[K, _Cause] = {}

    def is_due(self, key: K, error: Exception, decision: RetryDecision, now: float) -> bool:
        """Record a failure; return whether to report it."""
        # Passing trouble is known by its class: its text may carry a request ID of each attempt.
        text = str(error) if decision.retry is Retry.SLOW else type(error).__name__
        cause = self._causes.get(key)
        if cause is None or cause.text != text:
            cause = self._causes[key] = _Cause(text, now, now - self._repeat_s)
        patience_s = 0.0 if decision.event else PATIENCE_S
        if now < max(cause.since + patience_s, cause.reported_at + self._repeat_s):
            return False
        cause.reported_at = now
        return True

    def forget(self, key: K) -> None:
        """Forget the cause: the key succeeded or is gone."""
        self._causes.pop(key, None)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all other keys: nothing is to be done about them any more."""
        for key in self._causes.keys() - set(keys):
            del self._causes[key]
