"""Calls and listings that fail: who is told, and when they are tried again."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.cloud.errors import CloudError, InvalidArgument, RetryAfter, Unavailable
from ccm.cloud.types import Route
from ccm.testing.clock import advance
from tests.unit.controllers.route.world import Stage

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("route-fail-02")
async def test_a_failed_creation_is_told_and_tried_again_ever_later() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.cloud.faults["create"] = Unavailable("later")
    async with stage.running():
        assert stage.api.conditions == [("a", "True", "NoRouteCreated")]
        assert stage.events == [("a", "Warning", "FailedToCreateRoute")]
        await advance(60)
        tries = len(stage.cloud.changes())
        assert 4 <= tries <= 7
        assert len(stage.events) == tries

        stage.cloud.faults.clear()
        await advance(70)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}
        assert stage.api.conditions[1:] == [("a", "False", "RouteCreated")]


@pytest.mark.row("route-fail-02")
async def test_a_failed_deletion_is_tried_again() -> None:
    stage = Stage()
    stage.cloud.routes = [Route(destination_cidr="10.120.9.0/24", target_node="gone", name="r9")]
    stage.cloud.faults["delete"] = Unavailable("later")
    async with stage.running():
        assert stage.events == []
        stage.cloud.faults.clear()

        await advance(5)

        assert stage.cloud.routes == []


@pytest.mark.row("route-fail-03")
async def test_a_retry_after_is_honoured_and_makes_no_event() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.cloud.faults["create"] = RetryAfter("working on it", seconds=42)
    async with stage.running():
        stage.cloud.faults.clear()
        await advance(41)
        assert len(stage.cloud.changes()) == 1
        await advance(2)

        assert len(stage.cloud.changes()) == 2
        assert stage.events == []


async def test_a_hopeless_creation_is_not_hammered() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.cloud.faults["create"] = InvalidArgument("no")
    async with stage.running():
        await advance(590)

        assert len(stage.cloud.changes()) == 1


@pytest.mark.parametrize("also_failing", [{"list": Unavailable("outage")}, {}])
async def test_when_the_cloud_answers_again_all_pauses_of_the_outage_end(
    also_failing: dict[str, CloudError],
) -> None:
    stage = Stage()
    for number in range(5):
        stage.node(f"n{number}", f"10.120.{number}.0/24")
    stage.cloud.faults["create"] = Unavailable("outage")
    async with stage.running():
        await advance(400)
        stage.cloud.faults = also_failing
        stage.node("x", "10.120.99.0/24")
        await advance(30)
        stage.cloud.faults.clear()

        await advance(60)

        assert len(stage.cloud.routes) == 6


@pytest.mark.row("route-fail-04")
async def test_a_listing_that_fails_changes_nothing() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    stage.cloud.faults["list"] = Unavailable("no")
    async with stage.running():
        await advance(100)

        assert stage.cloud.changes() == []
        assert stage.api.conditions == []
        assert 3 <= len(stage.cloud.at) <= 8


async def test_a_comparison_that_meets_a_defect_is_tried_again() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24")
    broken: Any = Route(destination_cidr=None, target_node="a", name="r0")  # type: ignore[arg-type]
    stage.cloud.routes = [broken]
    async with stage.running():
        await advance(1)
        assert stage.cloud.changes() == []

        stage.cloud.routes = []
        await advance(60)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}


async def test_a_hopeless_creation_is_tried_at_once_when_its_node_changes() -> None:
    stage = Stage()
    stage.node("a", "10.120.0.0/24", ip="10.0.0.1")
    stage.cloud.faults["create"] = InvalidArgument("no")
    async with stage.running():
        await advance(20)
        stage.cloud.faults.clear()
        stage.node("a", "10.120.0.0/24", ip="10.0.0.2")
        await advance(1)

        assert stage.cloud.present() == {("a", "10.120.0.0/24")}


@pytest.mark.parametrize("settings", [{}, {"period_s": 10.0}], ids=["on changes", "fixed"])
async def test_a_defect_of_a_listing_does_not_end_the_comparisons(settings: dict[str, Any]) -> None:
    stage = Stage(**settings)
    stage.node("a", "10.120.0.0/24")
    defect: Any = ValueError("a defect of ours")
    stage.cloud.faults["list"] = defect
    async with stage.running():
        await advance(5)
        stage.cloud.faults.clear()
        await advance(30)
        assert stage.cloud.present() == {("a", "10.120.0.0/24")}
