"""Load balancer members: node changes, health, bursts; restarts and drift detection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from ccm.base import clock, metrics
from ccm.cloud.errors import ImplementedElsewhere, Internal, RetryAfter, Unavailable
from ccm.controllers.service import members as members_module
from ccm.model import Node, NodeCondition, names
from ccm.runtime.deletions import MASS_HOLD_S
from tests.support.services import F, World, autoscaler_taint, ports, served, started

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("service-burst-01")
async def test_one_node_added_to_a_quiet_cluster_is_a_member_within_two_seconds() -> None:
    async with started("n1") as world:
        world.service("a")
        world.service("b")
        await world.pass_time(60)
        world.forget()

        world.node("n2", provider_id="")
        await world.pass_time(0.5)
        world.node("n2")
        await world.pass_time(1.4)

        assert world.balancers.of("update") == [("a", ("n1", "n2")), ("b", ("n1", "n2"))]
        assert world.reasons() == ["UpdatedLoadBalancer"] * 2
        world.forget()
        await world.pass_time(1000)
        assert world.balancers.log == []


@pytest.mark.row("service-burst-01")
@pytest.mark.parametrize(
    ("pause_s", "nodes", "after_s"),
    [(0.05, 100, [5.95]), (0.5, 50, [10, 20])],
    ids=["that pause", "that never pause"],
)
async def test_burst_of_new_nodes_causes_few_updates(
    pause_s: float, nodes: int, after_s: list[float]
) -> None:
    async with served() as world:
        began = clock.monotonic()
        for number in range(nodes):
            world.node(f"n{number:03}")
            await world.pass_time(pause_s)
        await world.pass_time(1 if len(after_s) == 1 else 0)

        assert [round(at - began, 2) for at in world.balancers.at] == after_s


@pytest.mark.row("service-nodes-06")
async def test_tainted_or_deleting_node_leaves_members_with_the_next_update() -> None:
    async with served("n1", "n2", "n3") as world:
        world.node("n2", taints=[autoscaler_taint()])
        world.node("n3", deleting=True)
        await world.pass_time(60)
        world.node("n4")
        await world.pass_time(60)

        assert world.balancers.log == [("update", "web", ("n1", "n4"))]


@pytest.mark.row("service-nodes-07")
async def test_balancer_without_nodes_is_created_with_a_warning_event() -> None:
    async with started() as world:
        world.service()
        await world.pass_time(1)

        assert world.balancers.log == [("ensure", "web", ())]
        assert world.reasons()[1] == "UnAvailableLoadBalancer"
        world.node("n1")
        await world.pass_time(2)
        world.forget()
        world.remove_node("n1")
        await world.pass_time(2)
        assert world.warned() == world.reasons() == ["UnAvailableLoadBalancer"]


def sample(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(name) or 0.0


@pytest.mark.row("service-update-01")
async def test_failed_update_is_retried_and_then_becomes_an_ensure() -> None:
    async with served("n1") as world:
        errors = sample("service_controller_nodesync_error_total")
        world.balancers.faults["update"] = Internal("boom")

        world.node("n2")
        await world.pass_time(100)

        assert world.balancers.calls == ["update", "get"] * 3 + ["ensure"]
        assert world.balancers.log[-1] == ("ensure", "web", ("n1", "n2"))
        assert world.reasons()[0] == "UpdateLoadBalancerFailed"
        assert "[n1 n2] (2 nodes in total)" in world.messages[0]
        assert sample("service_controller_nodesync_error_total") - errors == 3
        world.forget()
        await world.pass_time(1000)
        assert world.balancers.log == []


@pytest.mark.row("service-update-02", "service-update-03", "service-update-04")
@pytest.mark.parametrize(
    ("faults", "held", "calls", "reasons"),
    [
        ({"update": Internal("boom")}, False, ["update", "get"], []),
        ({"update": ImplementedElsewhere("not ours")}, True, ["update"], []),
        (
            {"update": Internal("boom"), "get": Internal("bang")},
            True,
            ["update", "get"],
            ["UpdateLoadBalancerFailed"],
        ),
    ],
    ids=["the balancer is gone", "changed elsewhere", "it cannot be looked up"],
)
async def test_update_failure_is_reported_unless_balancer_is_gone_or_foreign(
    faults: dict[str, Exception], held: bool, calls: list[str], reasons: list[str]
) -> None:
    async with served("n1") as world:
        world.balancers.faults = faults
        if not held:
            world.balancers.held.clear()

        world.node("n2")
        await world.pass_time(5)
        assert (world.balancers.calls, world.reasons()) == (calls, reasons)
        if not reasons:
            await world.pass_time(1000)
            assert world.balancers.calls == calls
        else:
            assert world.messages[0].endswith("boom")


@pytest.mark.row("service-burst-01")
async def test_service_sync_during_a_node_burst_changes_no_members() -> None:
    async with served("n1") as world:
        world.node("n2")
        await world.pass_time(0.5)
        world.wipe_status()
        await world.pass_time(0.3)
        assert world.address()
        world.node("n3")
        await world.pass_time(60)

        assert world.balancers.log == [("update", "web", ("n1", "n2", "n3"))]


@pytest.mark.row("service-slow-01")
async def test_slow_update_never_removes_newer_members() -> None:
    world = World()
    world.node("n1")
    world.service("a")
    world.service("b")
    async with world.running():
        await world.pass_time(60)
        world.node("n2")
        world.forget()
        world.balancers.slow.add("update")
        await world.pass_time(2)
        assert world.balancers.log == [("update", "a", ("n1", "n2"))]

        world.node("n3")
        world.change("b", ports=ports(81))
        world.balancers.release.set()
        await world.pass_time(60)

        assert world.balancers.log == [
            ("update", "a", ("n1", "n2")),
            ("ensure", "b", ("n1", "n2", "n3")),
            ("update", "a", ("n1", "n2", "n3")),
        ]


@pytest.mark.row("service-metrics-01")
async def test_node_change_is_counted_once_in_each_metric() -> None:
    counted = (
        "service_controller_loadbalancer_sync_total",
        "service_controller_nodesync_latency_seconds_count",
        "service_controller_update_loadbalancer_host_latency_seconds_count",
    )
    async with served() as world:
        before = [sample(name) for name in counted]
        world.balancers.seconds = 3

        world.node("n1")
        await world.pass_time(60)

        assert [sample(name) for name in counted] == [value + 1 for value in before]


@pytest.mark.row("service-cost-01", "service-update-05")
async def test_new_node_costs_one_evaluation_and_one_update_per_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Node] = []
    real = members_module.is_member

    def counted(node: Node) -> bool:
        looks.append(node)
        return real(node)

    monkeypatch.setattr(members_module, "is_member", counted)
    services, nodes = 40, 200
    world = World()
    for number in range(nodes):
        world.node(f"n{number:04}")
    for number in range(services):
        world.service(f"s{number:04}")
    async with world.running(workers=4):
        await world.pass_time(60)
        assert len(world.balancers.of("ensure")) == services
        assert len(looks) == nodes
        world.forget()
        looks.clear()

        world.node("new")
        await world.pass_time(10)

        assert len(looks) == 1
        assert len(world.balancers.log) == len(world.balancers.of("update")) == services
        assert {len(members) for _, members in world.balancers.of("update")} == {nodes + 1}


# --- where load balancers do not check health -----------------------------------------------

UNCHECKED = {"load_balancers_check_health": False}
TERMINATING = [NodeCondition(type=names.CONDITION_TERMINATING, status="True")]


def unchecked(*nodes: str, **settings: Any) -> AbstractAsyncContextManager[World]:
    return served(*nodes, cloud=UNCHECKED, **settings)


def members(world: World) -> list[Sequence[str]]:
    return [given for _, given in world.balancers.of("update")]


@pytest.mark.row("service-health-01")
@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_unready_node_is_no_member_without_health_checks(status: str) -> None:
    async with unchecked("n1", "n2", "n3") as world:
        world.node("n2", ready=status)
        await world.pass_time(2)
        assert members(world) == [("n1", "n3")]
        world.forget()
        world.node("n2", ready=status, labels={"a": "b"})
        await world.pass_time(60)
        assert world.balancers.log == []

        world.node("n2")
        await world.pass_time(20)
        assert members(world) == [("n1", "n2", "n3")]


@pytest.mark.row("service-health-01")
async def test_terminating_node_leaves_members_with_traffic_policy_cluster() -> None:
    async with unchecked("n1", "n2") as world:
        world.service("local", externalTrafficPolicy="Local")
        await world.pass_time(60)
        world.forget()
        world.node("n2", conditions=TERMINATING)
        await world.pass_time(60)
        assert world.balancers.log == [("update", "web", ("n1",))]
        world.forget()

        world.node("n2", conditions=TERMINATING, ready="False")
        await world.pass_time(60)
        assert world.balancers.log == [("update", "local", ("n1",))]


@pytest.mark.row("service-health-02")
async def test_readiness_is_ignored_when_load_balancers_check_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served("n1", "n2") as world:
        monkeypatch.setattr(members_module, "is_fit", lambda *_, **__: pytest.fail("a look"))
        world.node("n1", ready="False")
        world.node("n2", conditions=TERMINATING)
        await world.pass_time(60)

        assert world.balancers.log == []


@pytest.mark.row("service-health-03")
async def test_last_ready_member_stays_when_all_nodes_become_unready() -> None:
    async with unchecked("n1", "n2") as world:
        for name in ("n1", "n2"):
            world.node(name, ready="Unknown")
            await world.pass_time(100)
        assert members(world) == [("n2",)]

        world.node("n1")
        await world.pass_time(100)
        assert members(world)[-1] == ("n1",)


@pytest.mark.row("service-health-03")
async def test_unreadiness_of_all_nodes_removes_only_few_members() -> None:
    every = tuple(f"n{number:02}" for number in range(20))
    async with unchecked(*every) as world:
        for name in every:
            world.node(name, ready="Unknown")
            await world.pass_time(1.5)
        await world.pass_time(1000)
        assert [each for each in members(world) if len(each) < 14] == []

        for name in every:
            world.node(name)
        await world.pass_time(100)
        assert (members(world) or [every])[-1] == every


@pytest.mark.row("service-health-03")
async def test_many_unready_nodes_leave_members_after_the_hold_time() -> None:
    every = [f"n{number:02}" for number in range(10)]
    async with unchecked(*every) as world:
        for name in every[:4]:
            world.node(name, ready="Unknown")
        await world.pass_time(MASS_HOLD_S - 5)
        assert members(world) == []

        await world.pass_time(30)
        assert members(world) == [tuple(every[4:])]


@pytest.mark.row("service-health-03")
async def test_start_without_ready_nodes_keeps_members_of_unknown_readiness() -> None:
    world = World(cloud=UNCHECKED)
    for name in ("n1", "n2"):
        world.node(name, ready="Unknown")
    world.node("n3", ready="False")
    world.service(finalizers=[F])
    async with world.running():
        await world.pass_time(60)
        assert world.balancers.of("ensure") == [("web", ("n1", "n2"))]

        world.node("n2")
        await world.pass_time(60)
        assert members(world) == [("n2",)]


# --- starts and drift -----------------------------------------------------------------------


async def settled(services: int, *, digests: bool = True) -> World:
    """Return a world whose Services a first daemon has ensured."""
    world = World(digests=digests)
    for name in ("n1", "n2"):
        world.node(name)
    for number in range(services):
        world.service(f"s{number}")
    async with world.running():
        await world.pass_time(60)
    assert len(world.balancers.held) == services
    world.forget()
    return world


@asynccontextmanager
async def restarted(
    services: int,
    *,
    digests: bool = True,
    faults: Mapping[str, Exception] | None = None,
    slow: str = "",
    **settings: Any,
) -> AsyncIterator[World]:
    """Yield such a world while a second daemon runs in it."""
    world = await settled(services, digests=digests)
    world.balancers.faults |= faults or {}
    world.balancers.slow |= {slow}
    async with world.running(**settings):
        yield world


@pytest.mark.row("service-restart-02")
async def test_restart_ensures_exactly_the_services_that_differ() -> None:
    world = await settled(20)
    for number in range(5):
        world.change(f"s{number}", ports=ports(81))
    for name in list(world.balancers.held)[10:15]:
        world.balancers.held[name] = ("altered", ())
    del world.balancers.held[list(world.balancers.held)[19]]
    address = world.address("s17")
    world.wipe_status("s17")
    world.meta("s18", finalizers=None)

    async with world.running():
        await world.pass_time(600)

        assert world.balancers.calls == ["list"] + ["ensure"] * 11
        assert world.address("s17") == address
        assert world.finalizers("s18") == [F]
        world.forget()
        world.node("n3")
        await world.pass_time(60)
        assert len(world.balancers.of("update")) == 20


ELSEWHERE = ImplementedElsewhere("not ours")
ENSURED = [("ensure", name, ("n1", "n2")) for name in ("s0", "s1", "s2")]
LISTED = ("list", "", ())


NO_DIGEST = {"digest s0": Internal("boom"), "digest s1": ELSEWHERE}
BUSY = RetryAfter("busy", seconds=3600)


def case(name: str, log: Any, row: str = "", **trouble: Any) -> Any:
    return pytest.param(trouble, log, id=name, marks=[pytest.mark.row(row)] if row else [])


@pytest.mark.parametrize(
    ("trouble", "log"),
    [
        case("no list", ENSURED, "service-restart-01", digests=False),
        case(
            *("fails", [LISTED] * 4 + ENSURED, "service-restart-03"),
            faults={"list": Unavailable("down")},
        ),
        case("hangs", [LISTED, *ENSURED], slow="list"),
        case("asks to wait", [LISTED, *ENSURED], faults={"list": BUSY}),
        case("no digest", [LISTED, ENSURED[0]], faults=NO_DIGEST),
    ],
)
async def test_start_falls_back_to_ensures_without_a_usable_listing(
    trouble: dict[str, Any], log: Any
) -> None:
    async with restarted(3, **trouble) as world:
        await world.pass_time(62)

        assert world.balancers.log == log
        await world.pass_time(600)
        assert world.balancers.log == log
        assert world.patches == []


@pytest.mark.row("service-drift-01")
async def test_drift_detection_is_off_by_default() -> None:
    async with restarted(2) as world:
        world.balancers.held.clear()
        await world.pass_time(100_000)

        assert set(world.balancers.calls) == {"list"}


@pytest.mark.row("service-drift-01")
async def test_drift_is_repaired_within_the_budget() -> None:
    async with restarted(6, drift_period_s=100, drift_budget=2) as world:
        await world.pass_time(60)
        for name in list(world.balancers.held)[:3]:
            world.balancers.held[name] = ("altered", ())
        world.forget()
        await world.pass_time(61)
        assert world.balancers.calls == ["list", "ensure", "ensure"]
        await world.pass_time(121)

        assert world.balancers.calls.count("ensure") == 3
        assert not [held for held in world.balancers.held.values() if held[0] == "altered"]


async def test_changed_balancer_address_counts_as_drift() -> None:
    async with restarted(1, drift_period_s=100) as world:
        await world.pass_time(60)
        world.balancers.address = "1.2.3.4"
        await world.pass_time(61)

        assert world.address("s0") == "1.2.3.4"


@pytest.mark.row("service-drift-02")
async def test_drift_check_without_listing_ensures_in_turn_without_events() -> None:
    async with restarted(4, digests=False, drift_period_s=100, drift_budget=2) as world:
        await world.pass_time(60)
        world.forget()
        await world.pass_time(240)

        assert sorted(name for _, name, _ in world.balancers.log) == ["s0", "s1", "s2", "s3"]
        assert (world.events, world.patches) == ([], [])
