"""A handle to a cloud that asks, and writes down what it would change.

Whether a call changes something is declared on the method itself. One that does is never handed
on: it is noted and taken for done. Were it handed on all the same, it would be refused right
before the provider. A question is put once: what the cloud answered, an error included, is what it
goes on answering, unless somebody wants to hear it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar, TypeVarTuple, cast, get_type_hints

from ccm.base.clock import monotonic
from ccm.cloud import errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests, Routes
from ccm.cloud.machines import (
    DeleteMachineResponse,
    ListMachinesRequest,
    MachineDriver,
    MachineInfo,
    MachineRequest,
)
from ccm.cloud.operation import Operation
from ccm.cloud.types import LoadBalancerRecord, Route
from ccm.model import Node, Service
from ccm.planning.timeloop import held

Args = TypeVarTuple("Args")
T = TypeVar("T")

NEVER_S = 1e9
"""When a Service is looked at again of which nobody can know what an ensure would answer."""

HARMLESS = (
    errors.NotFound,
    errors.Unimplemented,
    errors.ImplementedElsewhere,
    errors.RetryAfter,
    errors.InvalidArgument,
    errors.FailedPrecondition,
)
"""Answers, as the controllers take them; any other error leaves open what the daemon would do."""


KNOWN: Mapping[str, object] = {
    MachineDriver.initialize_machine.__name__: MachineInfo(),
    MachineDriver.delete_machine.__name__: DeleteMachineResponse(),
}
"""Changes of which everybody knows what the cloud answers in the end."""


class ChangeRefused(errors.Internal):
    """A change was about to reach the provider. A defect of ours; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudChange:
    """A call that would change something in the cloud.

    Attributes:
        verb: the method.
        arguments: what it would be called with, by the names of the parameters.
        at_s: when, by the monotonic clock.
        listed: whether the cloud lists what it is about; None: it lists nothing.
        adopted: whether that was there before, and a removal releases it.
    """

    verb: str
    arguments: Mapping[str, Any]
    at_s: float
    listed: bool | None = None
    adopted: bool = False


class Pending:
    """Questions, and how long ago the last of them was answered."""

    def __init__(self) -> None:
        self._open = 0
        self._last_at = monotonic()

    @contextmanager
    def put(self) -> Iterator[None]:
        """One is put, and answered at the end."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last_at = monotonic()

    @property
    def rested_s(self) -> float:
        """Seconds since the last answer, or the beginning; 0 while one is awaited."""
        return 0.0 if self._open else monotonic() - self._last_at


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What would be changed, and which questions were not answered.

    Attributes:
        changes: in the order of the calls.
        failures: the method, and what it was about -> why there was no answer.
        remembers: whether a question is put once; else each is put whenever a controller asks.
        questions: those that were put to the cloud.
        new: those of them about something about which nothing had been asked.
    """

    changes: list[CloudChange] = field(default_factory=list)
    failures: dict[tuple[str, str], errors.CloudError] = field(default_factory=dict)
    remembers: bool = True
    questions: Pending = field(default_factory=Pending)
    new: Pending = field(default_factory=Pending)


