"""Calls and listings that fail: who is told, and when they are tried again."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.cloud.errors import InvalidArgument, RetryAfter, Unavailable
from ccm.controllers.route import plan
from ccm.testing.clock import advance
from tests.support.routes import A, made, running, spread

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("route-fail-02")
async def test_a_failed_creation_is_told_and_tried_again_ever_later() -> None:
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


async def test_a_hopeless_creation_is_not_hammered() -> None:
    async with running({"a": A}, faults={"create": InvalidArgument("no")}) as env:
        await advance(590)

        assert len(env.cloud.changes()) == 1


@pytest.mark.parametrize("also_failing", [{"list": Unavailable("outage")}, {}])
async def test_when_the_cloud_answers_again_all_pauses_of_the_outage_end(
    also_failing: dict[str, Exception],
) -> None:
    async with running(spread(5), faults={"create": Unavailable("outage")}) as env:
        await advance(400)
        env.cloud.faults = also_failing
        env.node("x", "10.120.99.0/24")
        await advance(30)
        env.cloud.faults.clear()

        await advance(60)

        assert len(env.cloud.routes) == 6


@pytest.mark.row("route-fail-04")
async def test_a_listing_that_fails_changes_nothing() -> None:
    async with running({"a": A}, faults={"list": Unavailable("no")}) as env:
        await advance(100)

        assert env.cloud.changes() == []
        assert env.conditions == []
        assert 3 <= len(env.cloud.at) <= 8


@pytest.mark.parametrize("settings", [{}, {"period_s": 10.0}], ids=["on changes", "fixed"])
async def test_a_comparison_that_meets_a_defect_is_tried_again(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(plan, "compare", None)
        async with running({"a": A}, **settings) as env:
            await advance(5)
            assert env.cloud.changes() == []
            broken.undo()
            await advance(60)

            assert env.cloud.present() == {("a", A)}


async def test_a_hopeless_creation_is_tried_at_once_when_its_node_changes() -> None:
    async with running({"a": A}, faults={"create": InvalidArgument("no")}) as env:
        await advance(20)
        env.cloud.faults.clear()
        env.node("a", A, ip="10.0.0.2")
        await advance(1)

        assert env.cloud.present() == {("a", A)}
