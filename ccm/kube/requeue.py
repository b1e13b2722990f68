"""How long a key waits before its next try, when its work asked for another.

A policy is told of each failure and answers with a delay; `PerItem` of `ccm.base.backoff`
is one. The default of the work queue is client-go's: the longer of an exponential delay
per key and a token bucket that all keys of the queue share. A controller with other
habits passes another policy.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from ccm.base.backoff import Exponential, PerItem
from ccm.base.clock import SYSTEM, Clock

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

DEFAULT_BACKOFF = Exponential(base_s=0.005, factor=2.0, cap_s=1000.0)
"""5 ms doubled with each failure, up to 1000 s (client-go, default controller limiter)."""

DEFAULT_QPS = 10.0
DEFAULT_BURST = 100
"""The bucket that all keys of a queue share (client-go, default controller limiter)."""


class Policy(Protocol[K_contra]):
    """Counts failures per key and turns them into delays."""

    def next_delay(self, key: K_contra) -> float:
        """Record a failure and return the seconds to wait before the next try."""
        ...

    def forget(self, key: K_contra) -> None:
        """The key is fine again, or given up: start counting anew."""
        ...

    def failures(self, key: K_contra) -> int:
        """Failures recorded since the key was last forgotten."""
        ...


class SharedBucket(Generic[K]):
    """A token bucket that hands out turns in the future instead of making callers wait.

    It starts full; a caller that finds it empty takes the next token that will come.
    """

    def __init__(self, *, qps: float, burst: int, clock: Clock = SYSTEM) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._updated = clock.monotonic()

    def next_delay(self, key: K) -> float:  # noqa: ARG002 - all keys share the bucket
        """Take a token and return the seconds until it is there."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._qps)
        self._updated = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)

    def forget(self, key: K) -> None:
        """Nothing to forget."""

    def failures(self, key: K) -> int:  # noqa: ARG002 - not counted
        """Always zero: a bucket does not count per key."""
        return 0


class Longest(Generic[K]):
    """The longest delay of several policies, each of which is told of every failure."""

    def __init__(self, *policies: Policy[K]) -> None:
        self._policies = policies

    def next_delay(self, key: K) -> float:
        """Record a failure everywhere and return the longest delay."""
        return max(policy.next_delay(key) for policy in self._policies)

    def forget(self, key: K) -> None:
        """Start counting anew everywhere."""
        for policy in self._policies:
            policy.forget(key)

    def failures(self, key: K) -> int:
        """The highest count of all policies."""
        return max(policy.failures(key) for policy in self._policies)


def default_policy(*, clock: Clock = SYSTEM) -> Policy[K]:
    """client-go's default for controllers."""
    return Longest(
        PerItem(policy=DEFAULT_BACKOFF),
        SharedBucket(qps=DEFAULT_QPS, burst=DEFAULT_BURST, clock=clock),
    )
