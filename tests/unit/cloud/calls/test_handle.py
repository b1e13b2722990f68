"""The cloud client: deadlines, leases, and abandoned calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar
from unittest.mock import AsyncMock, Mock

import pytest
import pytest_asyncio

from ccm.base import clock, metrics
from ccm.base.drain import Drain
from ccm.base.lease_guard import LeaseExpired, LeaseGuard
from ccm.base.tasks import spawn
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
from ccm.cloud.calls.client import OUTCOMES, CloudClient
from ccm.cloud.calls.inflight import GRACE_S, MAX_ABANDONED
from ccm.cloud.operation import DECLARATIONS, operation
from ccm.model import ObjectMeta
from ccm.testing.builders import node
from ccm.testing.clock import elapsed_s, settle
from tests.support.calls import ENSURE, Provider, cloud, ensure

pytestmark = pytest.mark.virtual_time


NODE = node("node0", provider_id="fake://1")
ROUTE = Route(destination_cidr="10.0.0.0/24", target_node="n1")
EXISTS = InstancesV2.instance_exists
OPERATIONS = [
    method
    for face in responses.CAPABILITIES
    for name, method in inspect.getmembers(face, inspect.iscoroutinefunction)
    if name in DECLARATIONS
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
    "transfer_load_balancer": 900.0,
    "ensure_load_balancer_deleted": 900.0,
    "list_routes": 300.0,
    "create_route": 300.0,
    "delete_route": 300.0,
    "list_instances": 300.0,
    "list_load_balancers": 300.0,
    "create_machine": 300.0,
    "initialize_machine": 300.0,
    "delete_machine": 300.0,
    "migrate_uid": 300.0,
    "list_machines": 300.0,
    "delete_part": 300.0,
}


def raising(error: BaseException) -> Callable[[], Awaitable[Any]]:
    async def act() -> None:
        raise error

    return act


async def hang() -> None:
    await asyncio.sleep(1e6)


async def call(handle: CloudClient, method: Callable[..., Any]) -> object:
    """Call a method with arbitrary arguments."""
    given: dict[str, object] = {"node": NODE, "service": NODE, "route": ROUTE, "req": MACHINE}
    names = DECLARATIONS[method.__name__].parameters
    return await handle.call(method, *(given.get(name, "x") for name in names))


def count(provider: str, operation: str, outcome: str) -> float:
    labels = {"provider": provider, "operation": operation, "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("ccm_cloud_calls_total", labels) or 0.0


def test_every_async_provider_method_is_declared_as_an_operation() -> None:
    """The client cannot call an undeclared method."""
    methods = {
        name
        for face in responses.CAPABILITIES
        for name, _ in inspect.getmembers(face, inspect.iscoroutinefunction)
    }

    assert methods == DECLARATIONS.keys() | NEVER_CALLED


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
@pytest.mark.parametrize(("forced_s", "own_s"), [(None, None), (None, 7.5), (3.0, 700.0)])
async def test_call_timeout_flag_overrides_the_provider_which_overrides_defaults(
    method: Callable[..., Any], forced_s: float | None, own_s: float | None
) -> None:
    name = method.__name__
    expected = forced_s or own_s or LONG_S.get(name, 60.0)

    limits = Limits(deadlines_s={name: own_s} if own_s else {})
    handle = CloudClient(cloud("declared", hang, limits=limits), deadline_s=forced_s)
    with pytest.raises(errors.DeadlineExceeded, match=f"longer than {expected:g} s"):
        await call(handle, method)
    assert elapsed_s() == pytest.approx(expected)


def test_operation_with_a_conflicting_declaration_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DECLARATIONS, "delete_route", DECLARATIONS["delete_route"])  # put back

    async def delete_route(self: object, name: str) -> None: ...

    with pytest.raises(ValueError, match="'delete_route'"):
        operation(change=False)(delete_route)


async def swallow() -> bool:
    """Catch every exception, including the own cancellation."""
    try:
        await asyncio.sleep(1e6)
    except BaseException:  # noqa: BLE001 - the point
        return False
    return True


async def translate() -> bool:
    """Turn every exception into NotFound, including the own cancellation."""
    try:
        await asyncio.sleep(1e6)
    except BaseException as error:
        raise errors.NotFound("gone") from error
    return True


@pytest.mark.parametrize("act", [hang, swallow, translate])
async def test_cancelled_call_raises_even_when_the_provider_returns(
    act: Callable[[], Awaitable[Any]],
) -> None:
    """The provider may swallow the cancellation or translate it, for example to NotFound."""
    seen: list[tuple[str, str]] = []
    name = f"cancelled-{act.__name__}"
    handle = CloudClient(cloud(name, act)).with_observer(lambda *call: seen.append(call))
    task = asyncio.ensure_future(handle.call(EXISTS, NODE))
    await settle()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert count(name, "instance_exists", "canceled") == 1
    assert seen == [("instance_exists", "canceled")]


@pytest.mark.parametrize("act", [swallow, translate])
async def test_answer_after_the_deadline_is_discarded(
    act: Callable[[], Awaitable[bool]],
) -> None:
    """Otherwise a hanging cloud would count as NotFound."""

    with pytest.raises(errors.DeadlineExceeded, match="longer than 60 s"):
        await CloudClient(cloud("late", act)).call(EXISTS, NODE)


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
async def test_calls_are_refused_without_a_valid_lease(
    method: Callable[..., Any],
) -> None:
    """The Lease is checked after the wait for the rate limiter, during which it may expire."""
    lease = LeaseGuard()
    lease.extend(clock.monotonic() + 5)
    lease.activate()
    provider = Provider(raising(errors.NotFound("x")))
    handle = CloudClient(provider.cloud("fenced", limits=Limits(rate=Rate(qps=0.1, burst=1))))
    with pytest.raises(errors.NotFound):
        await call(handle, method)

    with pytest.raises(errors.DeadlineExceeded) as refused:
        await call(handle, method)

    assert elapsed_s() == 10
    assert isinstance(refused.value.__cause__, LeaseExpired)
    assert provider.asked == [method.__name__]


async def test_calls_with_credentials_of_a_secret_do_not_affect_readiness() -> None:
    """A wrong Secret of a pool must not make the daemon unready, nor a valid one ready."""
    refused: list[Exception] = []

    async def act() -> bool:
        if refused:
            raise refused[0]
        return True

    handle = CloudClient(cloud("pools", act))
    for method, error in (
        (MachineDriver.list_machines, errors.Unauthenticated("the pool's")),
        (EXISTS, errors.Unauthenticated("ours")),
        (MachineDriver.list_machines, None),
    ):
        refused[:] = [error] if error else []
        with contextlib.suppress(errors.CloudError):
            await call(handle, method)

    assert handle.call_failures is not None
    assert (handle.call_failures.calls, str(handle.call_failures.error)) == (1, "ours")


def web(uid: str) -> Service:
    return Service(metadata=ObjectMeta(name="web", uid=uid))


class Stubborn:
    """Provider whose calls swallow every cancellation until they are released."""

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
    """Release hanging calls; otherwise a failed test would never end."""
    yield
    while Stubborn.made:
        Stubborn.made.pop().leave.set()


async def fine() -> Status:
    return Status()


async def test_abandoned_changes_are_counted_apart_from_abandoned_reads() -> None:
    question, change = Stubborn(), Stubborn()
    provider = Provider(question)
    handle = CloudClient(provider.cloud("s6"), deadline_s=5)
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


async def test_abandoned_calls_of_an_operation_are_limited() -> None:
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = CloudClient(provider.cloud("s9"), deadline_s=5)
    for number in range(MAX_ABANDONED):
        with pytest.raises(errors.DeadlineExceeded):
            await ensure(handle, f"uid-{number}")

    with pytest.raises(errors.Unavailable, match=f"{MAX_ABANDONED} abandoned calls"):
        await ensure(handle, "another")
    assert stubborn.entered == MAX_ABANDONED
    provider.act = fine
    await handle.call(LoadBalancer.update_load_balancer, "c1", web("another"), ())

    handle.swap(cloud("s9-new", fine))
    assert await ensure(handle, "another") == Status()


async def test_subject_of_an_abandoned_change_refuses_further_calls() -> None:
    """Calls about one Service never overlap, not even with an abandoned one."""
    stubborn = Stubborn()
    provider = Provider(stubborn)
    handle = CloudClient(provider.cloud("s7"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle, "uid-1")
    provider.act = fine

    for late in (LoadBalancer.get_load_balancer, LoadBalancer.ensure_load_balancer_deleted):
        with pytest.raises(errors.Aborted, match="an abandoned ensure_load_balancer of the same"):
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


async def yes() -> bool:
    return True


def measured(name: str, provider: str, operation: str, what: str) -> float:
    labels = {"provider": provider, "operation": operation}
    return metrics.REGISTRY.get_sample_value(f"ccm_cloud_{name}_{what}", labels) or 0.0


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((kind("x"), text) for kind, text in OUTCOMES.items() if kind is not errors.RetryAfter),
        (errors.RetryAfter("x", seconds=1), "retry_after"),
        (errors.DiskNotFound("x"), "not_found"),
        (errors.Aborted("x"), "error"),
        (ValueError("x"), "error"),
        (TimeoutError(), "deadline_exceeded"),
    ],
    ids=repr,
)
async def test_call_outcome_is_counted_and_passed_to_the_observer(
    error: Exception, outcome: str
) -> None:
    seen: list[tuple[str, str]] = []
    before = count("counted", "instance_exists", outcome)
    handle = CloudClient(cloud("counted", raising(error)))

    with pytest.raises(errors.CloudError):
        await handle.with_observer(lambda *told: seen.append(told)).call(EXISTS, NODE)
    with pytest.raises(errors.CloudError):
        await handle.call(EXISTS, NODE)

    assert count("counted", "instance_exists", outcome) == before + 2
    assert seen == [("instance_exists", outcome)]


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
async def test_drain_waits_only_for_calls_that_change_something(method: Callable[..., Any]) -> None:
    stopping = Drain()
    stopping.activate()
    waited_for = []

    async def act() -> None:
        waited_for.append(stopping.units_in_progress == 1)

    with contextlib.suppress(errors.Internal):
        await call(CloudClient(cloud("acme", act)), method)

    changes = method.__name__.startswith(
        ("create", "delete", "ensure", "initialize", "migrate", "transfer", "update")
    )
    assert waited_for == [changes]


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("g", [SystemExit(3)])])
async def test_system_exit_of_a_provider_becomes_an_internal_error(error: BaseException) -> None:
    with pytest.raises(errors.Internal) as caught:
        await CloudClient(cloud("fatal", raising(error))).call(EXISTS, NODE)

    assert caught.value.__cause__ is error


async def test_cancellation_inside_the_provider_does_not_cancel_the_caller() -> None:
    """The provider cancelled a task of its own; the caller was not cancelled."""
    with pytest.raises(errors.Canceled, match="was cancelled inside the provider"):
        await CloudClient(cloud("inside", raising(asyncio.CancelledError()))).call(EXISTS, NODE)


async def test_calls_respect_the_rate_limit_of_the_provider() -> None:
    handle = CloudClient(cloud("rated", yes, limits=Limits(rate=Rate(qps=2, burst=3))))
    moments = []

    for _ in range(6):
        await handle.call(EXISTS, NODE)
        moments.append(elapsed_s())

    assert moments == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])
    assert count("rated", "instance_exists", "success") == 6
    assert measured("call_duration_seconds", "rated", "instance_exists", "count") == 6
    wait = "rate_limiter_duration_seconds"
    assert measured(wait, "rated", "instance_exists", "sum") == pytest.approx(1.5)
    assert measured("call_duration_seconds", "rated", "instance_exists", "sum") == 0


def sample(name: str, provider: str, operation: str = ENSURE.__name__) -> float:
    labels = {"provider": provider, "operation": operation}
    return metrics.REGISTRY.get_sample_value(f"ccm_cloud_{name}", labels) or 0.0


async def test_caller_abandons_a_call_one_grace_period_after_the_deadline() -> None:
    provider = Stubborn()
    handle = CloudClient(cloud("s1", provider))

    with pytest.raises(errors.DeadlineExceeded, match="took longer than 900 s"):
        await ensure(handle)

    assert elapsed_s() == pytest.approx(900 + GRACE_S)
    assert provider.ended == 0
    assert handle.abandoned_calls == 1
    assert sample("abandoned_calls", "s1") == sample("calls_under_way", "s1") == 1
    assert sample("abandoned_calls_total", "s1") == 1

    ended = asyncio.ensure_future(handle.wait_for_calls(handle.cloud))
    await settle()
    assert not ended.done()
    provider.leave.set()
    await settle()

    assert provider.ended == 1
    assert ended.done()
    assert handle.abandoned_calls == 0
    assert sample("abandoned_calls", "s1") == sample("calls_under_way", "s1") == 0
    assert sample("abandoned_calls_total", "s1") == 1


async def test_refused_call_is_not_counted_and_takes_no_rate_limiter_token() -> None:
    limiter, seen = Mock(acquire=AsyncMock(return_value=0.0)), []
    provider = Stubborn()
    handle = CloudClient(cloud("s8", provider), deadline_s=5, limiter=limiter)
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle, "uid-1")

    with pytest.raises(errors.Aborted):
        await ensure(handle.with_observer(lambda *told: seen.append(told)), "uid-1")

    assert (limiter.acquire.await_count, seen) == (1, [])


async def test_change_is_refused_when_the_provider_was_exchanged_before_the_call() -> None:
    """A read goes to the new provider."""
    old, new = Provider(yes), Provider(yes)

    class Exchanges:
        async def acquire(self) -> float:
            handle.swap(new.cloud("new"))
            return 0.0

    handle = CloudClient(old.cloud("old"), limiter=Exchanges())

    with pytest.raises(errors.RetryAfter, match="was replaced before the call"):
        await ensure(handle)
    assert await handle.call(EXISTS, NODE)

    assert (old.asked, new.asked) == ([], [EXISTS.__name__])


async def test_cancelled_caller_leaves_a_hanging_call_as_abandoned() -> None:
    handle = CloudClient(cloud("left", Stubborn()))
    task = spawn(ensure(handle), name="ensure")
    await settle()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert (elapsed_s(), handle.abandoned_changes) == (GRACE_S, 1)


@pytest.mark.parametrize(
    "kind",
    [
        errors.Unavailable,
        errors.DeadlineExceeded,
        errors.Unauthenticated,
        errors.PermissionDenied,
    ],
)
async def test_call_failures_are_reported_until_the_cloud_answers(
    kind: type[errors.CloudError],
) -> None:
    provider = Provider(raising(kind("x")))
    handle = CloudClient(provider.cloud("trouble"))
    for calls in (1, 2):
        with pytest.raises(kind):
            await handle.call(EXISTS, NODE)
        assert handle.call_failures is not None
        assert handle.call_failures.calls == calls
    provider.act = raising(errors.NotFound("x"))
    with pytest.raises(errors.NotFound):
        await handle.call(EXISTS, NODE)
    assert handle.call_failures is None
