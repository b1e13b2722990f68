"""When routes are compared, and what becomes of the calls; in virtual time."""

from __future__ import annotations

import pytest

from ccm.cloud.errors import Unavailable
from ccm.cloud.types import Route, address
from ccm.kube.errors import Conflict
from ccm.testing.clock import advance
from tests.unit.controllers.route.world import Stage

pytestmark = pytest.mark.virtual_time


async def test_a_start_creates_what_is_missing_and_deletes_what_is_too_much() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.node("b", "10.120.1.0/24")
    stage.cloud.routes = [Route(destination_cidr="10.120.9.0/24", target_node="gone", name="r9")]

    async with stage.running():
        assert stage.cloud.present() == {("a", "10.120.0.0/24"), ("b", "10.120.1.0/24")}
        assert sorted(stage.api.conditions) == [
            ("a", "False", "RouteCreated"),
            ("b", "False", "RouteCreated"),
        ]
        assert stage.events == []


@pytest.mark.row("route-when-02")
async def test_a_settled_cluster_costs_one_listing_now_and_one_in_ten_minutes() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    async with stage.running():
        stage.cloud.log.clear()
        stage.api.conditions.clear()

        await advance(590)
        assert stage.cloud.log == []
        await advance(310)

        assert stage.cloud.log == ["list"]
        assert stage.api.conditions == []


@pytest.mark.row("route-when-03")
async def test_a_new_node_has_its_route_soon() -> None:
    stage = Stage()
    async with stage.running():
        await advance(60)
        stage.node("a", "10.120.0.0/24")

        await advance(0.5)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}


async def test_a_node_that_is_still_without_ranges_costs_no_listing() -> None:
    stage = Stage()
    async with stage.running():
        await advance(60)
        stage.cloud.log.clear()
        stage.node("a")
        await advance(5)
        assert stage.cloud.log == []

        stage.node("a", "10.120.0.0/24")
        await advance(0.5)

        assert stage.cloud.changes() == ["create a 10.120.0.0/24"]


@pytest.mark.row("route-when-04")
async def test_under_churn_there_is_at_most_one_listing_in_ten_seconds() -> None:
    stage = Stage()
    async with stage.running():
        for number in range(100):
            stage.node(f"n{number}", f"10.120.{number}.0/24")
            await advance(1)

        gaps = [
            late - early for early, late in zip(stage.cloud.at, stage.cloud.at[1:], strict=False)
        ]
        assert min(gaps) >= 10
        assert len(gaps) >= 8


@pytest.mark.row("route-when-01")
async def test_a_fixed_period_is_kept_from_start_to_start_and_by_nothing_else() -> None:
    stage = Stage(period_s=10.0, interval_s=1.0)
    stage.cloud.latency_s = 3.0
    async with stage.running():
        await advance(5)
        for number in range(6):
            stage.node(f"n{number}", f"10.120.{number}.0/24")
            await advance(10)
        await advance(4)

        begin = stage.cloud.at[0]
        assert [moment - begin for moment in stage.cloud.at] == [0, 10, 20, 30, 40, 50, 60]
        assert len(stage.cloud.routes) == 6


@pytest.mark.row("route-fail-05")
async def test_a_call_that_hangs_holds_up_nothing_else() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.node("b", "10.120.1.0/24")
    stage.cloud.slow.add("create a 10.120.0.0/24")
    async with stage.running():
        assert stage.api.conditions == [("b", "False", "RouteCreated")]

        stage.node("c", "10.120.2.0/24")
        await advance(30)
        assert stage.cloud.present() == {("b", "10.120.1.0/24"), ("c", "10.120.2.0/24")}
        assert stage.cloud.changes().count("create a 10.120.0.0/24") == 1

        stage.cloud.open["create a 10.120.0.0/24"].set()
        await advance(0)
        assert stage.api.conditions[-1] == ("a", "False", "RouteCreated")
        await advance(700)
        assert stage.cloud.changes().count("create a 10.120.0.0/24") == 1


