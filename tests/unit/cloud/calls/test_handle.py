"""The handle and the history of its calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ccm.base import clock, metrics, redact
from ccm.base.drain import Drain
from ccm.base.lease_guard import Lapsed, LeaseGuard
from ccm.cloud import (
    Cloud,
    Credentials,
    Identity,
    InstancesV2,
    Limits,
    ListMachinesRequest,
    LoadBalancer,
    MachineDriver,
    MachineRequest,
    NotFound,
    Rate,
    Route,
    Routes,
    Unavailable,
    errors,
)
from ccm.cloud.calls import history, responses
from ccm.cloud.calls.handle import OUTCOMES, Handle
from ccm.cloud.calls.history import History
from ccm.cloud.operation import DECLARED, Operation, operation
from ccm.testing.builders import node, service
from ccm.testing.clock import advance, elapsed_s, settle
from tests.support.calls import Provider, cloud

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


async def yes() -> bool:
    return True


async def call(handle: Handle, method: Callable[..., Any]) -> object:
    """Any method, with arguments of no meaning."""
    given: dict[str, object] = {"node": NODE, "service": NODE, "route": ROUTE, "req": MACHINE}
    names = DECLARED[method.__name__].parameters
    return await handle.call(method, *(given.get(name, "x") for name in names))


def count(provider: str, operation: str, outcome: str) -> float:
    labels = {"provider": provider, "operation": operation, "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("ccm_cloud_calls_total", labels) or 0.0


def measured(name: str, provider: str, operation: str, what: str) -> float:
    labels = {"provider": provider, "operation": operation}
    return metrics.REGISTRY.get_sample_value(f"ccm_cloud_{name}_{what}", labels) or 0.0


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


@pytest.mark.parametrize("method", OPERATIONS, ids=lambda one: str(one.__name__))
async def test_what_changes_something_is_waited_for(method: Callable[..., Any]) -> None:
    stopping = Drain()
    stopping.govern()
    waited_for = []

    async def act() -> None:
        waited_for.append(stopping.under_way == 1)

    with contextlib.suppress(errors.Internal):
        await call(Handle(cloud("acme", act)), method)

    changes = method.__name__.startswith(("create", "delete", "ensure", "initialize", "update"))
    assert waited_for == [changes]


def test_one_name_is_declared_in_one_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECLARED, "delete_route", DECLARED["delete_route"])  # put back

    async def delete_route(self: object, name: str) -> None: ...

    with pytest.raises(ValueError, match="'delete_route'"):
        operation(change=False)(delete_route)


async def test_calls_keep_to_the_rate_the_provider_declares() -> None:
    handle = Handle(cloud("rated", yes, limits=Limits(rate=Rate(qps=2, burst=3))))
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
async def test_each_outcome_is_counted_and_told(error: Exception, outcome: str) -> None:
    seen: list[tuple[str, str]] = []
    before = count("counted", "instance_exists", outcome)
    handle = Handle(cloud("counted", raising(error)))

    with pytest.raises(errors.CloudError):
        await handle.observe(lambda *told: seen.append(told)).call(EXISTS, NODE)
    with pytest.raises(errors.CloudError):
        await handle.call(EXISTS, NODE)

    assert count("counted", "instance_exists", outcome) == before + 2
    assert seen == [("instance_exists", outcome)]


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


async def test_a_wrapper_sees_the_call_as_a_value_and_within_what_a_stop_waits_for() -> None:
    stopping, seen = Drain(), []
    stopping.govern()
    provider = Provider(yes)

    async def journal(operation: Operation, go_on: Callable[[], Awaitable[object]]) -> object:
        seen.append((operation, stopping.under_way, list(provider.asked)))
        return await go_on()

    handle = Handle(provider.cloud("wrapped")).around(journal)
    await handle.call(Routes.create_route, "c1", "hint", ROUTE)

    arguments = {"cluster_name": "c1", "name_hint": "hint", "route": ROUTE}
    expected = Operation(
        verb="create_route",
        subject="10.0.0.0/24",
        arguments=arguments,
        deadline_s=300.0,
        change=True,
    )
    assert seen == [(expected, 1, [])]
    assert provider.asked == ["create_route"]


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


async def test_a_cancellation_inside_the_provider_does_not_end_the_caller() -> None:
    """Something of the provider's own was cancelled, not us."""
    with pytest.raises(errors.Canceled, match="was cancelled inside the provider"):
        await Handle(cloud("inside", raising(asyncio.CancelledError()))).call(EXISTS, NODE)


