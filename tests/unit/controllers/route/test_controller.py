"""The route controller in virtual time, with failures and random faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud.errors import Aborted, FailedPrecondition, RetryAfter, Unavailable
from ccm.cloud.types import address
from ccm.controllers.route import calls
from ccm.model import NodeAddress
from ccm.testing import builders
from ccm.testing.clock import advance, elapsed_s
from tests.support.routes import A, B, Environment, FakeRoutes, exchange, made, running, spread

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("route-when-02")
async def test_settled_cluster_lists_routes_once_in_about_ten_minutes() -> None:
    async with running({"a": A}) as env:
        env.cloud.log.clear()
        env.patches.clear()

        await advance(590)
        assert env.cloud.log == []
        await advance(310)

        assert env.cloud.log == ["list"]
        assert env.conditions == []


@pytest.mark.row("route-when-03")
async def test_route_is_created_within_half_a_second_of_a_new_node() -> None:
    async with running() as env:
        await advance(60)
        env.node("a", A)

        await advance(0.5)

        assert env.cloud.present() == {("a", A)}


@pytest.mark.row("route-when-08")
@pytest.mark.parametrize("cidrs", [(), (A,)], ids=["range last", "range first"])
async def test_a_route_is_created_as_soon_as_its_node_has_addresses(cidrs: Sequence[str]) -> None:
    async with running() as env:
        await advance(60)
        env.cloud.log.clear()
        env.node("a", *cidrs, ip="")
        await advance(1)
        env.node("a", A, ip="")
        await advance(1)
        assert env.cloud.log == []

        env.node("a", A)
        await advance(0.5)

        assert env.cloud.log == ["list", f"create a {A}"]
        assert (env.told, env.conditions) == ([], [("a", "False", "RouteCreated")])


@pytest.mark.row("route-when-08")
async def test_a_comparison_creates_no_route_to_a_node_without_addresses() -> None:
    async with running() as env:
        env.node("a", A, ip="")
        env.node("b", B)
        await advance(60)

        assert env.cloud.changes() == [f"create b {B}"]
        assert ("a", "True", "NoRouteCreated") in env.conditions
        assert env.told == []


@pytest.mark.row("route-when-04")
async def test_under_churn_there_is_at_most_one_listing_in_ten_seconds() -> None:
    async with running() as env:
        for number in range(100):
            env.node(f"n{number}", f"10.120.{number}.0/24")
            await advance(1)

        gaps = [late - early for early, late in zip(env.cloud.at, env.cloud.at[1:], strict=False)]
        assert min(gaps) >= 10
        assert len(gaps) >= 8


@pytest.mark.row("route-when-01")
async def test_fixed_sync_period_is_measured_from_start_to_start() -> None:
    async with running(latency_s=3.0, period_s=10.0, interval_s=1.0) as env:
        await advance(5)
        for number in range(6):
            env.node(f"n{number}", f"10.120.{number}.0/24")
            await advance(10)
        await advance(4)

        begin = env.cloud.at[0]
        assert [moment - begin for moment in env.cloud.at] == [0, 10, 20, 30, 40, 50, 60]
        assert len(env.cloud.routes) == 6


@pytest.mark.row("route-fail-05")
async def test_hanging_route_creation_blocks_no_other_node() -> None:
    async with running({"a": A, "b": B}, slow=[f"create a {A}"]) as env:
        assert env.conditions == [("b", "False", "RouteCreated")]

        env.node("c", "10.120.2.0/24")
        await advance(30)
        assert env.cloud.present() == {("b", B), ("c", "10.120.2.0/24")}
        assert env.cloud.changes().count(f"create a {A}") == 1

        env.cloud.open[f"create a {A}"].set()
        await advance(0)
        assert env.conditions[-1] == ("a", "False", "RouteCreated")
        await advance(700)
        assert env.cloud.changes().count(f"create a {A}") == 1


async def end(env: Environment, *calls: str) -> None:
    """Let delayed calls end, one after the other."""
    for call in calls:
        env.cloud.open[call].set()
        await advance(1)


@pytest.mark.row("route-when-07")
@pytest.mark.parametrize("limit", [1, 7, 200])
async def test_concurrent_route_calls_stay_within_the_limit(limit: int) -> None:
    async with running(spread(250), latency_s=1.0, concurrency=limit) as env:
        await advance(300)

        assert env.cloud.most == limit
        assert len(env.cloud.routes) == 250


@pytest.mark.row("route-compare-20")
async def test_creation_waits_for_the_deletion_of_a_conflicting_route() -> None:
    crossed = [made("b", A), made("a", B, "r1")]
    async with running({"a": A, "b": B}, routes=crossed, latency_s=1.0) as env:
        await advance(5)

        order = env.cloud.changes()
        assert order.index(f"delete b {A}") < order.index(f"create a {A}")
        assert env.cloud.present() == {("a", A), ("b", B)}


@pytest.mark.row("route-compare-20")
async def test_route_is_not_created_while_an_overlapping_deletion_fails() -> None:
    fault = {"delete": Unavailable("no")}
    async with running({"a": A}, routes=[made("x", "10.120.0.0/25")], faults=fault) as env:
        await advance(20)
        assert not any(entry.startswith("create") for entry in env.cloud.log)
        assert env.conditions == [("a", "True", "NoRouteCreated")]
        env.cloud.faults.clear()

        await advance(60)

        assert env.cloud.present() == {("a", A)}


@pytest.mark.row("route-compare-21")
async def test_node_that_briefly_loses_its_pod_cidrs_keeps_its_routes() -> None:
    async with running({"a": A}) as env:
        await advance(60)
        env.node("a")
        await advance(30)
        assert env.cloud.present() == {("a", A)}
        env.node("a", A)
        await advance(60)

        assert env.cloud.changes() == [f"create a {A}"]
        assert env.conditions == [("a", "False", "RouteCreated")]


@pytest.mark.row("route-compare-21")
async def test_node_without_pod_cidrs_loses_its_routes_after_a_minute() -> None:
    async with running({"a": A}) as env:
        await advance(60)
        env.node("a")
        await advance(65)

        assert env.cloud.routes == []
        assert env.conditions[-1] == ("a", "True", "NoRouteCreated")


LATER = "2030-01-01T00:00:00Z"


@pytest.mark.row("route-compare-22")
async def test_route_of_a_deleted_vm_with_a_reused_address_is_deleted_once() -> None:
    """The node of the deleted VM outlives it for a while, for example during a drain."""
    async with running({"a": A}) as env:
        await advance(60)
        env.cloud.holders["10.0.0.1"] = "b"
        env.node("b", B, created=LATER)
        await advance(700)
        assert env.cloud.present() == {("b", B)}
        env.drop("a")
        await advance(700)

    assert env.cloud.changes() == [f"create a {A}", f"delete b {A}", f"create b {B}"]
    assert ("a", "True", "NoRouteCreated") in env.conditions


@pytest.mark.row("route-compare-22")
async def test_route_is_recreated_when_a_node_regains_its_address() -> None:
    async with running({"a": A}) as env:
        env.cloud.holders["10.0.0.1"] = "b"
        env.node("b", B, created=LATER)
        await advance(60)
        del env.cloud.holders["10.0.0.1"]
        env.drop("b")
        await advance(60)

        assert env.cloud.present() == {("a", A)}


@pytest.mark.row("route-compare-22")
@pytest.mark.parametrize(
    "shared",
    [address("ExternalIP", "203.0.113.1"), address("InternalIP", "172.17.0.1")],
    ids=["external", "bridge"],
)
async def test_nodes_that_share_a_secondary_address_get_their_routes(shared: NodeAddress) -> None:
    async with running() as env:
        for number, (name, cidr, created) in enumerate(
            [("a", A, builders.CREATED), ("b", B, LATER)]
        ):
            both = [address("InternalIP", f"10.0.0.{number}"), shared]
            env.put(builders.node(name, pod_cidrs=[cidr], addresses=both, created=created))
        await advance(60)

        assert env.cloud.present() == {("a", A), ("b", B)}


def addresses(ip: str) -> tuple[NodeAddress, ...]:
    return (address("InternalIP", ip),)


@pytest.mark.row("route-fail-02")
async def test_failed_creation_emits_events_and_retries_with_back_off() -> None:
    async with running({"a": A}, faults={"create": Unavailable("later")}) as env:
        assert env.conditions == [("a", "True", "NoRouteCreated")]
        assert env.told == [("a", "Warning", "FailedToCreateRoute")]
        await advance(60)
        tries = len(env.cloud.changes())
        assert 4 <= tries <= 7
        assert len(env.told) == tries

        env.cloud.faults.clear()
        await advance(70)

        assert env.cloud.present() == {("a", A)}
        assert env.conditions[1:] == [("a", "False", "RouteCreated")]


@pytest.mark.row("route-fail-02")
async def test_a_call_that_fails_for_the_former_state_of_its_node_is_repeated_at_once() -> None:
    fault = {"create": FailedPrecondition("no internal IPv4 address yet")}
    what = f"create a {A}"
    async with running({"a": A}, slow=[what], faults=fault) as env:
        env.node("a", A, ip="10.0.0.77")
        await advance(1)
        env.cloud.open[what].set()
        await advance(0)
        env.cloud.faults.clear()
        await advance(11)

        assert env.cloud.changes() == [what, what]
        assert env.cloud.present() == {("a", A)}
        assert env.told == []


@pytest.mark.row("route-fail-02")
async def test_a_failed_deletion_is_tried_again() -> None:
    fault = {"delete": Unavailable("later")}
    async with running(routes=[made("gone", A)], faults=fault) as env:
        assert env.told == []
        env.cloud.faults.clear()

        await advance(5)

        assert env.cloud.routes == []


@pytest.mark.row("route-fail-03")
async def test_a_retry_after_is_honoured_and_makes_no_event() -> None:
    async with running({"a": A}, faults={"create": RetryAfter("busy", seconds=42)}) as env:
        env.cloud.faults.clear()
        await advance(41)
        assert len(env.cloud.changes()) == 1
        await advance(11)

        assert len(env.cloud.changes()) == 2
        assert env.told == []


@pytest.mark.row("route-fail-04")
async def test_failed_listing_changes_no_routes_and_no_conditions() -> None:
    async with running({"a": A}, faults={"list": Unavailable("no")}) as env:
        await advance(100)

        assert env.cloud.changes() == []
        assert env.conditions == []
        assert 3 <= len(env.cloud.at) <= 8


FOREIGN = [
    pytest.param({"provider_id": "other://1"}, id="of another cloud"),
    pytest.param({"labels": {"theirs": ""}}, id="outside of --node-selector"),
]


@pytest.mark.parametrize("becomes", ["there again", "undecodable"])
async def test_deletion_is_skipped_when_its_node_reappears_or_is_malformed(becomes: str) -> None:
    routes = [made("x", A), made("b", B, "r1")]
    async with running(routes=routes, slow=[f"delete x {A}"], concurrency=1) as env:
        if becomes == "there again":
            env.node("b", B)
        else:
            env.informer._reflector.malformed_keys.add("b")
        env.cloud.open[f"delete x {A}"].set()
        await advance(30)

        assert env.cloud.changes() == [f"delete x {A}"]
        assert env.cloud.present() == {("b", B)}


@pytest.mark.parametrize("facts", FOREIGN)
async def test_foreign_nodes_and_their_routes_are_left_unchanged(facts: Any) -> None:
    """No call and no condition write follow when foreign nodes are added, updated or listed first;
    a route to a foreign node stays although the node has another pod CIDR."""
    routes = [made("theirs", "10.120.7.0/24", "r7"), made("theirs", "10.120.8.0/24", "r8")]
    async with running({"a": A}, routes=routes, node_selector="!theirs", theirs=facts) as env:
        await advance(60)
        listed = len(env.cloud.at)
        env.node("theirs", B, ip="10.0.0.2", **facts)
        env.node("another", B, **facts)
        await advance(60)

        assert env.cloud.changes() == [f"create a {A}"]
        assert {name for name, *_ in env.conditions} == {"a"}
        assert len(env.cloud.at) == listed
        env.node("ours", "10.120.3.0/24")
        await advance(60)
        assert compared() == {"kept": 1, "missing": 1, "doomed": 0}


CIDRS = (A, B, "10.120.2.0/24")


NODES = ("a", "b", "c")


PAUSES_S = (0, 0.1, 1, 5, 11, 30)


LATENCIES_S = (0, 0.5, 3, 9)


SOON_S = 90.0


@pytest.mark.parametrize("seed", range(60))
async def test_routes_converge_within_90_seconds_of_random_changes(seed: int) -> None:
    rng = random.Random(seed)
    log = []
    async with running(concurrency=rng.choice((1, 2, 200))) as env:
        for _ in range(rng.randint(5, 40)):
            name, cidrs = rng.choice(NODES), rng.sample(CIDRS, rng.choice((0, 1, 1, 1, 1, 2)))
            log.append(f"{elapsed_s():.1f} {name} {cidrs}")
            if cidrs:
                env.node(name, *cidrs, ip=f"10.0.0.{rng.randint(1, 3)}")
            else:
                env.drop(name)
            env.cloud.latency_s = rng.choice(LATENCIES_S)
            await advance(rng.choice(PAUSES_S))
        env.cloud.latency_s = 0
        await advance(SOON_S)

        nodes = env.informer.store.list()
        wanted = {(node.name, cidr) for node in nodes for cidr in node.spec.pod_cidrs or ()}
        conditions = [
            (condition.status, condition.reason)
            for node in nodes
            for condition in node.status.conditions or ()
        ]
        assert env.cloud.present() == wanted, log
        assert len(env.cloud.routes) == len(wanted), log
        assert conditions == [("False", "RouteCreated")] * len(nodes), log
        calls = len(env.cloud.log)
        await advance(400)
        assert len(env.cloud.log) == calls, log


@pytest.mark.parametrize("facts", FOREIGN)
async def test_blackhole_route_to_the_address_of_a_foreign_node_is_kept(facts: Any) -> None:
    """A blackhole names no node: its target address decides, and managed nodes come first."""
    holes = [
        made("", "10.120.8.0/24", "theirs", blackhole=True, target_addresses=addresses("10.0.0.8")),
        made("", "10.120.9.0/24", "ours", blackhole=True, target_addresses=addresses("10.0.0.1")),
    ]
    async with running({"a": A}, node_selector="!theirs", theirs=facts) as env:
        env.node("theirs", "10.120.8.0/24", ip="10.0.0.8", **facts)
        env.node("likewise", ip="10.0.0.1", **facts)
        env.cloud.routes += holes
        await advance(1200)

        assert env.cloud.changes() == [f"create a {A}", "delete  10.120.9.0/24"]


def compared() -> dict[str, float | None]:
    """Return the route counts of the last comparison, by state."""
    states = ("kept", "missing", "doomed")
    return {state: REGISTRY.get_sample_value("ccm_routes", {"state": state}) for state in states}


async def test_provider_that_was_reopened_during_a_listing_is_listed_at_once() -> None:
    async with running({"a": A}) as env:
        await advance(30)
        env.cloud.latency_s = 2.0
        env.node("b", B, ip="10.0.0.2")
        await advance(1)
        reopened = FakeRoutes()
        exchange(env, reopened)
        await advance(30)

        assert reopened.present() == {("a", A), ("b", B)}


async def test_route_whose_delay_ends_during_a_comparison_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The delays of two routes that failed together differ by their jitter."""
    write = calls.RouteConditions.write

    async def slow(self: calls.RouteConditions, nodes: Any) -> None:
        await write(self, nodes)
        await asyncio.sleep(0.1)

    monkeypatch.setattr(calls.RouteConditions, "write", slow)
    locked = Aborted("the network is locked")
    faults = {f"create a {A}": locked, f"create b {B}": locked}
    async with running({"a": A, "b": B}, faults=faults) as env:
        env.cloud.faults.clear()
        await advance(60)

        assert env.cloud.present() == {("a", A), ("b", B)}
