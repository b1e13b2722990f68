"""Client for one cloud: deadline, rate limit, metrics and normalized errors for every call.

Controllers hold a `CloudClient`, never the provider's own object. `swap` can replace the provider
while controllers run, because every call uses the current provider object.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

from ccm.base import drain, lease_guard, metrics
from ccm.base.clock import monotonic
from ccm.base.throttle import Limiter, Unlimited, client_go_limiter
from ccm.cloud import errors
from ccm.cloud.calls import responses
from ccm.cloud.calls.inflight import InflightCalls
from ccm.cloud.calls.responses import bind_method, carries_credentials, implementation_of
from ccm.cloud.interface import Cloud
from ccm.cloud.journal import MachineAccounts
from ccm.cloud.machines import MachineRequest
from ccm.cloud.operation import DECLARATIONS, ProviderCall

Args = TypeVarTuple("Args")
T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Callback with (operation, outcome) after each call."""

_CALLS = metrics.counter(
    "ccm_cloud_calls",
    "Calls to the cloud provider by operation and outcome.",
    ["provider", "operation", "outcome"],
)
_LATENCY = metrics.histogram(
    "ccm_cloud_call_duration_seconds",
    "Duration of calls to the cloud provider, without the wait for the rate limiter.",
    ["provider", "operation"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 300, 900),
)
_WAIT = metrics.histogram(
    "ccm_cloud_rate_limiter_duration_seconds",
    "Time that calls to the cloud provider waited for the rate limiter.",
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
    errors.Uninitialized: "uninitialized",
}
"""Error class -> value of the metric label `outcome`; any other error is `error`."""

# Errors that mean that the cloud is unreachable or rejects the provider's credentials.
_CONNECTION_ERRORS = (
    errors.Unavailable,
    errors.DeadlineExceeded,
    errors.Unauthenticated,
    errors.PermissionDenied,
)


Record = Callable[[object], Awaitable[None]]
"""Function that records the response of a call."""


async def unrecorded(_answer: object) -> None:
    """Record nothing."""


