"""Changes of nodes: what they cost, and who becomes a member when."""

from __future__ import annotations

import pytest

from ccm.base import clock, metrics
from ccm.cloud.errors import ImplementedElsewhere, Internal, RetryAfter
from ccm.model import names
from tests.support.services import World, autoscaler_taint, served, started

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


async def test_the_burst_window_can_be_set() -> None:
    async with served(quiet_s=0.2, longest_wait_s=1) as world:
        world.node("n1")
        await world.pass_time(0.25)

        assert world.balancers.of("update") == [("web", ("n1",))]


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


async def test_a_burst_that_outlasts_an_ensure_costs_one_update_at_its_end() -> None:
    async with started("n1", slow="ensure") as world:
        world.service()
        await world.pass_time(5)
        world.node("n2")
        await world.pass_time(0.5)
        world.balancers.release.set()
        world.node("n3")
        await world.pass_time(0.5)
        world.node("n4")
        await world.pass_time(1000)

        assert world.balancers.of("update") == [("web", ("n1", "n2", "n3", "n4"))]


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
