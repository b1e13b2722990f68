"""Members of load balancers: changes of nodes, health, bursts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from ccm.base import clock, metrics
from ccm.cloud.errors import ImplementedElsewhere, Internal, RetryAfter
from ccm.controllers.service import nodes as nodes_module
from ccm.controllers.service.bursts import LONGEST_REST_S, LONGEST_WAVE_S, Bursts
from ccm.model import NodeCondition, names
from ccm.runtime.deletions import DOUBT_S
from ccm.testing.clock import advance, elapsed_s
from tests.support.services import F, World, autoscaler_taint, served, started

pytestmark = pytest.mark.virtual_time


def sample(name: str) -> float:
    return metrics.REGISTRY.get_sample_value(name) or 0.0


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
async def test_many_new_nodes_cost_one_update() -> None:
    async with served() as world:
        for number in range(100):
            world.node(f"n{number:03}")
            await world.pass_time(0.05)
        await world.pass_time(2)

        assert [len(members) for _, members in world.balancers.of("update")] == [100]


@pytest.mark.row("service-burst-01")
async def test_nodes_that_never_pause_are_members_after_ten_seconds() -> None:
    async with started() as world:
        world.service()
        await world.pass_time(60)
        world.balancers.at.clear()
        began = clock.monotonic()

        for number in range(50):
            world.node(f"n{number:03}")
            await world.pass_time(0.5)

        assert [round(at - began, 1) for at in world.balancers.at] == [10, 20]


@pytest.mark.parametrize(
    "change",
    [
        {"ready": "False"},
        {"taints": [autoscaler_taint()]},
        {"deleting": True},
        {"labels": {"a": "b"}},
        {"labels": {names.LABEL_EXCLUDE_BALANCERS: "false"}},
    ],
    ids=["not ready", "autoscaler taint", "deleting", "label", "not excluded"],
)
@pytest.mark.row("service-nodes-05")
async def test_changes_that_cost_no_call(change: dict[str, object]) -> None:
    async with served("n1") as world:
        world.node("n1", **change)
        await world.pass_time(60)

        assert world.balancers.log == []


@pytest.mark.parametrize(
    ("change", "members"),
    [
        ({"labels": {names.LABEL_EXCLUDE_BALANCERS: ""}}, ("n1",)),
        ({"provider_id": "fake://other"}, ("n1", "n2")),
        ({"provider_id": ""}, ("n1", "n2")),
    ],
    ids=["excluded", "another provider ID", "provider ID gone"],
)
@pytest.mark.row("service-nodes-04")
async def test_changes_that_cost_one_update(
    change: dict[str, object], members: tuple[str, ...]
) -> None:
    async with served("n1", "n2") as world:
        world.node("n2", **change)
        await world.pass_time(60)

        assert world.balancers.log == [("update", "web", members)]


@pytest.mark.row("service-nodes-06")
async def test_a_tainted_or_deleting_node_leaves_with_the_next_change() -> None:
    async with served("n1", "n2", "n3") as world:
        world.node("n2", taints=[autoscaler_taint()])
        world.node("n3", deleting=True)
        await world.pass_time(60)
        world.node("n4")
        await world.pass_time(60)

        assert world.balancers.log == [("update", "web", ("n1", "n4"))]


@pytest.mark.row("service-nodes-07")
async def test_without_nodes_the_balancer_is_made_and_people_are_warned() -> None:
    async with started() as world:
        world.service()
        await world.pass_time(1)

        assert world.balancers.log == [("ensure", "web", ())]
        no_nodes = ("web", "Warning", "UnAvailableLoadBalancer")
        assert world.events[1] == no_nodes
        world.node("n1")
        await world.pass_time(2)
        world.forget()
        world.remove_node("n1")
        await world.pass_time(2)
        assert world.events == [no_nodes]


@pytest.mark.row("service-update-01")
async def test_a_failed_update_is_tried_again_as_an_update_then_as_an_ensure() -> None:
    async with served("n1") as world:
        errors = sample("service_controller_nodesync_error_total")
        world.balancers.faults["update"] = Internal("boom")

        world.node("n2")
        await world.pass_time(100)

        assert world.balancers.calls == ["update", "get"] * 3 + ["ensure"]
        assert world.balancers.log[-1] == ("ensure", "web", ("n1", "n2"))
        assert world.reasons()[0] == "UpdateLoadBalancerFailed"
        assert world.messages[0].endswith("[n1 n2] (2 nodes in total): boom")
        assert sample("service_controller_nodesync_error_total") - errors == 3
        world.forget()
        await world.pass_time(1000)
        assert world.balancers.log == []


async def test_a_provider_that_asked_to_wait_is_not_called_because_of_another_node() -> None:
    async with served("n1") as world:
        world.balancers.faults["update"] = RetryAfter("not yet", seconds=60)

        for name in ("n2", "n3"):
            world.node(name)
            await world.pass_time(20)

        assert world.balancers.calls == ["update"]


@pytest.mark.row("service-update-02", "service-update-04")
@pytest.mark.parametrize(
    ("error", "calls"),
    [(Internal("boom"), ["update", "get"]), (ImplementedElsewhere("not ours"), ["update"])],
    ids=["the balancer is gone", "changed elsewhere"],
)
async def test_an_update_that_is_not_needed_is_no_failure(
    error: Exception, calls: list[str]
) -> None:
    async with served("n1") as world:
        world.balancers.faults["update"] = error
        world.balancers.held.clear()

        world.node("n2")
        await world.pass_time(1000)

        assert world.balancers.calls == calls
        assert world.events == []


@pytest.mark.row("service-update-03")
async def test_a_failed_question_after_a_failed_update_changes_nothing() -> None:
    async with served() as world:
        world.balancers.faults = {"update": Internal("boom"), "get": Internal("bang")}

        world.node("n1")
        await world.pass_time(2)

        assert world.reasons() == ["UpdateLoadBalancerFailed"]
        assert world.messages[0].endswith("boom")


async def test_a_node_that_comes_during_a_slow_ensure_is_a_member_after_it() -> None:
    """Its burst ended during the call, and nothing else may happen for a long time."""
    async with started("n1", slow="ensure") as world:
        world.service()
        await world.pass_time(1)
        world.node("n2")
        await world.pass_time(5)
        assert world.balancers.calls == ["ensure"]

        world.balancers.release.set()
        await world.pass_time(1000)

        assert world.balancers.of("update") == [("web", ("n1", "n2"))]


@pytest.mark.row("service-burst-01")
async def test_a_look_at_a_service_during_a_burst_changes_no_members() -> None:
    async with served("n1") as world:
        world.node("n2")
        await world.pass_time(0.5)
        world.wipe_status()
        await world.pass_time(0.3)
        assert world.address()
        world.node("n3")
        await world.pass_time(60)

        assert world.balancers.log == [("update", "web", ("n1", "n2", "n3"))]


async def test_members_that_could_not_be_given_are_given_during_the_next_burst() -> None:
    async with served("n1") as world:
        world.balancers.faults["update"] = Internal("boom")
        world.node("n2")
        await world.pass_time(2)
        assert world.balancers.calls == ["update", "get"]
        del world.balancers.faults["update"]

        for number in range(8):
            await world.pass_time(0.8)
            world.node(f"m{number}")

        assert world.balancers.calls[:3] == ["update", "get", "update"]
        await world.pass_time(60)
        assert len(world.balancers.of("update")[-1][1]) == 10


@pytest.mark.row("service-slow-01")
async def test_a_slow_update_never_takes_a_newer_node_away() -> None:
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
        world.change("b", ports=[{"port": 81, "protocol": "TCP", "targetPort": 80}])
        world.balancers.release.set()
        await world.pass_time(60)

        assert world.balancers.log == [
            ("update", "a", ("n1", "n2")),
            ("ensure", "b", ("n1", "n2", "n3")),
            ("update", "a", ("n1", "n2", "n3")),
        ]


@pytest.mark.row("service-metrics-01")
async def test_metrics_of_a_change_of_nodes() -> None:
    async with started() as world:
        world.service()
        await world.pass_time(60)
        updates = sample("service_controller_loadbalancer_sync_total")
        passes = sample("service_controller_nodesync_latency_seconds_count")
        each = sample("service_controller_update_loadbalancer_host_latency_seconds_count")
        world.balancers.seconds = 3

        world.node("n1")
        await world.pass_time(60)

        assert sample("service_controller_loadbalancer_sync_total") - updates == 1
        assert sample("service_controller_nodesync_latency_seconds_count") - passes == 1
        name = "service_controller_update_loadbalancer_host_latency_seconds_count"
        assert sample(name) - each == 1


UNCHECKED = {"load_balancers_check_health": False}
TERMINATING = [NodeCondition(type=names.CONDITION_TERMINATING, status="True")]


def unchecked(*nodes: str, **settings: Any) -> AbstractAsyncContextManager[World]:
    return served(*nodes, cloud=UNCHECKED, **settings)


def members(world: World) -> list[Sequence[str]]:
    return [given for _, given in world.balancers.of("update")]


@pytest.mark.row("service-health-01")
@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_a_node_that_is_not_ready_is_no_member_until_it_is(status: str) -> None:
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
async def test_a_terminating_node_leaves_the_members_of_policy_cluster_only() -> None:
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
async def test_where_health_is_checked_neither_counts_nor_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served("n1", "n2") as world:
        monkeypatch.setattr(nodes_module, "is_fit", lambda *_, **__: pytest.fail("a look"))
        world.node("n1", ready="False")
        world.node("n2", conditions=TERMINATING)
        await world.pass_time(60)

        assert world.balancers.log == []


@pytest.mark.row("service-health-03")
async def test_the_last_ready_members_stay() -> None:
    async with unchecked("n1", "n2") as world:
        for name in ("n1", "n2"):
            world.node(name, ready="Unknown")
            await world.pass_time(100)
        assert members(world) == [("n2",)]

        world.node("n1")
        await world.pass_time(100)
        assert members(world)[-1] == ("n1",)


@pytest.mark.row("service-health-03")
async def test_an_api_server_that_loses_all_its_nodes_changes_no_members() -> None:
    every = [f"n{number:02}" for number in range(20)]
    async with unchecked(*every) as world:
        for name in every:
            world.node(name, ready="Unknown")
            await world.pass_time(1.5)
        await world.pass_time(1000)
        assert [each for each in members(world) if len(each) < 14] == []
        kept = members(world)[-1] if members(world) else tuple(every)

        for name in every:
            world.node(name)
        await world.pass_time(100)
        assert (members(world) or [tuple(every)])[-1] == tuple(every)
        assert len(kept) >= 14


@pytest.mark.row("service-health-03")
async def test_many_that_stay_lost_leave_after_a_while() -> None:
    every = [f"n{number:02}" for number in range(10)]
    async with unchecked(*every) as world:
        for name in every[:4]:
            world.node(name, ready="Unknown")
        await world.pass_time(DOUBT_S - 5)
        assert members(world) == []

        await world.pass_time(30)
        assert members(world) == [tuple(every[4:])]


@pytest.mark.row("service-health-03")
async def test_a_start_while_no_node_is_known_to_be_ready_keeps_the_members() -> None:
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


def collecting() -> tuple[Bursts, list[float]]:
    acts: list[float] = []
    return Bursts(lambda: acts.append(elapsed_s()), quiet_s=1, longest_s=10), acts


async def test_an_act_follows_the_pause_and_never_comes_too_late() -> None:
    changes, acts = collecting()
    await advance(5)
    assert acts == []

    changes.note()
    await advance(0.6)
    changes.note()
    await advance(5)
    assert acts == [pytest.approx(6.6)]

    for _ in range(30):
        changes.note()
        await advance(0.5)
    await advance(5)
    assert acts[1:] == [pytest.approx(20.6), pytest.approx(26.1)]


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.05, 1), (2, 20), (30, LONGEST_REST_S)])
async def test_a_dear_pass_is_followed_by_a_rest_in_proportion(
    took_s: float, rest_s: float
) -> None:
    changes, acts = collecting()
    changes.passes()
    await advance(took_s)
    changes.passed(took_s)

    changes.note()
    await advance(100)

    assert acts == [pytest.approx(took_s + rest_s)]


async def test_a_pass_that_hangs_holds_up_the_next_for_a_minute_only() -> None:
    changes, acts = collecting()
    changes.passes()

    changes.note()
    await advance(1000)

    assert acts == [LONGEST_REST_S]


async def test_a_node_that_goes_away_waits_for_neither_rest_nor_wave() -> None:
    changes, acts = collecting()
    changes.passes()
    changes.wave(goes_on=True)
    changes.note()
    await advance(5)

    for _ in range(10):
        changes.note(leaves=True)
        changes.wave(goes_on=True)
        await advance(1)

    assert acts == [15]


async def test_a_wave_of_initialisation_is_one_burst() -> None:
    changes, acts = collecting()
    for number in range(100):
        changes.wave(goes_on=number < 99)
        changes.note()
        await advance(3)

    assert acts == [pytest.approx(99 * 3)]


async def test_a_node_that_is_never_initialised_holds_up_others_for_a_moment_only() -> None:
    changes, acts = collecting()
    changes.wave(goes_on=True)
    changes.note()
    await advance(100)
    assert acts == [10]

    changes.note()
    await advance(100)
    assert acts == [10, 101]


async def test_a_wave_without_end_is_cut() -> None:
    changes, acts = collecting()
    for _ in range(700):
        changes.wave(goes_on=True)
        changes.note()
        await advance(1)

    assert acts == [LONGEST_WAVE_S]