async def test_what_was_created_during_a_listing_counts_as_there() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    creation = "create a 10.120.0.0/24"
    stage.cloud.slow.add(creation)
    async with stage.running():
        stage.node("b", "10.120.1.0/24")
        stage.cloud.slow.add("list")
        await advance(11)
        stage.cloud.open[creation].set()
        await advance(0)
        stage.cloud.open["list"].set()
        await advance(60)

        assert stage.cloud.changes().count(creation) == 1
        assert ("a", "True", "NoRouteCreated") not in stage.api.conditions


async def test_what_waited_for_a_call_that_ended_during_the_listing_is_done_soon() -> None:
    """Nobody else would ask for a comparison before the safety pass."""
    stage = Stage()
    stage.cloud.routes = [Route(destination_cidr="10.120.0.0/24", target_node="x", name="r0")]
    deletion = "delete x 10.120.0.0/24"
    stage.cloud.slow.add(deletion)
    async with stage.running():
        stage.node("a", "10.120.0.0/24")
        stage.cloud.slow.add("list")
        await advance(11)
        stage.cloud.open[deletion].set()
        await advance(0)
        stage.cloud.open["list"].set()
        await advance(60)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}


@pytest.mark.parametrize("ends", ["during the listing", "after it"])
async def test_a_node_that_comes_back_during_the_deletion_of_its_route_gets_it_anew(
    ends: str,
) -> None:
    """The listing still shows the route, which is gone a moment later."""
    stage = Stage()
    stage.cloud.routes = [Route(destination_cidr="10.120.0.0/24", target_node="a", name="r0")]
    deletion = "delete a 10.120.0.0/24"
    stage.cloud.slow.add(deletion)
    async with stage.running():
        stage.node("a", "10.120.0.0/24")
        stage.cloud.slow.add("list")
        await advance(11)
        first, second = (deletion, "list") if ends == "during the listing" else ("list", deletion)
        stage.cloud.open[first].set()
        await advance(1)
        assert stage.api.conditions == []
        stage.cloud.open[second].set()
        await advance(60)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}
        assert stage.api.conditions == [("a", "False", "RouteCreated")]


@pytest.mark.parametrize("ends", ["during the listing", "after it"])
async def test_a_route_whose_node_goes_during_its_creation_goes_too(ends: str) -> None:
    """The listing does not show the route yet."""
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    creation = "create a 10.120.0.0/24"
    stage.cloud.slow.add(creation)
    async with stage.running():
        stage.remove("a")
        stage.cloud.slow.add("list")
        await advance(11)
        first, second = (creation, "list") if ends == "during the listing" else ("list", creation)
        stage.cloud.open[first].set()
        await advance(1)
        stage.cloud.open[second].set()
        await advance(60)

        assert stage.cloud.changes() == [creation, "delete a 10.120.0.0/24"]
        assert stage.cloud.present() == set()


@pytest.mark.row("route-when-07")
@pytest.mark.parametrize("limit", [1, 7, 200])
async def test_never_more_calls_at_once_than_allowed(limit: int) -> None:
    stage = Stage(concurrency=limit)
    stage.cloud.latency_s = 1.0
    for number in range(250):
        stage.node(f"n{number}", f"10.120.{number}.0/24")
    async with stage.running():
        await advance(300)

        assert stage.cloud.most == limit
        assert len(stage.cloud.routes) == 250


@pytest.mark.row("route-compare-20")
async def test_a_creation_waits_for_the_deletion_in_its_way() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.node("b", "10.120.1.0/24")
    stage.cloud.routes = [
        Route(destination_cidr="10.120.0.0/24", target_node="b", name="r0"),
        Route(destination_cidr="10.120.1.0/24", target_node="a", name="r1"),
    ]
    stage.cloud.latency_s = 1.0
    async with stage.running():
        await advance(5)

        order = stage.cloud.changes()
        assert order.index("delete b 10.120.0.0/24") < order.index("create a 10.120.0.0/24")
        assert stage.cloud.present() == {("a", "10.120.0.0/24"), ("b", "10.120.1.0/24")}