class AskingHandle(Handle):
    """The handle.

    Args:
        cloud, options: see `Handle`.
        ledger: where changes and failures are noted.
    """

    def __init__(self, cloud: Cloud, *, ledger: Ledger, **options: Any) -> None:
        super().__init__(cloud, **options)
        self._ledger = ledger
        self._answers: dict[tuple[object, ...], object] = {}
        self._subjects: set[tuple[object, ...]] = set()
        self._heard = 0
        self._silence: errors.DeadlineExceeded | None = None

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Ask, or note a change; see `Handle.call`.

        Raises:
            RetryAfter: nobody knows what this change would answer.
            CloudError: see `Handle.call`.
        """
        operation = self._operation(method, args)
        if operation.change:
            await self._noted(operation)
            if operation.verb in KNOWN:
                return cast("T", KNOWN[operation.verb])
            if get_type_hints(method)["return"] is not NoneType:
                raise errors.RetryAfter("nobody knows what it would answer", seconds=NEVER_S)
            return cast("T", None)
        answer = await self._asked(operation, method, args)
        if operation.verb == Routes.list_routes.__name__:
            answer = self._after_changes(cast("Sequence[Route]", answer))
        return cast("T", answer)

    async def _ask(self, cloud: Cloud, operation: Operation, method: Callable[..., Any]) -> object:
        """The last wall before the provider."""
        if operation.change:
            raise ChangeRefused(f"{operation.verb} is not called: this program only looks")
        return await super()._ask(cloud, operation, method)

    async def _asked(
        self, operation: Operation, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> object:
        key = (operation.verb, *map(_mark, args))
        if not self._ledger.remembers or key not in self._answers:
            is_new = key[1:] not in self._subjects
            self._subjects.add(key[1:])
            with self._ledger.questions.put(), self._ledger.new.put() if is_new else nullcontext():
                self._answers[key] = await self._answer(operation, method, args)
        answer = self._answers[key]
        if isinstance(answer, errors.CloudError):
            raise answer.with_traceback(None)
        return answer

    async def _answer(
        self, operation: Operation, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> object:
        """The cloud's answer now; an error is a value. A silent cloud is not asked again."""
        about = (operation.verb, " ".join(filter(None, map(_name, args))))
        self._ledger.failures.pop(about, None)
        heard, answer = self._heard, cast("object", self._silence)
        try:
            if self._silence is None:
                # Its turn at the rate limit is waited for as well.
                with held():
                    answer = await super().call(method, *args)
        except errors.CloudError as error:
            answer = error
        if not isinstance(answer, errors.DeadlineExceeded):
            self._heard += 1
        elif self._heard == heard and self._silence is None:
            # Nothing came for a whole deadline, of this question or of another: who goes on asking
            # waits once for each question.
            self._silence = errors.DeadlineExceeded(f"not asked after another got: {answer}")
        if isinstance(answer, errors.CloudError) and not isinstance(answer, HARMLESS):
            self._ledger.failures[about] = answer
        return answer

    async def _noted(self, operation: Operation) -> None:
        service, at_s = operation.arguments.get("service"), monotonic()
        found = await self._listed(service) if isinstance(service, Service) else None
        self._ledger.changes.append(
            CloudChange(
                verb=operation.verb,
                arguments=operation.arguments,
                at_s=at_s,
                listed=None if found is None else bool(found),
                adopted=any(record.adopted for record in found or ()),
            )
        )

    async def _listed(self, service: Service) -> Sequence[LoadBalancerRecord] | None:
        """The load balancer that the cloud lists for a Service; None: nobody knows."""
        if not self.offers(LoadBalancerDigests):
            return None
        cluster = self.cluster_name
        try:
            name = self.compute(LoadBalancer.get_load_balancer_name, cluster, service)
            listing = await self.call(LoadBalancerDigests.list_load_balancers, cluster)
        except errors.CloudError:
            return None
        return [record for record in listing if record.name == name]

    def _after_changes(self, listed: Sequence[Route]) -> Sequence[Route]:
        """The routes as they would be by now."""
        found = list(listed)
        for change in self._ledger.changes:
            if change.verb == Routes.create_route.__name__:
                found.append(change.arguments["route"])
            elif change.verb == Routes.delete_route.__name__ and change.arguments["route"] in found:
                found.remove(change.arguments["route"])
        return found


def _mark(argument: object) -> object:
    """What tells questions apart."""
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
    return argument


def _name(argument: object) -> str:
    """What a question is about, for people."""
    if isinstance(argument, MachineRequest):
        return argument.identity.name
    if isinstance(argument, ListMachinesRequest):
        return argument.pool
    return argument.key if isinstance(argument, Node | Service) else ""