@pytest.mark.parametrize("act", [swallow, translate])
async def test_what_comes_after_the_deadline_is_no_answer(
    act: Callable[[], Awaitable[bool]],
) -> None:
    """Else a cloud that hangs would read as "gone"."""

    with pytest.raises(errors.DeadlineExceeded, match="longer than 60 s"):
        await Handle(cloud("late", act)).call(EXISTS, NODE)


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("g", [SystemExit(3)])])
async def test_a_provider_cannot_end_the_daemon(error: BaseException) -> None:
    with pytest.raises(errors.Internal) as caught:
        await Handle(cloud("fatal", raising(error))).call(EXISTS, NODE)

    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(KeyError("x"), errors.Internal), (errors.OutOfRange("x"), errors.OutOfRange)],
)
def test_a_computed_answer_fails_with_a_cloud_error(
    raised: Exception, kind: type[errors.CloudError]
) -> None:
    class Failing:
        def get_load_balancer_name(self, *_: object) -> str:
            raise raised

    failing: Any = Failing()
    service: Any = None
    handle = Handle(Cloud(name="fake", load_balancer=failing))

    with pytest.raises(kind) as caught:
        handle.compute(LoadBalancer.get_load_balancer_name, "c1", service)
    assert caught.value.__cause__ is not caught.value


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


SECRET = "hunter2-hunter2"

M0 = Identity(cluster="c", pool="small", name="m0", uid="u")
OF: Mapping[str, Any] = {"provider_spec": {}, "credentials": Credentials({})}


def note(
    kept: History,
    name: str = "n1",
    verb: str = "instance_exists",
    error: Exception | None = None,
    answer: object = None,
) -> None:
    """One call about a node."""
    operation = Operation(
        verb=verb, subject="", arguments={"node": node(name)}, deadline_s=60.0, change=False
    )
    with contextlib.suppress(Unavailable, NotFound), kept.begin(operation) as entry:
        entry.running()
        if error is not None:
            raise error
        entry.answered(answer)


def shown(kept: History, name: str = "n1") -> list[tuple[str, str, int]]:
    return [(call.verb, call.state, call.times) for call in kept.of(("node", name))]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"node": node("n1")}, ("node", "n1")),
        ({"cluster_name": "c", "service": service("web"), "nodes": ()}, ("service", "default/web")),
        (
            {"cluster_name": "c", "route": Route(destination_cidr="10.0.0.0/24", target_node="n2")},
            ("node", "n2"),
        ),
        ({"node_name": "n3"}, ("node", "n3")),
        ({"provider_id": "sim://1"}, ("provider-id", "sim://1")),
        ({"req": MachineRequest(identity=M0, **OF)}, ("machine", "m0")),
        ({"req": ListMachinesRequest(cluster="c", pool="small", **OF)}, ("pool", "small")),
        ({"cluster_name": "c"}, history.NOBODY),
    ],
    ids=["node", "Service", "route", "name", "provider ID", "machine", "pool", "listing"],
)
def test_a_call_is_about_what_its_arguments_name(
    arguments: Mapping[str, object], key: history.Key
) -> None:
    assert history.about(arguments) == key


async def test_calls_that_end_alike_are_one() -> None:
    kept = History()
    for _ in range(20):
        note(kept, answer=True)
        await advance(1.0)
    for _ in range(3):
        note(kept, error=Unavailable("503"))
    note(kept, answer=True)

    assert shown(kept) == [
        ("instance_exists", "ok", 20),
        ("instance_exists", "Unavailable", 3),
        ("instance_exists", "ok", 1),
    ]


async def test_an_error_is_one_line_whatever_the_cloud_says() -> None:
    kept = History()
    note(kept, error=Unavailable("<html>\n\tBad\x1b[31m Gateway\n</html>"))
    note(kept, error=Unavailable("again"))

    assert [(call.text, call.times) for call in kept.of(("node", "n1"))] == [("again", 2)]
    assert history.text_of(Unavailable("<html>\n\tBad\x1b[31m")) == "<html> Bad?[31m"


async def test_few_are_kept_of_each_object_and_of_few_objects() -> None:
    kept = History(most_keys=3)
    for number in range(20):
        note(kept, verb=f"verb-{number}")
    for name in ("n2", "n3", "n4"):
        note(kept, name)

    assert len(kept.of(("node", "n2"))) == 1
    assert kept.of(("node", "n1")) == ()
    for number in range(20):
        note(kept, "n4", verb=f"verb-{number}")
    assert [call.verb for call in kept.of(("node", "n4"))] == [
        f"verb-{number}" for number in range(20 - history.EACH, 20)
    ]


async def test_texts_have_a_limit_each_and_together() -> None:
    kept = History(most_text=1000)
    for number in range(10):
        note(kept, f"n{number}", error=Unavailable(f"{number} {'x' * 1000}"))

    lengths = [sum(len(call.text) for call in kept.of(("node", f"n{n}"))) for n in range(10)]
    assert lengths == [0] * 7 + [history.LONGEST] * 3
    # What makes room is counted no more, else nothing would be kept in the end.
    for number in range(50):
        error = Unavailable(f"{number} {'y' * 1000}")
        note(kept, "n9", verb=f"verb-{number % 2}", error=error)
        note(kept, "n9", verb=f"verb-{number % 2}", error=error)
    assert len(kept.of(("node", "n9"))) in (2, 3)


async def test_a_secret_is_not_kept_and_not_cut_in_half() -> None:
    redact.know(SECRET)
    kept = History()
    note(kept, error=Unavailable(f"{'x' * (history.LONGEST - 8)}{SECRET}"))
    redact.forget(SECRET)

    (call,) = kept.of(("node", "n1"))
    assert SECRET[:4] not in call.text
