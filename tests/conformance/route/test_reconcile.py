"""One comparison of nodes and routes, on both API servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.routes import RouteCalls
from ccm.cloud.errors import AlreadyExists, Unavailable
from ccm.cloud.interface import Cloud
from ccm.cloud.types import Route, address
from ccm.controllers.route import controller as route_controller
from ccm.controllers.route import plan
from ccm.controllers.route.controller import RouteController
from ccm.kube.resources import NODES
from ccm.model import Node, names
from tests.conformance.stage import STATUS_PATCH, Stage, eventually
from tests.unit.controllers.route.world import timed

ONE, DUAL = "10.120.0.0/16", "10.120.0.0/16,a000::/8"
QUICK: Mapping[str, Any] = {"settle_s": 0.01, "interval_s": 0.05}


@dataclass(kw_only=True)
class FakeRoutes:
    """Routes in memory; a second route of one target and range is refused."""

    routes: list[Route] = field(default_factory=list)
    compares_addresses: bool = False
    error: Exception | None = None
    log: list[str] = field(default_factory=list)
    listed: int = 0

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        self.listed += 1
        return [
            dataclasses.replace(one, enable_node_addresses=self.compares_addresses)
            for one in self.routes
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        self.log.append(f"create {route.target_node} {route.destination_cidr}")
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error.with_traceback(None)
        if (route.target_node, route.destination_cidr) in {
            (one.target_node, one.destination_cidr) for one in self.routes
        }:
            raise AlreadyExists("there is one")
        name = f"{name_hint}-{route.destination_cidr}"
        self.routes.append(dataclasses.replace(route, name=name))

    async def delete_route(self, cluster_name: str, route: Route) -> None:
        self.log.append(f"delete {route.target_node} {route.destination_cidr}")
        await asyncio.sleep(0)
        self.routes = [one for one in self.routes if one.name != route.name]

    def present(self) -> set[tuple[str, str, tuple[str, ...]]]:
        return {
            (one.target_node, one.destination_cidr, tuple(a.address for a in one.target_addresses))
            for one in self.routes
        }


def made(target: str, cidr: str, *ips: str, blackhole: bool = False) -> Route:
    return Route(
        destination_cidr=cidr,
        target_node=target,
        name=f"{target}-{cidr}",
        target_addresses=tuple(address("InternalIP", ip) for ip in ips),
        blackhole=blackhole,
    )


async def placed(stage: Stage, name: str, cidrs: Sequence[str], ip: str) -> Node:
    """A node with ranges and one address."""
    node = await stage.node(name, addresses=[address("InternalIP", ip)])
    if cidrs:
        spec = {"podCIDR": cidrs[0], "podCIDRs": list(cidrs)}
        node = await stage.change(name, {"spec": spec})
    return node


@contextlib.asynccontextmanager
async def running(
    stage: Stage, cloud: FakeRoutes, ranges: str = ONE, **settings: Any
) -> AsyncIterator[None]:
    calls = RouteCalls(Handle(Cloud(name="fake", routes=cloud)), cluster_name="kubernetes")
    controller = RouteController(
        nodes=stage.informer,
        api=stage._client("route-controller").resource(NODES),
        cloud=calls,
        ranges=plan.parse_ranges(ranges),
        events=stage._recorder(names.COMPONENT_ROUTE),
        settings=route_controller.Settings(**timed({**QUICK, **settings})),
        rng=random.Random(1),
    )
    async with stage.running(controller):  # type: ignore[arg-type]
        yield


def conditions(stage: Stage) -> dict[str, tuple[str, str]]:
    """Node -> status and reason of NetworkUnavailable, as the cache has it."""
    return {
        node.name: (condition.status, condition.reason)
        for node in stage.informer.store.list()
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


@dataclass(frozen=True, kw_only=True)
class Case:
    row: str
    nodes: Sequence[tuple[str, list[str], str]]
    routes: Sequence[Route]
    final: Sequence[Route]
    strict: bool = False
    calls: int | None = None


def dual(number: int, routes: Sequence[Route], **more: Any) -> Case:
    final = [*DUAL_ROUTES]
    return Case(
        row=f"route-compare-{number:02}", nodes=[N3, N4], routes=routes, final=final, **more
    )


def one(number: int, routes: Sequence[Route], **more: Any) -> Case:
    fields = {"nodes": [N1, N2], "final": ONE_ROUTES, **more}
    return Case(row=f"route-compare-{number:02}", routes=routes, **fields)


SWAPPED = [
    made("n4", "10.120.0.0/24", "10.0.4.1"),
    made("n4", "a00:100::/24", "10.0.4.1"),
    made("n3", "10.120.1.0/24", "10.0.3.1"),
    made("n3", "a00:200::/24", "10.0.3.1"),
]
UNKNOWN = [
    made("node-x", "10.120.2.0/24", "10.0.9.1"),
    made("node-y", "a00:300::/24", "10.0.9.2"),
]
HOLE, HOLE_ELSEWHERE = (
    made("", "10.120.2.0/24", blackhole=True),
    made("", "10.1.2.0/24", blackhole=True),
)
CASES = [
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
    one(
        12,
        [*ONE_ROUTES, made("node-3", "10.120.2.0/24"), made("node-4", "10.120.3.0/24")],
        calls=2,
    ),
    one(13, [ONE_ROUTES[0], made("node-3", "10.120.2.0/24")], calls=2),
    one(14, [], nodes=[N1, ("n2", [], "10.0.2.1")], final=ONE_ROUTES[:1], calls=1),
    one(15, [*ONE_ROUTES, HOLE], calls=1),
    one(16, [*ONE_ROUTES, HOLE_ELSEWHERE], final=[*ONE_ROUTES, HOLE_ELSEWHERE], calls=0),
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.row, marks=pytest.mark.row(case.row)) for case in CASES]
)
async def test_reconcile(stage: Stage, case: Case) -> None:
    for name, cidrs, ip in case.nodes:
        await placed(stage, name, cidrs, ip)
    cloud = FakeRoutes(routes=list(case.routes), compares_addresses=case.strict)
    wanted = {
        (each.target_node, each.destination_cidr, tuple(a.address for a in each.target_addresses))
        for each in case.final
    }
    expected = {name: ("False", "RouteCreated") for name, cidrs, _ in case.nodes if cidrs}
    ranges = RANGES_V6 if case.nodes[0] is N3 else ONE

    async with running(stage, cloud, ranges):
        await eventually(lambda: cloud.present() == wanted and conditions(stage) == expected)
        await asyncio.sleep(0.2)

    assert (cloud.present(), conditions(stage)) == (wanted, expected)
    assert len(cloud.log) == case.calls
    assert await stage.events() == []


@pytest.mark.row("route-cond-08")
@pytest.mark.both_servers
async def test_a_condition_as_it_is_written(stage: Stage) -> None:
    node = await placed(stage, *N1)
    async with running(stage, FakeRoutes()):
        await eventually(lambda: conditions(stage) != {})

    (exchange,) = stage.proxy.requests(STATUS_PATCH)
    body = exchange.json()
    (condition,) = body["status"]["conditions"]
    heartbeat, transition = condition.pop("lastHeartbeatTime"), condition.pop("lastTransitionTime")
    assert exchange.headers["content-type"] == "application/strategic-merge-patch+json"
    assert body["metadata"] == {"uid": node.uid}
    assert heartbeat == transition
    assert condition == {
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "RouteCreated",
        "message": "RouteController created a route",
    }
    kept = [each.type for each in (await stage.present("n1")).status.conditions or ()]
    assert sorted(kept) == ["NetworkUnavailable", "Ready"]


@pytest.mark.parametrize(
    ("present", "routed", "found"),
    [
        pytest.param(None, True, "RouteCreated", marks=pytest.mark.row("route-cond-01")),
        pytest.param(None, False, "NoRouteCreated", marks=pytest.mark.row("route-cond-01")),
        pytest.param(("False", "RouteCreated"), True, None, marks=pytest.mark.row("route-cond-02")),
        pytest.param(
            ("False", "CalicoIsUp"), True, "RouteCreated", marks=pytest.mark.row("route-cond-03")
        ),
        pytest.param(
            ("True", "SomeOther"), False, "NoRouteCreated", marks=pytest.mark.row("route-cond-04")
        ),
        pytest.param(
            ("False", "RouteCreated"),
            False,
            "NoRouteCreated",
            marks=pytest.mark.row("route-cond-05"),
        ),
        pytest.param(
            ("True", "NoRouteCreated"), False, None, marks=pytest.mark.row("route-cond-06")
        ),
        pytest.param(
            ("Unknown", "RouteCreated"),
            True,
            "RouteCreated",
            marks=pytest.mark.row("route-cond-07"),
        ),
    ],
)
async def test_condition(
    stage: Stage, present: tuple[str, str] | None, routed: bool, found: str | None
) -> None:
    await placed(stage, *N1)
    if present:
        condition = {"type": "NetworkUnavailable", "status": present[0], "reason": present[1]}
        await stage.change("n1", {"status": {"conditions": [condition]}}, subresource="status")
    cloud = FakeRoutes(error=None if routed else Unavailable("no"))

    async with running(stage, cloud):
        await eventually(lambda: bool(cloud.log))
        await asyncio.sleep(0.2)

    written = [body["status"]["conditions"][0]["reason"] for body in stage.bodies(STATUS_PATCH)]
    assert written == ([found] if found else [])


@pytest.mark.row("route-fail-01")
@pytest.mark.both_servers
async def test_a_failure_is_told_and_mended(stage: Stage) -> None:
    node = await placed(stage, *N1)
    cloud = FakeRoutes(error=Unavailable("the cloud is tired"))
    async with running(stage, cloud):
        await eventually(lambda: conditions(stage) == {"n1": ("True", "NoRouteCreated")})
        tries = len(cloud.log)
        cloud.error = None
        await eventually(lambda: conditions(stage) == {"n1": ("False", "RouteCreated")})

    (told,) = await stage.events()
    assert (told.type, told.reason, told.component) == (
        "Warning",
        "FailedToCreateRoute",
        "route_controller",
    )
    assert told.involved["apiVersion"] == "v1"
    assert (told.involved["kind"], told.involved["uid"]) == ("Node", node.uid)
    assert "the cloud is tired" in told.message
    assert "10.120.0.0/24" in told.message
    assert tries == 1


@pytest.mark.row("route-when-05", "route-when-06")
async def test_changes_that_matter_and_that_do_not(stage: Stage) -> None:
    await placed(stage, *N1)
    cloud = FakeRoutes()
    async with running(stage, cloud):
        await eventually(lambda: conditions(stage) != {})
        await asyncio.sleep(0.2)
        before = cloud.listed

        await stage.change("n1", {"metadata": {"labels": {"colour": "blue"}}})
        await asyncio.sleep(0.2)
        unrelated = cloud.listed - before
        addresses = msgspec.to_builtins([address("InternalIP", "10.0.1.9")])
        await stage.change("n1", {"status": {"addresses": addresses}}, subresource="status")
        await eventually(lambda: cloud.listed == before + 1)
        await placed(stage, *N2)
        await eventually(lambda: len(cloud.routes) == 2)

    assert unrelated == 0


@pytest.mark.row("route-compare-18")
async def test_a_blackhole_is_no_route(stage: Stage) -> None:
    await placed(stage, *N1)
    cloud = FakeRoutes(routes=[made("n1", "10.120.0.0/24", blackhole=True)])
    async with running(stage, cloud):
        await eventually(lambda: conditions(stage) == {"n1": ("False", "RouteCreated")})

    assert cloud.log == ["delete n1 10.120.0.0/24", "create n1 10.120.0.0/24"]
