"""The handle: deadlines, leases, and calls that do not end when they should."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from ccm.base import clock, metrics
from ccm.base.lease_guard import Lapsed, LeaseGuard
from ccm.cloud import (
    Credentials,
    Identity,
    InstancesV2,
    Limits,
    LoadBalancer,
    MachineDriver,
    MachineRequest,
    Rate,
    Route,
    Routes,
    Service,
    Status,
    errors,
)
from ccm.cloud.calls import responses
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.inflight import MOST_ABANDONED
from ccm.cloud.operation import DECLARED, operation
from ccm.model import ObjectMeta
from ccm.testing.builders import node
from ccm.testing.clock import elapsed_s, settle
from tests.support.calls import Provider, cloud, ensure

pytestmark = pytest.mark.virtual_time


NODE = node("node0", provider_id="fake://1")
ROUTE = Route(destination_cidr="10.0.0.0/24", target_node="n1")
EXISTS = InstancesV2.instance_exists
OPERATIONS = [
    method
    for face in responses.CAPABILITIES
    for name, method in inspect.getmembers(face, inspect.iscoroutinefunction)
    if name in DECLARED
]
NEVER_CALLED = {
    "add_ssh_key_to_all_instances",
    "current_node_name",
    "generate_machine_class_for_migration",
    "get_zone",
}
MACHINE = MachineRequest(
    identity=Identity(cluster="c", pool="p", name="m", uid="u"),
    provider_spec={},
    credentials=Credentials({}),
)

LONG_S = {
    "ensure_load_balancer": 900.0,
    "update_load_balancer": 900.0,
    "delete_load_balancer": 900.0,
    "ensure_load_balancer_deleted": 900.0,
    "list_routes": 300.0,
    "create_route": 300.0,
    "delete_route": 300.0,
    "list_instances": 300.0,
    "list_load_balancers": 300.0,
    "create_machine": 300.0,
    "initialize_machine": 300.0,
    "delete_machine": 300.0,
    "list_machines": 300.0,
}


def raising(error: BaseException) -> Callable[[], Awaitable[Any]]:
    async def act() -> None:
        raise error

    return act


async def hang() -> None:
    await asyncio.sleep(1e6)


async def call(handle: Handle, method: Callable[..., Any]) -> object:
    """Any method, with arguments of no meaning."""
    given: dict[str, object] = {"node": NODE, "service": NODE, "route": ROUTE, "req": MACHINE}
    names = DECLARED[method.__name__].parameters
    return await handle.call(method, *(given.get(name, "x") for name in names))


def count(provider: str, operation: str, outcome: str) -> float:
    labels = {"provider": provider, "operation": operation, "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("ccm_cloud_calls_total", labels) or 0.0


def test_every_method_that_is_waited_for_is_declared() -> None:
    """One that is not cannot be called at all."""
    methods = {
        name
        for face in responses.CAPABILITIES
        for name, _ in inspect.getmembers(face, inspect.iscoroutinefunction)
    }

    assert methods == DECLARED.keys() | NEVER_CALLED


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
@pytest.mark.parametrize(("forced_s", "own_s"), [(None, None), (None, 7.5), (3.0, 700.0)])
async def test_deadlines_of_the_daemon_win_and_then_those_of_the_provider(
    method: Callable[..., Any], forced_s: float | None, own_s: float | None
) -> None:
    name = method.__name__
    expected = forced_s or own_s or LONG_S.get(name, 60.0)

    limits = Limits(deadlines_s={name: own_s} if own_s else {})
    handle = Handle(cloud("declared", hang, limits=limits), deadline_s=forced_s)
    with pytest.raises(errors.DeadlineExceeded, match=f"longer than {expected:g} s"):
        await call(handle, method)
    assert elapsed_s() == pytest.approx(expected)


def test_one_name_is_declared_in_one_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECLARED, "delete_route", DECLARED["delete_route"])  # put back

    async def delete_route(self: object, name: str) -> None: ...

    with pytest.raises(ValueError, match="'delete_route'"):
        operation(change=False)(delete_route)


async def swallow() -> bool:
    """Catches everything, its own cancellation included."""
    try:
        await asyncio.sleep(1e6)
    except BaseException:  # noqa: BLE001 - the point
        return False
    return True


async def translate() -> bool:
    """Makes an absence of every trouble, its own cancellation included."""
    try:
        await asyncio.sleep(1e6)
    except BaseException as error:
        raise errors.NotFound("gone") from error
    return True


@pytest.mark.parametrize("act", [hang, swallow, translate])
async def test_a_cancelled_call_has_no_answer(act: Callable[[], Awaitable[Any]]) -> None:
    """Whatever the provider makes of the cancellation, such as an absence."""
    seen: list[tuple[str, str]] = []
    name = f"cancelled-{act.__name__}"
    handle = Handle(cloud(name, act)).observe(lambda *call: seen.append(call))
    task = asyncio.ensure_future(handle.call(EXISTS, NODE))
    await settle()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert count(name, "instance_exists", "canceled") == 1
    assert seen == [("instance_exists", "canceled")]


@pytest.mark.parametrize("act", [swallow, translate])
async def test_what_comes_after_the_deadline_is_no_answer(
    act: Callable[[], Awaitable[bool]],
) -> None:
    """Else a cloud that hangs would read as "gone"."""

    with pytest.raises(errors.DeadlineExceeded, match="longer than 60 s"):
        await Handle(cloud("late", act)).call(EXISTS, NODE)


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
async def test_nothing_is_asked_or_changed_without_a_lease_that_holds(
    method: Callable[..., Any],
) -> None:
    """The last look is after the wait for the rate, in which it may run out."""
    lease = LeaseGuard()
    lease.extend(clock.monotonic() + 5)
    lease.govern()
    provider = Provider(raising(errors.NotFound("x")))
    handle = Handle(provider.cloud("fenced", limits=Limits(rate=Rate(qps=0.1, burst=1))))
    with pytest.raises(errors.NotFound):
        await call(handle, method)

    with pytest.raises(errors.DeadlineExceeded) as refused:
        await call(handle, method)

    assert elapsed_s() == 10
    assert isinstance(refused.value.__cause__, Lapsed)
    assert provider.asked == [method.__name__]


async def test_what_a_secret_of_somebodys_opens_says_nothing_of_our_credentials() -> None:
    """One wrong Secret of a pool must not make the whole daemon unready, nor a right one ready."""
    refused: list[Exception] = []

    async def act() -> bool:
        if refused:
            raise refused[0]
        return True

    handle = Handle(cloud("pools", act))
    for method, error in (
        (MachineDriver.list_machines, errors.Unauthenticated("the pool's")),
        (EXISTS, errors.Unauthenticated("ours")),
        (MachineDriver.list_machines, None),
    ):
        refused[:] = [error] if error else []
        with contextlib.suppress(errors.CloudError):
            await call(handle, method)

    assert handle.trouble is not None
    assert (handle.trouble.calls, str(handle.trouble.error)) == (1, "ours")


def web(uid: str) -> Service:
    return Service(metadata=ObjectMeta(name="web", uid=uid))


class Stubborn:
    """A provider whose calls swallow every cancellation until they are let go."""

    made: ClassVar[list[Stubborn]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.entered = 0
        self.ended = 0
        self.leave = asyncio.Event()

    async def __call__(self) -> Status:
        self.entered += 1
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                continue
        self.ended += 1
        return Status()


@pytest_asyncio.fixture(autouse=True)
async def _nobody_outlives_a_test() -> AsyncIterator[None]:
    """Else a test that fails would never end."""
    yield
    while Stubborn.made:
        Stubborn.made.pop().leave.set()


async def fine() -> Status:
    return Status()


async def test_those_that_may_still_change_something_are_told_apart() -> None:
    question, change = Stubborn(), Stubborn()
    provider = Provider(question)
    handle = Handle(provider.cloud("s6"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await handle.call(InstancesV2.instance_exists, node("n"))
    assert (handle.abandoned_calls, handle.abandoned_changes) == (1, 0)

    provider.act = change
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle)
    assert (handle.abandoned_calls, handle.abandoned_changes) == (2, 1)

    change.leave.set()
    await settle()
    assert (handle.abandoned_calls, handle.abandoned_changes) == (1, 0)


async def test_only_so_many_calls_of_an_operation_are_abandoned() -> None:
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = Handle(provider.cloud("s9"), deadline_s=5)
    for number in range(MOST_ABANDONED):
        with pytest.raises(errors.DeadlineExceeded):
            await ensure(handle, f"uid-{number}")

    with pytest.raises(errors.Unavailable, match=f"{MOST_ABANDONED} earlier ones"):
        await ensure(handle, "another")
    assert stubborn.entered == MOST_ABANDONED
    provider.act = fine
    await handle.call(LoadBalancer.update_load_balancer, "c1", web("another"), ())

    handle.swap(cloud("s9-new", fine))
    assert await ensure(handle, "another") == Status()


async def test_nothing_else_is_done_about_the_subject_meanwhile() -> None:
    """Calls about one Service never overlap, not even with one that was given up."""
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = Handle(provider.cloud("s7"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle, "uid-1")
    provider.act = fine

    for late in (LoadBalancer.get_load_balancer, LoadBalancer.ensure_load_balancer_deleted):
        with pytest.raises(errors.Aborted, match="an earlier ensure_load_balancer was cancelled"):
            await handle.call(late, "c1", web("uid-1"))
    with pytest.raises(errors.Aborted):
        await handle.call(LoadBalancer.update_load_balancer, "c1", web("uid-1"), ())
    assert await ensure(handle, "uid-2") == Status()
    await handle.call(Routes.delete_route, "c1", Route(destination_cidr="x", target_node="n"))

    handle.swap(cloud("s7-new", fine))
    with pytest.raises(errors.Aborted):
        await ensure(handle, "uid-1")

    stubborn.leave.set()
    await settle()
    assert await ensure(handle, "uid-1") == Status()
