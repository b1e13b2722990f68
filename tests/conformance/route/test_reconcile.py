"""One comparison of nodes and routes, on both API servers."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import Unavailable
from ccm.cloud.interface import Cloud
from ccm.cloud.lookup import NodeOwnership
from ccm.cloud.types import Route, address
from ccm.controllers.route.controller import RouteController
from ccm.controllers.route.plan import RouteSettings
from ccm.kube.resources import NODES
from ccm.model import Node, NodeAddress, names
from ccm.model.cidr import parse_ranges
from tests.conformance.environment import STATUS_PATCH, NodeEnvironment, row
from tests.support.routes import FakeRoutes
from tests.waiting import due_by, eventually

ONE, DUAL = "10.120.0.0/16", "10.120.0.0/16,a000::/8"
QUICK = RouteSettings(settle_s=0.01, interval_s=0.05)


def facts(routes: Sequence[Route]) -> set[tuple[str, str, Sequence[NodeAddress]]]:
    """Return the fields of routes that the tests compare."""
    return {(one.target_node, one.destination_cidr, one.target_addresses) for one in routes}


def made(target: str, cidr: str, *ips: str, blackhole: bool = False) -> Route:
    return Route(
        destination_cidr=cidr,
        target_node=target,
        name=f"{target}-{cidr}",
        target_addresses=tuple(address("InternalIP", ip) for ip in ips),
        blackhole=blackhole,
    )


async def placed(env: NodeEnvironment, name: str, cidrs: Sequence[str], ip: str) -> Node:
    """A node with ranges and one address."""
    node = await env.node(name, addresses=[address("InternalIP", ip)])
    if cidrs:
        spec = {"podCIDR": cidrs[0], "podCIDRs": list(cidrs)}
        node = await env.change(name, {"spec": spec})
    return node


@contextlib.asynccontextmanager
async def running(
    env: NodeEnvironment, cloud: FakeRoutes, ranges: str = ONE
) -> AsyncIterator[None]:
    controller = RouteController(
        nodes=env.informer,
        api=env.client("route-controller").resource(NODES),
        handle=CloudClient(Cloud(name="fake", routes=cloud), cluster_name="c1"),
        ranges=parse_ranges(ranges),
        ownership=NodeOwnership.from_flag(("fake",), ""),
        events=env.recorder(names.COMPONENT_ROUTE),
        settings=QUICK,
        rng=random.Random(1),
    )
    async with env.running(controller):
        yield


def conditions(env: NodeEnvironment) -> dict[str, tuple[str, str]]:
    """Node -> status and reason of NetworkUnavailable, as the cache has it."""
    return {
        node.name: (condition.status, condition.reason)
        for node in env.informer.store.list()
        for condition in node.status.conditions or ()
        if condition.type == names.CONDITION_NETWORK_UNAVAILABLE
    }


N1, N2 = ("n1", ["10.120.0.0/24"], "10.0.1.1"), ("n2", ["10.120.1.0/24"], "10.0.2.1")
N3 = ("n3", ["10.120.0.0/24", "a00:100::/24"], "10.0.3.1")
N4 = ("n4", ["10.120.1.0/24", "a00:200::/24"], "10.0.4.1")
DUAL_ROUTES = [
    made("n3", "10.120.0.0/24", "10.0.3.1"),
    made("n3", "a00:100::/24", "10.0.3.1"),
    made("n4", "10.120.1.0/24", "10.0.4.1"),
    made("n4", "a00:200::/24", "10.0.4.1"),
]
ONE_ROUTES = [made("n1", "10.120.0.0/24", "10.0.1.1"), made("n2", "10.120.1.0/24", "10.0.2.1")]
RANGES_V6 = "10.120.0.0/16,a00::/8"


def moved(routes: Sequence[Route], *ips: str) -> list[Route]:
    return [
        dataclasses.replace(one, target_addresses=tuple(address("InternalIP", ip) for ip in ips))
        for one in routes
    ]


SWAPPED = [
    made("n4", "10.120.0.0/24", "10.0.4.1"),
    made("n4", "a00:100::/24", "10.0.4.1"),
    made("n3", "10.120.1.0/24", "10.0.3.1"),
    made("n3", "a00:200::/24", "10.0.3.1"),
]
UNKNOWN = [made("node-x", "10.120.2.0/24", "10.0.9.1"), made("node-y", "a00:300::/24", "10.0.9.2")]
HOLE = made("", "10.120.2.0/24", blackhole=True)
HOLE_ELSEWHERE = made("", "10.1.2.0/24", blackhole=True)
THIRD, FOURTH = made("node-3", "10.120.2.0/24"), made("node-4", "10.120.3.0/24")


def dual(number: int, routes: Sequence[Route], *, calls: int, strict: bool = False) -> Any:
    """Two nodes with ranges of both families."""
    return row(f"route-compare-{number:02}", [N3, N4], routes, DUAL_ROUTES, calls, strict)


def one(
    number: int,
    routes: Sequence[Route],
    final: Sequence[Route] = ONE_ROUTES,
    *,
    calls: int,
    strict: bool = False,
    second: Any = N2,
) -> Any:
    """Two nodes with one range each."""
    return row(f"route-compare-{number:02}", [N1, second], routes, final, calls, strict)


@pytest.mark.parametrize(
    ("nodes", "routes", "final", "calls", "strict"),
    [
        dual(1, moved(DUAL_ROUTES), strict=True, calls=8),
        dual(2, moved(DUAL_ROUTES, "10.9.9.9"), strict=True, calls=8),
        dual(3, [], calls=4),
        dual(4, DUAL_ROUTES, calls=0),
        dual(5, SWAPPED, calls=8),
        dual(6, DUAL_ROUTES[:2], calls=2),
        dual(7, [*DUAL_ROUTES, *UNKNOWN], calls=2),
        one(8, ONE_ROUTES, calls=0),
        one(9, ONE_ROUTES[:1], calls=1),
        one(10, [], calls=2),
        one(11, moved(ONE_ROUTES, "10.9.9.9"), strict=True, calls=4),
        one(12, [*ONE_ROUTES, THIRD, FOURTH], calls=2),
        one(13, [ONE_ROUTES[0], THIRD], calls=2),
        one(14, [], ONE_ROUTES[:1], second=("n2", [], "10.0.2.1"), calls=1),
        one(15, [*ONE_ROUTES, HOLE], calls=1),
        one(16, [*ONE_ROUTES, HOLE_ELSEWHERE], [*ONE_ROUTES, HOLE_ELSEWHERE], calls=0),
    ],
)
async def test_reconcile_creates_missing_and_deletes_stale_routes(
    env: NodeEnvironment,
    nodes: Sequence[tuple[str, list[str], str]],
    routes: Sequence[Route],
    final: Sequence[Route],
    calls: int,
    strict: bool,
) -> None:
    for name, cidrs, ip in nodes:
        await placed(env, name, cidrs, ip)
    cloud = FakeRoutes(*routes, strict=strict)
    expected = {name: ("False", "RouteCreated") for name, cidrs, _ in nodes if cidrs}
    ranges = RANGES_V6 if nodes[0] is N3 else ONE

    async with running(env, cloud, ranges):
        await eventually(
            lambda: facts(cloud.routes) == facts(final) and conditions(env) == expected
        )
        await due_by(0.2)

    assert (facts(cloud.routes), conditions(env)) == (facts(final), expected)
    assert len(cloud.changes()) == calls
    assert await env.events() == []


@pytest.mark.row("route-cond-08")
@pytest.mark.both_servers
async def test_network_unavailable_condition_is_a_strategic_merge_patch(
    env: NodeEnvironment,
) -> None:
    node = await placed(env, *N1)
    async with running(env, FakeRoutes()):
        await eventually(lambda: conditions(env) != {})

    (exchange,) = env.proxy.requests(STATUS_PATCH)
    body = exchange.json()
    (condition,) = body["status"]["conditions"]
    assert condition.pop("lastHeartbeatTime") == condition.pop("lastTransitionTime")
    assert exchange.headers["content-type"] == "application/strategic-merge-patch+json"
    assert body["metadata"] == {"uid": node.uid}
    assert condition == {
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "RouteCreated",
        "message": "RouteController created a route",
    }
    kept = [each.type for each in (await env.present("n1")).status.conditions or ()]
    assert sorted(kept) == ["NetworkUnavailable", "Ready"]


ROUTED = ("False", "RouteCreated")


@pytest.mark.parametrize(
    ("present", "routed", "found"),
    [
        row("route-cond-01", None, True, "RouteCreated", label="routed"),
        row("route-cond-01", None, False, "NoRouteCreated", label="not-routed"),
        row("route-cond-02", ROUTED, True, None),
        row("route-cond-03", ("False", "CalicoIsUp"), True, "RouteCreated"),
        row("route-cond-04", ("True", "SomeOther"), False, "NoRouteCreated"),
        row("route-cond-05", ROUTED, False, "NoRouteCreated"),
        row("route-cond-06", ("True", "NoRouteCreated"), False, None),
        row("route-cond-07", ("Unknown", "RouteCreated"), True, "RouteCreated"),
    ],
)
async def test_network_unavailable_condition_is_written_only_if_it_differs(
    env: NodeEnvironment, present: tuple[str, str] | None, routed: bool, found: str | None
) -> None:
    await placed(env, *N1)
    if present:
        condition = {"type": "NetworkUnavailable", "status": present[0], "reason": present[1]}
        await env.change("n1", {"status": {"conditions": [condition]}}, subresource="status")
    cloud = FakeRoutes()
    if not routed:
        cloud.faults["create"] = Unavailable("no")

    async with running(env, cloud):
        await eventually(lambda: bool(cloud.changes()))
        if found:
            await env.proxy.wait_for(STATUS_PATCH, answered=True)
        await due_by(0.2)

    written = [body["status"]["conditions"][0]["reason"] for body in env.bodies(STATUS_PATCH)]
    assert written == ([found] if found else [])


@pytest.mark.row("route-fail-01")
@pytest.mark.both_servers
async def test_failed_creation_emits_an_event_and_is_retried(env: NodeEnvironment) -> None:
    node = await placed(env, *N1)
    cloud = FakeRoutes()
    cloud.faults["create"] = Unavailable("the cloud is tired")
    async with running(env, cloud):
        await eventually(lambda: conditions(env) == {"n1": ("True", "NoRouteCreated")})
        tries = len(cloud.changes())
        cloud.faults.clear()
        await eventually(lambda: conditions(env) == {"n1": ("False", "RouteCreated")})

    (event,) = await env.events()
    assert (event.type, event.reason) == ("Warning", "FailedToCreateRoute")
    assert event.source["component"] == "route_controller"
    about = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node.uid}
    assert event.involved_object == about
    assert "the cloud is tired" in event.message
    assert "10.120.0.0/24" in event.message
    assert tries == 1


@pytest.mark.row("route-when-05", "route-when-06")
async def test_only_relevant_node_changes_trigger_a_route_sync(env: NodeEnvironment) -> None:
    await placed(env, *N1)
    cloud = FakeRoutes()
    async with running(env, cloud):
        await eventually(lambda: conditions(env) != {})
        await due_by(0.2)
        before = len(cloud.at)

        await env.change("n1", {"metadata": {"labels": {"colour": "blue"}}})
        await due_by(0.2)
        unrelated = len(cloud.at) - before
        addresses = msgspec.to_builtins([address("InternalIP", "10.0.1.9")])
        await env.change("n1", {"status": {"addresses": addresses}}, subresource="status")
        await eventually(lambda: len(cloud.at) == before + 1)
        await placed(env, *N2)
        await eventually(lambda: len(cloud.routes) == 2)

    assert unrelated == 0


@pytest.mark.row("route-compare-18")
async def test_blackhole_route_is_replaced(env: NodeEnvironment) -> None:
    await placed(env, *N1)
    cloud = FakeRoutes(made("n1", "10.120.0.0/24", blackhole=True))
    async with running(env, cloud):
        await eventually(lambda: conditions(env) == {"n1": ("False", "RouteCreated")})

    assert cloud.changes() == ["delete n1 10.120.0.0/24", "create n1 10.120.0.0/24"]
