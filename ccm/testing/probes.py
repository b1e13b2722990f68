"""Calls of the provider contract to each interface, and checks for leaked tasks and resources."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast, runtime_checkable

import pytest

from ccm.cloud import errors
from ccm.cloud.calls import responses
from ccm.cloud.errors import CloudError, Unimplemented
from ccm.cloud.helpers import is_foreign
from ccm.cloud.interface import (
    Cloud,
    Instances,
    InstanceStates,
    InstancesV2,
    Inventory,
    LoadBalancer,
    LoadBalancerDigests,
    Routes,
    Zones,
)
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.operation import DECLARATIONS
from ccm.cloud.types import InstanceMetadata, InstanceState, Power
from ccm.model import Node, Service
from ccm.testing.builders import node as build_node
from ccm.testing.harness import OPT_OUTS, Harness, HeldBalancer, Made

T = TypeVar("T")

_BY_PROVIDER: ContextVar[bool] = ContextVar("by_provider", default=False)


async def by_provider(ask: Callable[[], Awaitable[T]]) -> T:
    """Call the provider; all tasks started during the call count as tasks of the provider."""
    token = _BY_PROVIDER.set(True)
    try:
        return await ask()
    finally:
        _BY_PROVIDER.reset(token)


class TaskWatch:
    """Tasks that a provider started; use `watch_tasks`."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._tasks: set[asyncio.Task[Any]] = set()

    def note(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)

    async def check_ended(self, when: str) -> None:
        """Fail if a task still runs after `GRACE_S`."""
        until = asyncio.get_running_loop().time() + GRACE_S
        while left := [task for task in self._tasks if self._counts(task)]:
            names = sorted(str(task.get_coro()) for task in left)
            assert asyncio.get_running_loop().time() < until, f"tasks left {when}: {names}"
            await asyncio.sleep(0.01)

    def _counts(self, task: asyncio.Task[Any]) -> bool:
        return not (task.done() or self._harness.is_task_of_fake(task))


@contextmanager
def watch_tasks(harness: Harness) -> Iterator[TaskWatch]:
    """Record the tasks that the provider starts."""
    loop, started = asyncio.get_running_loop(), TaskWatch(harness)
    former = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **how: Any) -> Any:
        task = former(loop, coro, **how) if former else asyncio.Task(coro, loop=loop, **how)
        context = how.get("context")
        if _BY_PROVIDER.get() if context is None else context.get(_BY_PROVIDER, False):
            started.note(task)  # type: ignore[arg-type]
        return task

    loop.set_task_factory(make)
    try:
        yield started
    finally:
        loop.set_task_factory(former)


