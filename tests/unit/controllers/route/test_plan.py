"""Decisions about routes, and when they are compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ccm.cloud.types import Route, address
from ccm.controllers.route import plan
from ccm.controllers.route.plan import DeletionReason, Overlaps
from ccm.model import Node
from ccm.model.cidr import Network, overlap, parse_cidr, parse_ranges
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


def compare(nodes: Sequence[Node], routes: Sequence[Route], **more: Sequence[str]) -> plan.Plan:
    steps = plan.compare(nodes, routes, ranges=RANGES, **more)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: plan.Plan = end.value
            return found


AT_1 = node("a", A, ip="10.0.0.1")


@pytest.mark.parametrize(
    ("nodes", "routes", "created", "deleted"),
    [
        pytest.param([node("a", A), node("b", B)], [route("a", A)], ["b"], {}, id="missing"),
        pytest.param(
            [node("a", "a000:0:0::/64")],
            [route("a", "A000::/064")],
            [],
            {},
            id="networks, not text",
            marks=pytest.mark.row("route-range-04"),
        ),
        pytest.param(
            [node("a", A, "10.120.0.1/24")],
            [],
            ["a"],
            {},
            id="range named twice",
            marks=pytest.mark.row("route-compare-17"),
        ),
        pytest.param(
            [],
            [
                route("gone", "10.120.7.0/24", "ours"),
                route("gone", "10.121.7.0/24", "outside"),
                route("gone", "10.0.0.0/8", "wider"),
                route("gone", "10.120.0.0", "unreadable"),
                hole("hole-outside", "192.168.0.0/24"),
            ],
            [],
            {"ours": "stray"},
            id="stray and others'",
        ),
        pytest.param([node("a", A)], [hole("h", target="a")], ["a"], {"h": "blackhole"}, id="hole"),
        # A VM ends before its Node: made anew, the route would lead nowhere again.
        pytest.param([AT_1], [hole("h", ip="10.0.0.1")], [], {}, id="hole to its node"),
        pytest.param([], [hole("h", ip="10.0.0.1")], [], {"h": "blackhole"}, id="its node is gone"),
        pytest.param(
            [node("a", A, ip="10.0.0.2")],
            [hole("h", ip="10.0.0.1")],
            ["a"],
            {"h": "blackhole"},
            id="hole whose node has another address",
        ),
        pytest.param(
            [node("a", ip="10.0.0.1"), node("b", A, ip="10.0.0.2")],
            [hole("h", ip="10.0.0.1")],
            ["b"],
            {"h": "blackhole"},
            id="hole to a node with another range",
        ),
        pytest.param(
            [AT_1], [hole("h", ip="10.0.0.1"), route("a", A)], [], {"h": "duplicate"}, id="beside"
        ),
        pytest.param(
            [node("a", A)],
            [route("a", A, name) for name in ("r2", "r1", "r3")],
            [],
            {"r2": "duplicate", "r3": "duplicate"},
            id="duplicates",
            marks=pytest.mark.row("route-compare-19"),
        ),
        pytest.param([node("a", A)], [route("a", A)] * 2, [], {}, id="listed twice"),
        pytest.param(
            [AT_1],
            [strict(A, "r1", "10.0.0.9"), strict(A, "r2", "10.0.0.1")],
            [],
            {"r1": "duplicate"},
            id="the right addresses are kept",
        ),
        pytest.param([AT_1], [route("a", A, ip="10.0.0.9")], [], {}, id="addresses do not count"),
        pytest.param([AT_1], [strict(A, "r", "10.0.0.9")], ["a"], {"r": "stale"}, id="they count"),
        pytest.param([node("a", A, ip="")], [strict(A, "r", "10.0.0.9")], [], {}, id="lost them"),
        pytest.param([node("a", A, ip="")], [], [], {}, id="has none yet"),
    ],
)
def test_what_follows_whatever_the_order(
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
def test_which_ranges_have_no_route(
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


def test_a_held_node_keeps_its_routes_unless_another_node_wants_the_range() -> None:
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
def test_which_ranges_are_ours(cluster: str, cidr: str, ours: bool) -> None:
    assert plan.is_managed(network(cidr), parse_ranges(cluster)) is ours


def test_a_comparison_yields_after_each_chunk() -> None:
    nodes = [node(f"n{each}", f"10.120.{each // 256}.{each % 256}/32") for each in range(2_000)]
    routes = [route(f"n{each}", f"10.120.{each // 256}.{each % 256}/32") for each in range(2_000)]

    steps = sum(1 for _ in plan.compare(nodes, routes, ranges=RANGES))

    # The nodes, the routes and the pairs of both.
    assert steps >= 3 * len(nodes) // plan.CHUNK


@pytest.mark.parametrize(
    ("unreadable", "deletions"),
    [([], ["lost", "other"]), (["lost"], ["other"]), ([""], [])],
    ids=["all are read", "one is not", "one has no name either"],
)
def test_routes_that_could_be_those_of_an_unreadable_node_stay(
    unreadable: Sequence[str], deletions: Sequence[str]
) -> None:
    routes = [route("lost", B, "lost"), route("other", "10.120.2.0/24", "other")]

    found = compare([node("a")], routes, undecodable=unreadable)

    assert [each.route.name for each in found.deletions] == deletions
    assert found.doubtful == 2 - len(deletions)


def test_overlaps_are_those_a_look_at_each_would_find() -> None:
    rng = random.Random(7)
    networks = [
        network(f"10.{rng.randrange(4)}.{rng.randrange(256)}.0/{rng.randrange(9, 28)}")
        for _ in range(200)
    ] + [network(f"fd00:{rng.randrange(9)}::/{rng.randrange(16, 64)}") for _ in range(50)]
    index = Overlaps(networks)

    for one in networks:
        expected = [position for position, other in enumerate(networks) if overlap(one, other)]
        assert list(index.with_(one)) == expected
