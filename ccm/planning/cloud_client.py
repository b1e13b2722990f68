"""Cloud client of the forecast: sends queries, and records changes instead of sending them.

Each method of a provider declares whether it changes something. A call of a changing method is
recorded and not sent. It counts as successful if the method has no result or a known one; otherwise
it raises RetryAfter. A second guard in front of the provider refuses such a call. Answers to
queries are cached, errors included, unless `Ledger.caches_answers` is off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar, TypeVarTuple, cast, get_type_hints

from ccm.base.clock import monotonic
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests, Routes
from ccm.cloud.machines import (
    CreationCheck,
    DeleteMachineResponse,
    ListMachinesRequest,
    MachineDriver,
    MachineInfo,
    MachineRequest,
)
from ccm.cloud.operation import ProviderCall
from ccm.cloud.types import LoadBalancerRecord, Route
from ccm.model import Node, Service
from ccm.planning.timeloop import real_time

Args = TypeVarTuple("Args")
T = TypeVar("T")

UNKNOWN_RESULT_DELAY_S = 1e9
"""Requeue delay in seconds after a change with an unknown result: longer than any forecast."""

ANSWER_ERRORS = (
    errors.NotFound,
    errors.Unimplemented,
    errors.ImplementedElsewhere,
    errors.RetryAfter,
    errors.InvalidArgument,
    errors.FailedPrecondition,
)
"""Errors that are answers to a query; after any other error the forecast is incomplete."""


KNOWN_RESULTS: Mapping[str, object] = {
    MachineDriver.initialize_machine.__name__: MachineInfo(),
    MachineDriver.delete_machine.__name__: DeleteMachineResponse(),
}
"""Name of a changing method -> its result, for methods whose result is known in advance."""


class ChangeRefused(errors.Internal):
    """A change was about to reach the provider, which is a bug of this program.

    Nothing was changed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudChange:
    """Recorded call that would change something in the cloud.

    Attributes:
        verb: name of the method.
        arguments: arguments of the call, by parameter name.
        at_s: time of the call on the monotonic clock.
        listed: whether the cloud lists the Service's load balancer; None: unknown, or the call is
            not about a load balancer.
        adopted: whether the load balancer existed before the Service, so that the provider keeps
            the load balancer when the Service is deleted.
    """

    verb: str
    arguments: Mapping[str, Any]
    at_s: float
    listed: bool | None = None
    adopted: bool = False


