"""Decisions about routes, and their schedule."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ccm.cloud.types import Route, address
from ccm.controllers.route import plan
from ccm.controllers.route.overlaps import Overlaps
from ccm.controllers.route.plan import DeletionReason
from ccm.controllers.route.schedule import Schedule, Times
from ccm.model import Node
from ccm.model.cidr import Network, overlap, parse_cidr, parse_ranges
from ccm.testing.builders import node as build

RANGES = parse_ranges("10.120.0.0/16,a000::/8")


def network(text: str) -> Network:
    found = parse_cidr(text)
    assert found is not None
    return found


def node(name: str, *cidrs: str, ip: str = "10.0.0.254") -> Node:
    return build(name, pod_cidrs=cidrs, addresses=[address("InternalIP", ip)] if ip else ())


def route(target: str, cidr: str, name: str = "", *, ip: str = "", **fields: bool) -> Route:
    addresses = (address("InternalIP", ip),) if ip else ()
    return Route(
        destination_cidr=cidr, target_node=target, name=name, target_addresses=addresses, **fields
    )


def compare(nodes: Sequence[Node], routes: Sequence[Route], **more: Sequence[str]) -> plan.Plan:
    steps = plan.compare(nodes, routes, ranges=RANGES, **more)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: plan.Plan = end.value
            return found


def created(found: plan.Plan) -> list[tuple[str, str]]:
    return [(each.node.name, each.cidr) for each in found.creations]


def deleted(found: plan.Plan) -> list[tuple[str, DeletionReason]]:
    return [
        (each.route.name or each.route.destination_cidr, each.reason) for each in found.deletions
    ]


def test_a_missing_route_is_created_and_a_present_one_kept() -> None:
    found = compare(
        [node("a", "10.120.0.0/24"), node("b", "10.120.1.0/24")], [route("a", "10.120.0.0/24", "r")]
    )

    assert created(found) == [("b", "10.120.1.0/24")]
    assert deleted(found) == []
    assert found.kept == 1
    assert found.missing == {"a": set(), "b": {network("10.120.1.0/24")}}


@pytest.mark.row("route-range-04")
def test_ranges_are_compared_as_networks() -> None:
    found = compare([node("a", "a000:0:0::/64")], [route("a", "A000::/064", "r")])

    assert (created(found), deleted(found)) == ([], [])


@pytest.mark.row("route-compare-17")
def test_a_range_named_twice_is_one() -> None:
    found = compare([node("a", "10.120.0.0/24", "10.120.0.1/24")], [])

    assert created(found) == [("a", "10.120.0.0/24")]


def test_a_range_that_nobody_can_read_stays_missing() -> None:
    found = compare([node("a", "10.120.0.0/24", "nonsense")], [route("a", "10.120.0.0/24")])

    assert created(found) == []
    assert found.missing == {"a": {"nonsense"}}


def test_a_stray_route_goes_and_foreign_ones_stay() -> None:
    found = compare(
        [],
        [
            route("gone", "10.120.7.0/24", "stray"),
            route("gone", "10.121.7.0/24", "outside"),
            route("gone", "10.0.0.0/8", "wider"),
            route("gone", "10.120.0.0", "unreadable"),
            route("", "192.168.0.0/24", "hole-outside", blackhole=True),
        ],
    )

    assert deleted(found) == [("stray", DeletionReason.STRAY)]


def test_a_blackhole_to_no_address_of_a_node_satisfies_none() -> None:
    found = compare(
        [node("a", "10.120.0.0/24")], [route("a", "10.120.0.0/24", "hole", blackhole=True)]
    )

    assert deleted(found) == [("hole", DeletionReason.BLACKHOLE)]
    assert created(found) == [("a", "10.120.0.0/24")]
    assert list(found.creations[0].after) == [0]


@pytest.mark.parametrize(
    ("nodes", "gone", "made"),
    [
        ([node("a", "10.120.0.0/24", ip="10.0.0.1")], [], []),
        ([], ["hole"], []),
        ([node("a", "10.120.0.0/24", ip="10.0.0.2")], ["hole"], ["a"]),
        (
            [node("a", ip="10.0.0.1"), node("b", "10.120.0.0/24", ip="10.0.0.2")],
            ["hole"],
            ["b"],
        ),
    ],
    ids=["its node", "its node is gone", "its node has another", "a node with another range"],
)
def test_a_blackhole_goes_no_sooner_than_the_claim_to_its_address(
    nodes: list[Node], gone: list[str], made: list[str]
) -> None:
    """A VM ends before its Node: made anew, the route would lead nowhere again."""
    hole = route("", "10.120.0.0/24", "hole", ip="10.0.0.1", blackhole=True)

    found = compare(nodes, [hole])

    assert deleted(found) == [(name, DeletionReason.BLACKHOLE) for name in gone]
    assert [name for name, _ in created(found)] == made


def test_a_blackhole_goes_where_another_route_leads_to_its_node() -> None:
    routes = [
        route("", "10.120.0.0/24", "a-hole", ip="10.0.0.1", blackhole=True),
        route("a", "10.120.0.0/24", "b"),
    ]

    found = compare([node("a", "10.120.0.0/24", ip="10.0.0.1")], routes)

    assert (deleted(found), created(found)) == ([("a-hole", DeletionReason.DUPLICATE)], [])


@pytest.mark.row("route-compare-19")
def test_a_duplicate_goes_and_the_same_one_is_kept_whatever_the_order() -> None:
    routes = [route("a", "10.120.0.0/24", name) for name in ("r2", "r1", "r3")]
    for seed in range(5):
        random.Random(seed).shuffle(routes)

        found = compare([node("a", "10.120.0.0/24")], routes)

        assert deleted(found) == [
            ("r2", DeletionReason.DUPLICATE),
            ("r3", DeletionReason.DUPLICATE),
        ]
        assert created(found) == []


def test_a_route_listed_twice_is_no_duplicate() -> None:
    twice = [route("a", "10.120.0.0/24", "r") for _ in range(2)]

    found = compare([node("a", "10.120.0.0/24")], twice)

    assert deleted(found) == []


def test_of_duplicates_the_one_with_the_right_addresses_is_kept() -> None:
    routes = [
        route("a", "10.120.0.0/24", "r1", ip="10.0.0.9", enable_node_addresses=True),
        route("a", "10.120.0.0/24", "r2", ip="10.0.0.1", enable_node_addresses=True),
    ]

    found = compare([node("a", "10.120.0.0/24", ip="10.0.0.1")], routes)

    assert deleted(found) == [("r1", DeletionReason.DUPLICATE)]


def test_old_addresses_count_only_where_the_provider_wants_it() -> None:
    nodes = [node("a", "10.120.0.0/24", ip="10.0.0.1")]
    old = route("a", "10.120.0.0/24", "r", ip="10.0.0.9")
    strict = route("a", "10.120.0.0/24", "r", ip="10.0.0.9", enable_node_addresses=True)

    assert deleted(compare(nodes, [old])) == []
    assert deleted(compare(nodes, [strict])) == [("r", DeletionReason.STALE)]
    assert created(compare(nodes, [strict])) == [("a", "10.120.0.0/24")]


def test_a_node_without_addresses_gets_no_route_and_keeps_the_one_it_has() -> None:
    cidr = "10.120.0.0/24"
    strict = route("a", cidr, "r", ip="10.0.0.9", enable_node_addresses=True)

    lost = compare([node("a", cidr, ip="")], [strict])
    new = compare([node("a", cidr, ip="")], [])

    assert (created(lost), deleted(lost), lost.missing) == ([], [], {"a": set()})
    assert (created(new), deleted(new), new.missing) == ([], [], {"a": {network(cidr)}})


@pytest.mark.row("route-compare-20")
def test_creations_wait_for_every_deletion_that_overlaps() -> None:
    found = compare(
        [node("a", "10.120.0.0/23"), node("b", "10.120.64.0/26"), node("c", "10.120.99.0/24")],
        [
            route("old", "10.120.0.0/24", "r0"),
            route("old", "10.120.1.0/24", "r1"),
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
    routes = [route("bare", "10.120.0.0/24", "r0"), route("bare", "10.120.1.0/24", "r1")]

    held = compare([node("bare"), node("b", "10.120.1.0/25")], routes, held=["bare"])
    not_held = compare([node("bare")], routes)

    assert deleted(held) == [("r1", DeletionReason.STRAY)]
    assert list(held.cut_off) == []
    assert deleted(not_held) == [("r0", DeletionReason.STRAY), ("r1", DeletionReason.STRAY)]
    assert list(not_held.cut_off) == ["bare"]


def test_a_node_without_ranges_and_routes_is_nothing_to_speak_of() -> None:
    found = compare([node("bare")], [])

    assert (dict(found.missing), list(found.cut_off)) == ({}, [])


def test_a_plan_does_not_depend_on_the_order_of_what_it_is_made_from() -> None:
    nodes = [node(f"n{number}", f"10.120.{number}.0/24") for number in range(20)]
    routes = [route(f"n{number + 5}", f"10.120.{number}.0/24", f"r{number}") for number in range(9)]
    expected = compare(nodes, routes)
    for seed in range(5):
        random.Random(seed).shuffle(nodes)
        random.Random(seed).shuffle(routes)

        found = compare(nodes, routes)

        assert (found.creations, found.deletions) == (expected.creations, expected.deletions)


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


def test_the_condition_as_it_is_written() -> None:
    patch = plan.condition_patch(node("a"), created=True, now="2026-01-01T00:00:00Z")

    assert patch == {
        "metadata": {"uid": "uid-a"},
        "status": {
            "conditions": [
                {
                    "type": "NetworkUnavailable",
                    "status": "False",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                    "reason": "RouteCreated",
                    "message": "RouteController created a route",
                }
            ]
        },
    }


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


def test_a_comparison_stops_often_enough_for_others_to_work() -> None:
    nodes = [node(f"n{n}", f"10.120.{n // 256}.{n % 256}/32") for n in range(5000)]
    routes = [route(f"n{n}", f"10.120.{n // 256}.{n % 256}/32") for n in range(2500)]
    stops = sum(1 for _ in plan.compare(nodes, routes, ranges=RANGES))

    assert stops >= (5000 + 2500) / 500


@pytest.mark.parametrize(
    ("unreadable", "deletions"),
    [([], ["lost", "other"]), (["lost"], ["other"]), ([""], [])],
    ids=["all are read", "one is not", "one has no name either"],
)
def test_routes_that_could_be_those_of_an_unreadable_node_stay(
    unreadable: Sequence[str], deletions: Sequence[str]
) -> None:
    routes = [route("lost", "10.120.1.0/24", "lost"), route("other", "10.120.2.0/24", "other")]

    found = compare([node("a")], routes, undecodable=unreadable)

    assert [name for name, _ in deleted(found)] == deletions
    assert found.doubtful == 2 - len(deletions)


TIMES = Times(interval_s=10.0, settle_s=0.5, safety_s=600.0)


def compared(now: float, times: Times = TIMES) -> Schedule:
    """A schedule whose last comparison began then."""
    schedule = Schedule(times)
    schedule.force(now)
    assert schedule.begin(now)
    return schedule


def test_reasons_only_bring_a_comparison_forward() -> None:
    schedule = compared(100.0)
    schedule.finished([300.0, 400.0, 50.0], safety_s=600.0)
    assert schedule.due == 300.0
    schedule.soon(350.0)
    assert schedule.due == 300.0
    schedule.retry(150.0, 20.0)
    assert schedule.due == 170.0


def test_what_comes_during_the_listing_is_part_of_it() -> None:
    schedule = compared(100.0)
    schedule.soon(101.0)
    schedule.listed()
    assert schedule.due == math.inf


def test_a_retry_keeps_some_distance_from_the_last_comparison() -> None:
    schedule = compared(100.0)
    schedule.retry(100.0, 1.0)
    assert schedule.due == 101.0
    schedule = compared(100.0)
    schedule.retry(90.0, 60.0)
    assert schedule.due == 150.0


def test_a_fixed_period_alone_counts() -> None:
    schedule = compared(100.0, Times(period_s=7.0))
    schedule.soon(101.0)
    schedule.retry(101.0, 1.0)
    assert schedule.due == math.inf
    schedule.finished([102.0], safety_s=1.0)
    assert schedule.due == 107.0
    failed = compared(100.0, Times(period_s=7.0))
    failed.listing_failed(101.0, 1.0)
    assert failed.due == 107.0