async def unclosed_resources(work: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the ResourceWarnings about resources that `work` opened and did not close."""
    gc.collect()  # discard garbage of earlier code
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        await work()
        await asyncio.sleep(0.01)  # a close in progress ends in the next iterations of the loop
        gc.collect()
    return sorted(
        {
            str(warning.message)
            for warning in warned
            if issubclass(warning.category, ResourceWarning)
        }
    )


Args = TypeVarTuple("Args")
Call = Callable[[], Awaitable[object]]

GRACE_S = 1.0
"""Maximum seconds until a cancelled call ends, and until a call reaches the cloud."""

EXISTENCE = ("instance_exists", "instance_state", "instance_exists_by_provider_id")
"""The methods that report absence with a return value."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Outcome of a call that raised an error; two outcomes with the same error class are equal."""

    kind: type[Exception]
    error: Exception = field(compare=False)


class InstanceLookups:
    """Lookups in one cloud through one interface, with the daemon's order of calls and fallbacks.

    Args:
        cloud: the opened cloud; the test is skipped if it lacks the interface.
        old: whether to call `Instances` and `Zones` instead of `InstancesV2`.
    """

    def __init__(self, cloud: Cloud, *, old: bool) -> None:
        if old:
            require_capability(cloud.instances_v1, "instances_v1", "an Instances")
            self.cloud = dataclasses.replace(cloud, instances=None)
        else:
            require_capability(cloud.instances, "instances", "an InstancesV2")
            self.cloud = dataclasses.replace(cloud, instances_v1=None, zones=None)
        self.old = old
        self._caller = _DirectCaller(self.cloud)
        self._lookup = InstanceLookup(self._caller)

    async def state(self, node: Node) -> InstanceState:
        """Return the state that the node lifecycle controller sees.

        Fail if `instance_state` disagrees with `instance_exists` or `instance_shutdown`.
        """
        state = await self._lookup.state(node)
        if self._caller.offers(InstanceStates):
            exists = await self._caller.call(InstancesV2.instance_exists, node)
            power = None
            if exists:
                off = await self._caller.call(InstancesV2.instance_shutdown, node)
                power = Power.SHUTDOWN if off else Power.RUNNING
            single = InstanceState(exists=exists, power=power)
            same(state, single, "instance_state versus instance_exists and instance_shutdown")
        return state

    async def metadata(self, node: Node) -> InstanceMetadata:
        """Return the metadata that the node controller sees for a running instance."""
        metadata = await self._lookup.metadata(node)
        if metadata is None:
            pytest.fail(f"no metadata for the running instance {node.name}")
        return plain(metadata)

    def questions(self, made: Made) -> Mapping[str, Call]:
        """Return all calls about an instance, by ID, by name and in bulk."""
        questions = dict(self.about(by_id(made)))
        if self.cloud.inventory is not None:
            questions["list_instances"] = partial(self._caller.call, Inventory.list_instances)
        return questions

    def about_id(self, name: str, provider_id: str) -> Mapping[str, Call]:
        """Return the calls that must look the instance up by provider ID.

        Zones are left out: a cloud with one zone may answer without a lookup.
        """
        calls = self.about(build_node(name, provider_id=provider_id))
        return {
            key: ask
            for key, ask in calls.items()
            if not self.old or (key.endswith("by_provider_id") and "zone" not in key)
        }

    def about(self, node: Node) -> Mapping[str, Call]:
        """Return all calls about a node, by method name."""
        subjects = {"node": node, "provider_id": node.provider_id, "node_name": node.name}
        return {
            name: partial(self._caller.call, method, subjects[parameter])
            for face in (InstancesV2, InstanceStates, Instances, Zones)
            if self._caller.offers(face)
            for name, method in inspect.getmembers(face, inspect.iscoroutinefunction)
            if name in DECLARATIONS
            for parameter in DECLARATIONS[name].parameters
        }


class _DirectCaller:
    """Calls the provider without the daemon's wrapper, to show the provider's own errors."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.name = cloud.name
        self.provider_session = 0
        self.confirmed: set[str] = set()

    def offers(self, face: type) -> bool:
        return responses.implementation_of(self._cloud, face) is not None

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        bound = responses.bind_method(self._cloud, method)
        answer = await by_provider(partial(bound, *args))
        await responses.verify(method, answer)
        return cast("T", answer)


def by_id(made: Made) -> Node:
    """Return the initialised node of an instance."""
    return build_node(made.name, provider_id=made.provider_id)


def by_name(made: Made) -> Node:
    """Return a node that has the name of an instance, but no provider ID."""
    return build_node(made.name)


def plain(metadata: InstanceMetadata) -> InstanceMetadata:
    """Return a copy with the addresses as a tuple, so that a list and a tuple compare equal."""
    return dataclasses.replace(metadata, addresses=tuple(metadata.addresses))


def check_own_id(cloud: Cloud, provider_id: str) -> None:
    """Fail unless the ID has a scheme of the provider and no prefix in `foreign_ids`."""
    schemes, others = cloud.provider_schemes, cloud.foreign_ids
    is_list = not isinstance(others, str) and all(others)
    assert is_list, f"foreign_ids is {others!r}; it must be a list of prefixes that are not empty"
    ours = f"not our provider ID: {provider_id}; schemes {schemes}, foreign prefixes {others}"
    assert provider_id.partition("://")[0] in schemes, ours
    assert not is_foreign(provider_id, schemes, others), ours


def same(actual: object, expected: object, what: str) -> None:
    """Fail with both values unless they are equal."""
    assert actual == expected, f"{what}: found {actual!r}, expected {expected!r}"


def require_capability(capability: T | None, name: str, interface: str) -> T:
    """Return a capability of the cloud; skip the test if it is missing."""
    if capability is None:
        pytest.skip(f"not offered; to test it, set Cloud.{name} to {interface}")
    return capability


def inventory_of(cloud: Cloud) -> Inventory:
    """Return the inventory; skip the test if it is missing."""
    return require_capability(cloud.inventory, "inventory", "an Inventory")


def is_opted_out(harness: Harness, name: str) -> bool:
    """Return whether `Harness.opt_outs` declares this deviation."""
    assert name in OPT_OUTS
    return name in harness.opt_outs


def skip_if_opted_out(harness: Harness, *names: str) -> None:
    """Skip the test if `Harness.opt_outs` declares one of these deviations."""
    for name in names:
        if is_opted_out(harness, name):
            pytest.skip(f"opted out: {name}: {harness.opt_outs[name]}")


def fault_argument(harness: Harness, fault: str) -> object:
    """Return the harness's argument for a fault; skip the test if it has none."""
    if fault not in harness.faults:
        pytest.skip(f"fault missing; add {fault!r} to Harness.faults")
    return harness.faults[fault]


async def outcome(ask: Call) -> object:
    """Return the answer of a call, or `Raised` with its error."""
    try:
        return await by_provider(ask)
    except Exception as error:  # noqa: BLE001 - the contract checks errors of any class
        return Raised(type(error), error)


async def must_raise(
    name: str, ask: Call, classes: tuple[type[CloudError], ...], what: str
) -> None:
    """Fail unless a call raises one of these classes, or Unimplemented."""
    check_error(await outcome(ask), (*classes, Unimplemented), f"{name} {what}")


def check_error(result: object, promised: tuple[type[CloudError], ...], what: str) -> None:
    """Fail unless the outcome is one of the promised errors."""
    wanted = " or ".join(kind.__name__ for kind in promised)
    if not isinstance(result, Raised):
        pytest.fail(f"{what}: returned {result!r}, expected {wanted}")
    if not isinstance(result.error, CloudError):
        pytest.fail(f"{what}: raised {result.error!r}, expected {wanted} with this error as cause")
    if not isinstance(result.error, promised):
        pytest.fail(f"{what}: raised {result.error!r}, expected {wanted}")


async def outcome_within_patience(harness: Harness, name: str, ask: Call) -> object:
    """Return the outcome of a call during a fault; fail after `patience_s`."""
    try:
        async with asyncio.timeout(harness.patience_s):
            return await outcome(ask)
    except TimeoutError:
        pytest.fail(
            f"{name}: no answer after {harness.patience_s:g} s; set a timeout in the client, or "
            "increase Harness.patience_s"
        )


async def after_fault(harness: Harness, ask: Call, healthy: object) -> object:
    """Repeat a call after a fault, for up to `patience_s`, until its outcome equals `healthy`.

    Returns the last outcome.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + harness.patience_s
    result = await outcome(ask)
    while result != healthy and loop.time() < until:
        await asyncio.sleep(0.05)
        result = await outcome(ask)
    return result


async def check_cancellation(
    name: str, ask: Call, healthy: object, *, steps: int = 0, after_s: float = 0.0
) -> None:
    """Cancel a call after some steps of the event loop and then `after_s` seconds.

    Fail unless the call ends within `GRACE_S`, cancelled or with the outcome `healthy`. A
    CloudError is allowed if the call ended before the cancellation.
    """
    task = await _begun(ask, steps)
    if after_s:
        await asyncio.sleep(after_s)
    in_time = task.done()
    await must_end(task, name)
    if task.cancelled():
        return
    result = task.result()
    gave_up = in_time and isinstance(result, Raised) and isinstance(result.error, CloudError)
    assert result == healthy or gave_up, f"{name}: ended with {result!r} after cancellation"


async def concurrent_requests(harness: Harness, asks: Sequence[Call], *, hang: Any) -> int:
    """Return how many of these calls reach a hanging cloud at the same time."""
    before, loop = await harness.requests(), asyncio.get_running_loop()
    await harness.fail(hang)
    tasks = [asyncio.ensure_future(outcome(ask)) for ask in asks]
    until = loop.time() + GRACE_S
    arrived = 0
    while arrived < len(asks) and loop.time() < until:
        await asyncio.sleep(0.01)
        arrived = await harness.requests() - before
    for task in tasks:
        await must_end(task, "a call")
    await harness.heal()
    return arrived


async def must_end(task: asyncio.Future[Any], name: str) -> None:
    """Cancel a call; fail unless it ends within `GRACE_S`, with any outcome."""
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=GRACE_S)
    assert done, f"{name}: still runs {GRACE_S:g} s after cancellation"


@asynccontextmanager
async def in_one_task(context: AbstractAsyncContextManager[Cloud]) -> AsyncIterator[Cloud]:
    """Enter and exit the context in one task, as the daemon does.

    pytest may set up and tear down a fixture in two different tasks.
    """
    opened: asyncio.Future[Cloud] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def hold() -> None:
        async with context as cloud:
            opened.set_result(cloud)
            await closing.wait()

    task = asyncio.ensure_future(by_provider(hold))
    either: set[asyncio.Future[Any]] = {task, opened}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    try:
        if opened.done():
            yield opened.result()
    finally:
        closing.set()
        await task


CLUSTER = "contract"
"""Cluster name that calls pass to the cloud."""

TRIES = 200
PAUSE_S = 0.02
"""Maximum attempts of a call that raises `RetryAfter`, and maximum seconds between two of them."""

CANCEL_AFTER = (*range(8), 10, 15, 20, 30, 40)
"""Numbers of event-loop steps after which a call is cancelled, one attempt for each number."""


@runtime_checkable
class DigestingBalancer(LoadBalancer, LoadBalancerDigests, Protocol):
    """A load balancer interface that also offers digests."""


def balancer_of(cloud: Cloud) -> LoadBalancer:
    """Return the load balancer interface; skip the test if the cloud has none."""
    return require_capability(cloud.load_balancer, "load_balancer", "a LoadBalancer")


def digests_of(cloud: Cloud) -> DigestingBalancer:
    """Return the load balancer interface; skip the test if it offers no digests."""
    balancer = balancer_of(cloud)
    if not isinstance(balancer, DigestingBalancer):
        pytest.skip("not offered; implement list_load_balancers and load_balancer_digest")
    return balancer


def routes_of(cloud: Cloud) -> Routes:
    """Return the routes interface; skip the test if the cloud has none."""
    return require_capability(cloud.routes, "routes", "a Routes")


async def nodes(cloud: Cloud, harness: Harness, number: int) -> list[Node]:
    """Create `number` instances; return their initialised nodes."""
    return [await node_of(cloud, await harness.create()) for _ in range(number)]


async def node_of(cloud: Cloud, made: Made) -> Node:
    """Return the initialised node of an instance."""
    addresses = made.addresses
    if addresses is None:
        metadata = await InstanceLookups(cloud, old=cloud.instances is None).metadata(by_id(made))
        addresses = metadata.addresses
    return build_node(made.name, provider_id=made.provider_id, addresses=list(addresses))


def expected(balancer: LoadBalancer, service: Service, nodes: Sequence[Node]) -> HeldBalancer:
    """Return the load balancer that the cloud should hold for a Service."""
    return HeldBalancer(
        name=balancer.get_load_balancer_name(CLUSTER, service),
        ports=frozenset((port.protocol, port.port, port.node_port) for port in service.ports),
        members=frozenset(node.name for node in nodes),
    )


async def find_balancer(harness: Harness, balancer: LoadBalancer, service: Service) -> HeldBalancer:
    """Return the one load balancer of a Service in the cloud."""
    name = balancer.get_load_balancer_name(CLUSTER, service)
    matches = [lb for lb in await harness.load_balancers() if lb.name == name]
    assert len(matches) == 1, f"{len(matches)} load balancers have the name {name}, expected 1"
    return matches[0]


async def retry_after_hints(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while it raises `RetryAfter`; fail the test after `TRIES` attempts."""
    for _ in range(TRIES):
        try:
            return await by_provider(ask)
        except errors.RetryAfter as error:
            await asyncio.sleep(min(error.seconds, PAUSE_S))
    pytest.fail(f"the call still raises RetryAfter after {TRIES} attempts")


async def retry_within_patience(harness: Harness, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it succeeds, because a provider may still back off after a fault.

    Raises:
        CloudError: the call still fails after `patience_s`.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + harness.patience_s
    while True:
        try:
            return await by_provider(ask)
        except errors.CloudError:
            if loop.time() >= until:
                raise
        await asyncio.sleep(0.05)


async def cancel_after(ask: Callable[[], Awaitable[object]], *, steps: int) -> None:
    """Cancel a call after some steps of the event loop; fail unless it ends within `GRACE_S`."""
    await must_end(await _begun(ask, steps), "a call")


async def _begun(ask: Call, steps: int) -> asyncio.Future[object]:
    task = asyncio.ensure_future(outcome(ask))
    for _ in range(steps):
        await asyncio.sleep(0)
    return task


@pytest.mark.asyncio
class OpeningCases:
    """Cases about opening and closing. The contract classes provide the fixtures."""

    async def test_closing_leaves_nothing(self, harness: Harness) -> None:
        """Closing ends every task of the provider; closing again does no harm."""
        context = harness.open()

        with watch_tasks(harness) as started:
            async with in_one_task(context):
                pass
            await context.__aexit__(None, None, None)
            await started.check_ended("after closing")

    async def test_opt_outs_are_known_and_have_reasons(self, harness: Harness) -> None:
        """Opt-outs are known and have a reason for the report."""
        unknown = sorted(harness.opt_outs.keys() - OPT_OUTS.keys())
        assert not unknown, f"unknown opt-outs: {unknown}; known: {sorted(OPT_OUTS)}"
        bare = sorted(name for name, reason in harness.opt_outs.items() if not reason.strip())
        assert not bare, f"opt-outs without a reason: {bare}"