@pytest.mark.row("route-compare-20")
async def test_nothing_is_created_while_what_is_in_its_way_cannot_be_deleted() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.cloud.routes = [Route(destination_cidr="10.120.0.0/25", target_node="x", name="r0")]
    stage.cloud.faults["delete"] = Unavailable("no")
    async with stage.running():
        await advance(20)
        assert not any(entry.startswith("create") for entry in stage.cloud.log)
        assert stage.api.conditions == [("a", "True", "NoRouteCreated")]
        stage.cloud.faults.clear()

        await advance(60)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}


@pytest.mark.row("route-compare-21")
async def test_a_node_without_ranges_keeps_its_routes_for_a_while() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    async with stage.running():
        await advance(60)
        stage.node("a")
        await advance(30)
        assert stage.cloud.present() == {("a", "10.120.0.0/24")}
        stage.node("a", "10.120.0.0/24")
        await advance(60)

        assert stage.cloud.changes() == ["create a 10.120.0.0/24"]
        assert stage.api.conditions == [("a", "False", "RouteCreated")]


@pytest.mark.row("route-compare-21")
async def test_a_node_without_ranges_for_long_loses_its_routes() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    async with stage.running():
        await advance(60)
        stage.node("a")
        await advance(65)

        assert stage.cloud.routes == []
        assert stage.api.conditions[-1] == ("a", "True", "NoRouteCreated")


async def test_a_deletion_is_thought_over_at_the_last_moment() -> None:
    stage = Stage(concurrency=1)
    stage.cloud.routes = [
        Route(destination_cidr="10.120.0.0/24", target_node="x", name="r0"),
        Route(destination_cidr="10.120.1.0/24", target_node="back", name="r1"),
    ]
    stage.cloud.slow.add("delete x 10.120.0.0/24")
    async with stage.running():
        stage.node("back", "10.120.1.0/24")
        stage.cloud.open["delete x 10.120.0.0/24"].set()
        await advance(30)

        assert stage.cloud.changes() == ["delete x 10.120.0.0/24"]
        assert stage.cloud.present() == {("back", "10.120.1.0/24")}


async def test_a_creation_whose_node_went_is_left_out() -> None:
    stage = Stage(concurrency=1)
    stage.node("a", "10.120.0.0/24")
    stage.node("b", "10.120.1.0/24")
    stage.cloud.slow.add("create a 10.120.0.0/24")
    async with stage.running():
        stage.remove("b")
        stage.cloud.open["create a 10.120.0.0/24"].set()
        await advance(30)

        assert stage.cloud.changes() == ["create a 10.120.0.0/24"]


async def test_a_creation_of_a_range_that_its_node_no_longer_has_is_left_out() -> None:
    stage = Stage(concurrency=1)
    stage.node("a", "10.120.0.0/24")
    stage.node("b", "10.120.1.0/24")
    stage.cloud.slow.add("create a 10.120.0.0/24")
    async with stage.running():
        stage.node("b", "10.120.2.0/24")
        stage.cloud.open["create a 10.120.0.0/24"].set()
        await advance(30)

        assert stage.cloud.changes() == ["create a 10.120.0.0/24", "create b 10.120.2.0/24"]


async def test_a_node_made_anew_gets_a_condition_of_its_own() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    async with stage.running():
        stage.remove("a")
        stage.node("a", "10.120.0.0/24", uid="other")
        await advance(30)

        assert stage.api.conditions == [("a", "False", "RouteCreated")] * 2


async def test_a_condition_that_meets_a_conflict_is_written_later() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.api.error = Conflict(status=409, reason="Conflict", message="changed")
    async with stage.running():
        assert stage.api.conditions == []
        stage.api.error = None
        await advance(1)

        assert stage.api.conditions == [("a", "False", "RouteCreated")]


async def test_changed_addresses_delete_before_they_create() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24", ip="10.0.0.2")
    stage.cloud.routes = [
        Route(
            destination_cidr="10.120.0.0/24",
            target_node="a",
            name="r0",
            enable_node_addresses=True,
            target_addresses=(address("InternalIP", "10.0.0.1"),),
        )
    ]
    async with stage.running():
        assert stage.cloud.changes() == ["delete a 10.120.0.0/24", "create a 10.120.0.0/24"]
        (found,) = stage.cloud.routes
        assert found.target_addresses == (address("InternalIP", "10.0.0.2"),)
