"""Comparison of nodes and routes, and the changes that it plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ccm.cloud.types import Route, address
from ccm.controllers.route import plan
from ccm.controllers.route.plan import DeletionReason
from ccm.model import Node
from ccm.model.cidr import Network, parse_cidr, parse_ranges
from ccm.testing.builders import node as build

RANGES = parse_ranges("10.120.0.0/16,a000::/8")
A, B = "10.120.0.0/24", "10.120.1.0/24"


def network(text: str) -> Network:
    found = parse_cidr(text)
    assert found is not None
    return found


def node(name: str, *cidrs: str, ip: str = "10.0.0.254") -> Node:
    return build(name, pod_cidrs=cidrs, addresses=[address("InternalIP", ip)] if ip else ())


def route(target: str, cidr: str, name: str = "r", *, ip: str = "", **fields: bool) -> Route:
    addresses = (address("InternalIP", ip),) if ip else ()
    return Route(
        destination_cidr=cidr, target_node=target, name=name, target_addresses=addresses, **fields
    )


def strict(cidr: str, name: str, ip: str) -> Route:
    return route("a", cidr, name, ip=ip, enable_node_addresses=True)


def hole(name: str, cidr: str = A, target: str = "", *, ip: str = "") -> Route:
    return route(target, cidr, name, ip=ip, blackhole=True)


def compare(
    nodes: Sequence[Node], routes: Sequence[Route], **more: Sequence[str]
) -> plan.RoutePlan:
    steps = plan.compare(nodes, routes, ranges=RANGES, **more)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: plan.RoutePlan = end.value
            return found


AT_1 = node("a", A, ip="10.0.0.1")


NO_IP, STALE = node("a", A, ip=""), strict(A, "r", "10.0.0.9")
TO_A, HOLE_1 = route("a", A), hole("h", ip="10.0.0.1")
GONE = [
    route("gone", "10.120.7.0/24", "ours"),
    route("gone", "10.121.7.0/24", "outside"),
    route("gone", "10.0.0.0/8", "wider"),
    route("gone", "10.120.0.0", "unreadable"),
    hole("hole-outside", "192.168.0.0/24"),
]
TWICE = [strict(A, "r1", "10.0.0.9"), strict(A, "r2", "10.0.0.1")]
THRICE = [route("a", A, name) for name in ("r2", "r1", "r3")]


def case(
    name: str,
    nodes: list[Node],
    routes: list[Route],
    created: str = "",
    *,
    row: str = "",
    **gone: str,
) -> Any:
    """Expect routes to the nodes in `created`; `gone` maps deleted routes to reasons."""
    marks = [pytest.mark.row(row)] if row else []
    return pytest.param(nodes, routes, created.split(), gone, id=name, marks=marks)


@pytest.mark.parametrize(
    ("nodes", "routes", "created", "deleted"),
    [
        case("missing", [node("a", A), node("b", B)], [TO_A], "b"),
        case(
            *("networks, not text", [node("a", "a000:0:0::/64")], [route("a", "A000::/064")]),
            row="route-range-04",
        ),
        case("named twice", [node("a", A, "10.120.0.1/24")], [], "a", row="route-compare-17"),
        case("stray and others'", [], GONE, ours="stray"),
        case("hole", [node("a", A)], [hole("h", target="a")], "a", h="blackhole"),
        # A VM ends before its Node: a recreated route would be a blackhole again.
        case("hole to its node", [AT_1], [HOLE_1]),
        case("its node is gone", [], [HOLE_1], h="blackhole"),
        case("of another address", [node("a", A, ip="10.0.0.2")], [HOLE_1], "a", h="blackhole"),
        case(
            *("of another range", [node("a", ip="10.0.0.1"), node("b", A, ip="10.0.0.2")]),
            *([HOLE_1], "b"),
            h="blackhole",
        ),
        case("beside", [AT_1], [HOLE_1, TO_A], h="duplicate"),
        case(
            *("duplicates", [node("a", A)], THRICE),
            row="route-compare-19",
            r2="duplicate",
            r3="duplicate",
        ),
        case("listed twice", [node("a", A)], [TO_A] * 2),
        case("the right addresses are kept", [AT_1], TWICE, r1="duplicate"),
        case("addresses do not count", [AT_1], [route("a", A, ip="10.0.0.9")]),
        case("they count", [AT_1], [STALE], "a", r="stale"),
        case("lost them", [NO_IP], [STALE]),
        case("has none yet", [NO_IP], []),
    ],
)
def test_comparison_plans_the_same_changes_for_any_input_order(
    nodes: list[Node], routes: list[Route], created: list[str], deleted: dict[str, str]
) -> None:
    for _ in range(3):
        found = compare(nodes, routes)

        assert [each.node.name for each in found.creations] == created
        assert {each.route.name: each.reason.value for each in found.deletions} == deleted
        assert len(found.deletions) == len(deleted)
        nodes, routes = nodes[::-1], random.Random(1).sample(routes, len(routes))


@pytest.mark.parametrize(
    ("nodes", "routes", "missing"),
    [
        ([node("a", A), node("b", B)], [route("a", A)], {"a": set(), "b": {network(B)}}),
        ([node("a", A, "nonsense")], [route("a", A)], {"a": {"nonsense"}}),
        ([node("a", A, ip="")], [strict(A, "r", "10.0.0.9")], {"a": set()}),
        ([node("a", A, ip="")], [], {"a": {network(A)}}),
        ([node("bare")], [], {}),
    ],
)
def test_comparison_reports_missing_pod_cidrs_per_node(
    nodes: list[Node], routes: list[Route], missing: dict[str, set[Any]]
) -> None:
    found = compare(nodes, routes)

    assert (found.missing, list(found.cut_off)) == (missing, [])


@pytest.mark.row("route-compare-20")
def test_creations_wait_for_every_deletion_that_overlaps() -> None:
    found = compare(
        [node("a", "10.120.0.0/23"), node("b", "10.120.64.0/26"), node("c", "10.120.99.0/24")],
        [
            route("old", A, "r0"),
            route("old", B, "r1"),
            route("old", "10.120.2.0/24", "r2"),
            route("old", "10.120.64.0/20", "r64"),
        ],
    )

    waits = {
        each.node.name: [found.deletions[position].route.name for position in each.after]
        for each in found.creations
    }
    assert waits == {"a": ["r0", "r1"], "b": ["r64"], "c": []}


def test_held_node_keeps_its_routes_unless_another_node_has_the_pod_cidr() -> None:
    routes = [route("bare", A, "r0"), route("bare", B, "r1")]

    held = compare([node("bare"), node("b", "10.120.1.0/25")], routes, held=["bare"])
    free = compare([node("bare")], routes)

    assert [each.route.name for each in held.deletions] == ["r1"]
    assert [each.route.name for each in free.deletions] == ["r0", "r1"]
    assert {each.reason for each in free.deletions} == {DeletionReason.STRAY}
    assert (list(held.cut_off), list(free.cut_off)) == ([], ["bare"])


@pytest.mark.parametrize(
    ("cluster", "cidr", "ours"),
    [
        pytest.param(cluster, cidr, ours, marks=pytest.mark.row(row))
        for row, ours, cluster, cidrs in [
            ("route-range-01", True, "10.244.0.0/16", "10.244.0.0/24 10.244.10.0/24"),
            ("route-range-01", True, "10.244.0.0/16", "10.244.255.0/24 10.244.0.0/16"),
            ("route-range-01", True, "10.244.0.0/14", "10.244.0.0/24 10.247.255.0/24"),
            ("route-range-01", True, "a00:100::/10", "a00:100::/24"),
            ("route-range-01", True, "10.244.0.0/16,a00::/8", "10.244.1.0/24 a00:1::/64"),
            ("route-range-02", False, "10.244.0.0/16", "10.224.0.0/24 10.0.10.0/24"),
            ("route-range-02", False, "10.244.0.0/16", "10.255.255.0/24 10.240.0.0/12"),
            ("route-range-02", False, "10.244.0.0/16", "10.244.0.0/15 10.0.0.0/8"),
            ("route-range-02", False, "10.247.0.0/16", "10.244.0.0/14 10.240.0.0/13"),
            ("route-range-02", False, "10.244.0.0/14", "10.248.0.0/24 10.243.255.0/24"),
            ("route-range-02", False, "a00:100::/10", "b00:100::/24 10.0.0.0/24"),
        ]
        for cidr in cidrs.split()
    ],
)
def test_route_is_managed_only_inside_the_cluster_cidrs(
    cluster: str, cidr: str, ours: bool
) -> None:
    assert plan.is_managed(network(cidr), parse_ranges(cluster)) is ours


def test_a_comparison_yields_after_each_chunk() -> None:
    nodes = [node(f"n{each}", f"10.120.{each // 256}.{each % 256}/32") for each in range(2_000)]
    routes = [route(f"n{each}", f"10.120.{each // 256}.{each % 256}/32") for each in range(2_000)]

    steps = sum(1 for _ in plan.compare(nodes, routes, ranges=RANGES))

    # One pass over the nodes, one over the routes, one over the pairs.
    assert steps >= 3 * len(nodes) // plan.CHUNK


@pytest.mark.parametrize(
    ("unreadable", "deletions"),
    [([], ["lost", "other"]), (["lost"], ["other"]), ([""], [])],
    ids=["all are read", "one is not", "one has no name either"],
)
def test_routes_of_a_malformed_node_are_not_deleted(
    unreadable: Sequence[str], deletions: Sequence[str]
) -> None:
    routes = [route("lost", B, "lost"), route("other", "10.120.2.0/24", "other")]

    found = compare([node("a")], routes, undecodable=unreadable)

    assert [each.route.name for each in found.deletions] == deletions
    assert found.undecidable == 2 - len(deletions)
