"""Wraps any provider once: deadline, rate limit, metrics and error normalising per call.

Controllers hold a `Guarded`, never the provider's own object. The provider behind it can
be exchanged with `swap` while controllers run, because every call looks it up anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ccm.base import metrics
from ccm.base.clock import SYSTEM, Clock
from ccm.base.throttle import Limiter, Unlimited, bucket
from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.underway import Call, UnderWay

T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Told (operation, outcome) after each call."""

READ_DEADLINE_S = 60.0
"""Default deadline of a call that only asks."""

DEADLINES_S: Mapping[str, float] = {
    "ensure_load_balancer": 900.0,
    "update_load_balancer": 900.0,
    "ensure_load_balancer_deleted": 900.0,
    "list_routes": 300.0,
    "create_route": 300.0,
    "delete_route": 300.0,
    # A listing is many requests under one call.
    "list_instances": 300.0,
    "list_load_balancers": 300.0,
}
"""Deadlines of the calls that change things or take long; all others: `READ_DEADLINE_S`."""

_CALLS = metrics.counter(
    "ccm_cloud_calls",
    "Calls to the cloud provider by operation and outcome.",
    ["provider", "operation", "outcome"],
)
_LATENCY = metrics.histogram(
    "ccm_cloud_call_duration_seconds",
    "Time a call to the cloud provider took, without waiting for the rate limit.",
    ["provider", "operation"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 300, 900),
)
_WAIT = metrics.histogram(
    "ccm_cloud_rate_limiter_duration_seconds",
    "Time a call to the cloud provider waited for the rate limit.",
    ["provider", "operation"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
)

OUTCOMES: Mapping[type[errors.CloudError], str] = {
    errors.NotFound: "not_found",
    errors.Unimplemented: "not_implemented",
    errors.ImplementedElsewhere: "implemented_elsewhere",
    errors.RetryAfter: "retry_after",
    errors.DeadlineExceeded: "deadline_exceeded",
    errors.ResourceExhausted: "resource_exhausted",
    errors.Unauthenticated: "unauthenticated",
    errors.PermissionDenied: "permission_denied",
    errors.Unavailable: "unavailable",
}
"""Error class -> value of the metric label `outcome`; any other error is `error`."""

_TROUBLES = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Unauthenticated,
    errors.PermissionDenied,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The cloud cannot be reached, or refuses us: so many calls in a row, the last so."""

    calls: int
    error: errors.CloudError


class Guarded:
    """The controllers' handle to one cloud.

    Args:
        cloud: what the provider yielded.
        deadline_s: of every call, in place of the provider's own and of the defaults.
        limiter: overrides the rate that the provider declares.
        clock: where time comes from.
    """

    def __init__(
        self,
        cloud: Cloud,
        *,
        deadline_s: float | None = None,
        limiter: Limiter | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._cloud = cloud
        self._forced_deadline_s = deadline_s
        self._forced_limiter = limiter
        self._clock = clock
        self._limiter = self._limiter_for(cloud)
        self._calls = UnderWay()
        self._trouble: Trouble | None = None

    @property
    def trouble(self) -> Trouble | None:
        """What keeps calls from being answered; None since the last answer of the cloud."""
        return self._trouble

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now; ask it for names and capabilities, never call it."""
        return self._cloud

    @property
    def abandoned_calls(self) -> int:
        """How many calls did not end when they were cancelled, and still run."""
        return self._calls.abandoned

    def swap(self, cloud: Cloud) -> None:
        """Use another provider object from the next call on; calls under way finish."""
        self._cloud = cloud
        self._limiter = self._limiter_for(cloud)

    def calls_under_way(self, cloud: Cloud) -> int:
        """How many calls to a provider object, perhaps one swapped out, have not ended yet."""
        return self._calls.count(cloud)

    async def call(
        self,
        operation: str,
        invoke: Callable[[Cloud], Awaitable[T]],
        *,
        subject: str = "",
        observer: Observer | None = None,
    ) -> T:
        """Make one call under all protections; it ends at its deadline, or with its caller.

        Args:
            operation: the method of the interface.
            invoke: makes the call.
            subject: what it is about, if calls about that must not overlap; see `underway`.
            observer: told about it.

        Raises:
            CloudError: what the provider raised, normalised; DeadlineExceeded when it took
                too long.
        """
        self._calls.admit(self._cloud, operation, subject)
        provider = self._cloud.name
        _WAIT.labels(provider, operation).observe(await self._limiter.acquire())
        started = self._clock.monotonic()
        call = Call(
            operation=operation,
            cloud=self._cloud,
            invoke=invoke,
            deadline_s=self._deadline_s(operation),
            subject=subject,
        )
        outcome = "canceled"
        try:
            result = await self._calls.run(call)
            outcome = "success"
            self._trouble = None
        except errors.CloudError as error:
            outcome = _outcome(error)
            self._note(error)
            raise
        else:
            return result
        finally:
            _CALLS.labels(provider, operation, outcome).inc()
            _LATENCY.labels(provider, operation).observe(self._clock.monotonic() - started)
            if observer is not None:
                observer(operation, outcome)

    def _note(self, error: errors.CloudError) -> None:
        if isinstance(error, _TROUBLES):
            before = self._trouble.calls if self._trouble else 0
            self._trouble = Trouble(calls=before + 1, error=error)
        else:
            self._trouble = None

    def _deadline_s(self, operation: str) -> float:
        if self._forced_deadline_s is not None:
            return self._forced_deadline_s
        own = self._cloud.limits.deadlines_s.get(operation)
        return DEADLINES_S.get(operation, READ_DEADLINE_S) if own is None else own

    def _limiter_for(self, cloud: Cloud) -> Limiter:
        if self._forced_limiter is not None:
            return self._forced_limiter
        rate = cloud.limits.rate
        return bucket(rate.qps, rate.burst, self._clock) if rate else Unlimited()


def _outcome(error: errors.CloudError) -> str:
    for base in type(error).__mro__:
        if base in OUTCOMES:
            return OUTCOMES[base]
    return "error"