class PendingQueries:
    """Number of pending queries, and the time of the last answer."""

    def __init__(self) -> None:
        self._open = 0
        self._last_at = monotonic()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a query as pending while the block runs."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last_at = monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer, or since the start; 0 while a query is pending."""
        return 0.0 if self._open else monotonic() - self._last_at


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Recorded changes and failed queries.

    Attributes:
        changes: recorded calls, in their order.
        failures: (name of the method, names of the queried objects) -> error.
        refused: UID of a machine -> error with which the driver would refuse to create its VM.
        caches_answers: whether answers are reused; else each query is sent to the cloud.
        queries: counts all queries sent to the cloud.
        first_queries: counts only the first query about each object.
    """

    changes: list[CloudChange] = field(default_factory=list)
    failures: dict[tuple[str, str], errors.CloudError] = field(default_factory=dict)
    refused: dict[str, errors.CloudError] = field(default_factory=dict)
    caches_answers: bool = True
    queries: PendingQueries = field(default_factory=PendingQueries)
    first_queries: PendingQueries = field(default_factory=PendingQueries)


class RecordingCloudClient(CloudClient):
    """Cloud client that records changes in a ledger.

    Args:
        cloud, options: see `CloudClient`.
        ledger: receives the changes and the failures, and counts the pending queries.
    """

    def __init__(self, cloud: Cloud, *, ledger: Ledger, **options: Any) -> None:
        super().__init__(cloud, **options)
        self._ledger = ledger
        self._answers: dict[tuple[object, ...], object] = {}
        self._subjects: set[tuple[object, ...]] = set()
        self._answer_count = 0
        self._timeout_error: errors.DeadlineExceeded | None = None

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Send a query, or record a change; see `CloudClient.call`.

        Raises:
            RetryAfter: the change is recorded, and its result cannot be predicted.
            CloudError: the query failed (see `CloudClient.call`), or the driver would refuse the
                creation of a VM, which is then not recorded.
        """
        operation = self._operation(method, args)
        if operation.change:
            if operation.verb == MachineDriver.create_machine.__name__:
                await self._check_creation(cast("MachineRequest", operation.arguments["req"]))
            await self._record_change(operation)
            if operation.verb in KNOWN_RESULTS:
                return cast("T", KNOWN_RESULTS[operation.verb])
            if get_type_hints(method)["return"] is not NoneType:
                raise errors.RetryAfter(
                    "the result of this change cannot be predicted", seconds=UNKNOWN_RESULT_DELAY_S
                )
            return cast("T", None)
        answer = await self._query(operation, method, args)
        if operation.verb == Routes.list_routes.__name__:
            answer = self._after_changes(cast("Sequence[Route]", answer))
        return cast("T", answer)

    async def _call_provider(
        self, cloud: Cloud, operation: ProviderCall, method: Callable[..., Any]
    ) -> object:
        """Call the provider for a query; refuse a change (second guard).

        Raises:
            ChangeRefused: the operation is a change.
        """
        if operation.change:
            raise ChangeRefused(f"{operation.verb}: refused; a forecast makes no changes")
        return await super()._call_provider(cloud, operation, method)

    async def _query(
        self, operation: ProviderCall, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> object:
        key = (operation.verb, *map(_cache_key, args))
        if not self._ledger.caches_answers or key not in self._answers:
            is_new = key[1:] not in self._subjects
            self._subjects.add(key[1:])
            with (
                self._ledger.queries.track(),
                self._ledger.first_queries.track() if is_new else nullcontext(),
            ):
                self._answers[key] = await self._answer(operation, method, args)
        answer = self._answers[key]
        if isinstance(answer, errors.CloudError):
            raise answer.with_traceback(None)
        return answer

    async def _answer(
        self, operation: ProviderCall, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> object:
        """Return the cloud's answer or its error.

        If a query times out, and no other query was answered in the meantime, no more queries are
        sent.
        """
        query = (operation.verb, " ".join(filter(None, map(_subject_name, args))))
        self._ledger.failures.pop(query, None)
        answers_before, answer = self._answer_count, cast("object", self._timeout_error)
        try:
            if self._timeout_error is None:
                # Real time passes during the call, and during the wait for the rate limiter.
                with real_time():
                    answer = await super().call(method, *args)
        except errors.CloudError as error:
            answer = error
        if not isinstance(answer, errors.DeadlineExceeded):
            self._answer_count += 1
        elif self._answer_count == answers_before and self._timeout_error is None:
            # No query was answered while this query waited until its deadline. Further queries
            # would wait just as long, so none are sent.
            self._timeout_error = errors.DeadlineExceeded(f"skipped after a timeout: {answer}")
        if isinstance(answer, errors.CloudError) and not isinstance(answer, ANSWER_ERRORS):
            self._ledger.failures[query] = answer
        return answer

    async def _check_creation(self, request: MachineRequest) -> None:
        """Raise CloudError if the driver would refuse to create a VM."""
        if not self.offers(CreationCheck):
            return
        self._ledger.refused.pop(request.identity.uid, None)
        try:
            await self.call(CreationCheck.check_creation, request)
        except ANSWER_ERRORS as error:
            self._ledger.refused[request.identity.uid] = error
            raise

    async def _record_change(self, operation: ProviderCall) -> None:
        service, at_s = operation.arguments.get("service"), monotonic()
        records = await self._listed(service) if isinstance(service, Service) else None
        self._ledger.changes.append(
            CloudChange(
                verb=operation.verb,
                arguments=operation.arguments,
                at_s=at_s,
                listed=None if records is None else bool(records),
                adopted=any(record.adopted for record in records or ()),
            )
        )

    async def _listed(self, service: Service) -> Sequence[LoadBalancerRecord] | None:
        """Return the load balancers that the cloud lists for a Service; None: unknown."""
        if not self.offers(LoadBalancerDigests):
            return None
        cluster = self.cluster_name
        try:
            # In this order: a provider may know from its listing that a load balancer was renamed.
            listing = await self.call(LoadBalancerDigests.list_load_balancers, cluster)
            name = self.compute(LoadBalancer.get_load_balancer_name, cluster, service)
        except errors.CloudError:
            return None
        return [record for record in listing if record.name == name]

    def _after_changes(self, listed: Sequence[Route]) -> Sequence[Route]:
        """Apply the recorded route changes to the listed routes."""
        routes = list(listed)
        for change in self._ledger.changes:
            if change.verb == Routes.create_route.__name__:
                routes.append(change.arguments["route"])
            elif (
                change.verb == Routes.delete_route.__name__ and change.arguments["route"] in routes
            ):
                routes.remove(change.arguments["route"])
        return routes


def _cache_key(argument: object) -> object:
    """Return the part of a query's cache key for one argument."""
    if isinstance(argument, Node):
        return (argument.name, argument.uid, argument.provider_id)
    if isinstance(argument, Service):
        return (argument.key, argument.uid, argument.resource_version)
    if isinstance(argument, MachineRequest):
        return (argument.identity, argument.provider_id, argument.credentials.digest)
    if isinstance(argument, ListMachinesRequest):
        return (argument.pool, repr(argument.provider_spec), argument.credentials.digest)
    if isinstance(argument, Mapping):
        return repr(argument)
    if isinstance(argument, list):
        return tuple(map(_cache_key, argument))
    return argument


def _subject_name(argument: object) -> str:
    """Return the name of the object that an argument is about, for messages; empty = none."""
    if isinstance(argument, MachineRequest):
        return argument.identity.name
    if isinstance(argument, ListMachinesRequest):
        return argument.pool
    return argument.key if isinstance(argument, Node | Service) else ""