class CallRecorder(Protocol):
    """Recorder of the calls that may change cloud resources."""

    def recording(
        self, client: CloudClient, call: ProviderCall
    ) -> AbstractAsyncContextManager[Record]:
        """Return a context manager for a call that may change cloud resources.

        The caller makes the call inside the `async with` block, and awaits the yielded function
        with the response. If the block raises, the context manager gets the exception as the
        provider raised it, before the client normalizes it. Entering may raise a CloudError; then
        the call is not made.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailures:
    """A series of calls in which the cloud was unreachable or rejected the credentials.

    Attributes:
        calls: consecutive failed calls.
        error: the error of the last failed call.
    """

    calls: int
    error: errors.CloudError


@dataclass(slots=True, kw_only=True)
class _SharedState:
    """State that all views of a `CloudClient` share; see `CloudClient.with_observer`."""

    cloud: Cloud
    limiter: Limiter
    call_failures: CallFailures | None = None
    calls: InflightCalls = field(default_factory=InflightCalls)
    provider_session: int = 0
    confirmed: set[str] = field(default_factory=set)
    recorder: CallRecorder | None = None


class CloudClient:
    """Client for one cloud.

    Args:
        cloud: the object that the provider yielded.
        cluster_name: passed to `LoadBalancer` and `Routes`.
        deadline_s: deadline of every call in seconds; None = the provider's (`Limits.deadlines_s`),
            or else the default of the method (`operation`).
        limiter: rate limiter of all calls; None = as the provider declares in `Limits.rate`.
    """

    def __init__(
        self,
        cloud: Cloud,
        *,
        cluster_name: str = "kubernetes",
        deadline_s: float | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self.cluster_name = cluster_name
        self._forced_deadline_s = deadline_s
        self._forced_limiter = limiter
        self._provider = _SharedState(cloud=cloud, limiter=self._limiter_for(cloud))
        self._observers: tuple[Observer, ...] = ()
        self._seen: Callable[[Cloud], Cloud] = lambda cloud: cloud

    @property
    def cloud(self) -> Cloud:
        """The current provider object, only for its names and settings; never call its methods."""
        return self._seen(self._provider.cloud)

    @property
    def name(self) -> str:
        """The provider's name."""
        return self.cloud.name

    @property
    def call_failures(self) -> CallFailures | None:
        """The current series of failed calls; None if the last call had another outcome.

        Calls to the machine driver are not counted, because they carry their own credentials.
        """
        return self._provider.call_failures

    @property
    def provider_session(self) -> int:
        """Number of the provider session; changes with each `swap`.

        Two sessions may use different cloud accounts, so their responses must not be combined.
        """
        return self._provider.provider_session

    @property
    def confirmed(self) -> set[str]:
        """UIDs of nodes without provider ID for which the provider session found an instance."""
        return self._provider.confirmed

    @property
    def abandoned_calls(self) -> int:
        """Number of abandoned calls that still run."""
        return self._provider.calls.abandoned

    @property
    def abandoned_changes(self) -> int:
        """Number of abandoned calls that still run and may change cloud resources."""
        return self._provider.calls.abandoned_changes

    async def wait_for_calls(self, cloud: Cloud) -> None:
        """Wait until every call to a provider object, current or replaced, has ended."""
        await self._provider.calls.wait_for_calls(cloud)

    def offers(self, interface: type) -> bool:
        """Return whether the current provider implements an interface of `ccm.cloud`."""
        return implementation_of(self.cloud, interface) is not None

    def swap(self, cloud: Cloud) -> None:
        """Replace the provider object for later calls; calls in flight finish on the old object."""
        self._provider.cloud = cloud
        self._provider.limiter = self._limiter_for(cloud)
        self._provider.provider_session += 1
        self._provider.confirmed.clear()

    def set_recorder(self, recorder: CallRecorder | None) -> None:
        """Record the calls of this client and all its views from now on; None = record nothing."""
        self._provider.recorder = recorder

    def with_observer(self, observer: Observer) -> CloudClient:
        """Return a view of this client that reports each call made through it to `observer`."""
        view = copy.copy(self)
        vars(view)["_observers"] = (*self._observers, observer)
        return view

    def for_kubermatic(self) -> CloudClient:
        """Return a view of this client with the machine driver for Kubermatic's machines."""
        view = copy.copy(self)
        vars(view)["_seen"] = Cloud.with_kubermatic
        return view

    def compute(self, method: Callable[[Any, *Args], T], *args: *Args) -> T:
        """Call a synchronous method that does no I/O, and verify a text that it returns.

        Raises:
            CloudError: the method raised an exception, or its response is no text as promised.
        """
        try:
            response = bind_method(self.cloud, method)(*args)
            responses.verify_computed(method, response)
            return cast("T", response)
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            normalized = errors.normalize(error)
            # `normalize` may return a cause of `error`; `from error` would then form a cycle.
            raise normalized from normalized.__cause__

    def account_of(self, request: MachineRequest | None) -> str:
        """Return the account of a VM, or of load balancers (None); empty = unknown."""
        if request is None or not self.offers(MachineAccounts):
            return self.cloud.account
        try:
            return self.compute(MachineAccounts.machine_account, request)
        except errors.CloudError:
            return ""

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call a provider method, such as `Routes.list_routes`.

        The call is cancelled at its deadline and when its caller is cancelled.

        Raises:
            RetryAfter: the provider was replaced before a change started.
            Aborted, Unavailable: abandoned calls block this one; see `InflightCalls.admit`.
            CloudError: the normalized error of the provider; Unimplemented if the provider lacks
                the interface, Internal if the response has the wrong type, DeadlineExceeded after
                the deadline.
        """
        operation = self._operation(method, args)
        provider, name = self._provider, self.name
        provider.calls.admit(operation, provider.cloud)
        opening = provider.provider_session
        # While a call waits for the rate limiter, its deadline does not run, and it is not yet a
        # change in progress.
        _WAIT.labels(name, operation.verb).observe(await provider.limiter.acquire())
        if operation.change and provider.provider_session != opening:
            # The caller decided on data of the old session, perhaps of another cloud account.
            text = f"{operation.verb}: the provider was replaced before the call"
            raise errors.RetryAfter(text, seconds=0)
        cloud, started, outcome = provider.cloud, monotonic(), "canceled"
        ours = not carries_credentials(method)
        ask = partial(self._call_provider, cloud, operation, method)
        try:
            answer = await provider.calls.run(operation, cloud, ask)
            outcome = "success"
            self._record_outcome(None, own_credentials=ours)
        except errors.CloudError as error:
            outcome = _outcome(error)
            self._record_outcome(error, own_credentials=ours)
            raise
        else:
            return cast("T", answer)
        finally:
            _CALLS.labels(name, operation.verb, outcome).inc()
            _LATENCY.labels(name, operation.verb).observe(monotonic() - started)
            for observer in self._observers:
                observer(operation.verb, outcome)

    async def _call_provider(
        self, cloud: Cloud, operation: ProviderCall, method: Callable[..., Any]
    ) -> object:
        """Call the provider and verify its response."""
        ask = bind_method(self._seen(cloud), method)
        async with (
            drain.change(long=True) if operation.change else contextlib.nullcontext(),
            self._recording(operation) as record,
        ):
            # After the record, which may have waited.
            lease_guard.check_current_guard()
            answer = await ask(*operation.arguments.values())
            await responses.verify(method, answer)
            await record(answer)
        return answer

    def _recording(self, operation: ProviderCall) -> AbstractAsyncContextManager[Record]:
        recorder = self._provider.recorder
        if recorder is None or not operation.change:
            return contextlib.nullcontext(unrecorded)
        return recorder.recording(self, operation)

    def _operation(self, method: Callable[..., Any], args: tuple[object, ...]) -> ProviderCall:
        verb = method.__name__
        declared = DECLARATIONS[verb]
        arguments = dict(zip(declared.parameters, args, strict=True))
        own_s = self.cloud.limits.deadlines_s.get(verb, declared.deadline_s)
        return ProviderCall(
            verb=verb,
            subject=declared.subject(**arguments),
            arguments=arguments,
            deadline_s=own_s if self._forced_deadline_s is None else self._forced_deadline_s,
            change=declared.change,
        )

    def _record_outcome(self, error: errors.CloudError | None, *, own_credentials: bool) -> None:
        provider = self._provider
        if not own_credentials:
            return  # an error about a Machine's Secret says nothing about our own credentials
        if isinstance(error, _CONNECTION_ERRORS):
            before = provider.call_failures.calls if provider.call_failures else 0
            provider.call_failures = CallFailures(calls=before + 1, error=error)
        else:
            provider.call_failures = None

    def _limiter_for(self, cloud: Cloud) -> Limiter:
        if self._forced_limiter is not None:
            return self._forced_limiter
        rate = cloud.limits.rate
        return client_go_limiter(rate.qps, rate.burst) if rate else Unlimited()


def _outcome(error: errors.CloudError) -> str:
    for base in type(error).__mro__:
        if base in OUTCOMES:
            return OUTCOMES[base]
    return "error"
