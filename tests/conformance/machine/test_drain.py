"""Drains per row of the conformance table; with an in-memory API server and running Pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.kube.errors import ServerError
from ccm.machines.drain import DrainState
from ccm.testing.clock import advance, settle
from tests.conformance.table import case
from tests.unit.controllers.drains import (
    BUDGETS,
    SLOP_S,
    Drains,
    both,
    drained,
    plain,
    unhealthy,
    with_volumes,
)

pytestmark = pytest.mark.virtual_time


# --- the reference's table ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "evicts", "evictions", "at_least_s", "at_most_s"),
    [
        case(
            "machine-drain-01",
            lambda world: plain(world, 10),
            False,
            0,
            5,
            5 + SLOP_S,
            id="plain-without-api",
        ),
        case(
            "machine-drain-02", lambda world: plain(world, 10), True, 10, 5, 5 + SLOP_S, id="plain"
        ),
        case(
            ("machine-drain-03", "machine-drain-04"),
            lambda world: with_volumes(world, ("a",), ("b",)),
            True,
            2,
            12,
            20,
            id="exclusive",
        ),
        case(
            "machine-drain-03",
            lambda world: with_volumes(world, ("a",), ("b",)),
            False,
            0,
            12,
            20,
            id="exclusive-without-api",
        ),
        case(
            "machine-drain-05",
            lambda world: with_volumes(world, ("a", "b")),
            True,
            1,
            8,
            14,
            id="two-of-one",
        ),
        *(
            case(
                "machine-drain-06",
                lambda world: with_volumes(world, ("a",), ("a",)),
                evicts,
                2 * evicts,
                10,
                10 + 2 * SLOP_S,
                id=f"shared-{evicts}",
            )
            for evicts in (True, False)
        ),
        *(
            case(
                "machine-drain-07",
                lambda world: with_volumes(world, ("a", "c"), ("b", "c")),
                evicts,
                2 * evicts,
                12,
                22,
                id=f"both-kinds-{evicts}",
            )
            for evicts in (True, False)
        ),
        *(
            case("machine-drain-08", both, evicts, 12 * evicts, 12, 20, id=f"twelve-{evicts}")
            for evicts in (True, False)
        ),
        case(
            "machine-drain-10",
            lambda world: both(world, grace_s=100),
            True,
            12,
            200,
            230,
            id="long-grace",
        ),
    ],
)
async def test_drain_removes_pods_with_and_without_volumes(
    setup: Callable[[Drains], None],
    evicts: bool,
    evictions: int,
    at_least_s: float,
    at_most_s: float,
) -> None:
    world = Drains(reattach_timeout_s=30.0)
    world.node("m1")
    world.server.evicts = evicts
    world.moves = 1.0
    setup(world)
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=at_most_s)

    assert (world.pods(), world.evictions()) == ([], evictions)
    assert at_least_s <= took_s <= at_most_s
    assert world.node_object()["spec"]["unschedulable"] is True


@pytest.mark.row("machine-drain-09")
@pytest.mark.parametrize("evicts", ["yes", "no", "failing"])
async def test_forced_drain_ignores_budgets_and_grace_periods(world: Drains, evicts: str) -> None:
    world.server.evicts = evicts != "no"
    if evicts == "failing":
        trouble = ServerError(status=500, reason="InternalError", message="x")
        world.server.refuse = lambda _, path: trouble if "/eviction" in path else None
    both(world)
    world.budget(minAvailable=12)
    async with world.draining():
        await advance(1)
        began = clock.monotonic()
        world.start(force=True)
        await settle()
        assert (world.state(), world.progress().forced) == (DrainState.DONE, True)
        assert clock.monotonic() - began < 1

    assert (world.pods(), world.evictions()) == ([], 0)


@pytest.mark.parametrize("due", ["force", "timeout"])
async def test_drain_whose_pods_are_not_listed_fails_once_force_is_due(
    world: Drains, due: str
) -> None:
    """The deletion of the machine continues after a failed forced drain."""
    world.server.lists_pods = False
    plain(world, 1)
    async with world.draining():
        await advance(1)
        world.start(force=due == "force", timeout_s=600.0)
        if due == "timeout":
            await advance(500)
            assert world.state() is DrainState.RUNNING
            assert world.progress().message == "the Pods of the node are not listed yet"
            await advance(100)
        await advance(50)
        assert world.state() is DrainState.RUNNING
        await advance(15)
        progress = world.progress()

    assert (progress.state, progress.forced) == (DrainState.FAILED, True)
    assert "Pods of node m0 cannot be listed" in progress.message
    assert world.pods() == ["p0"]


@pytest.mark.row("machine-drain-11")
@pytest.mark.parametrize("case", ["foreign", "no-claim", "no-volume", "unbound", "unknown"])
async def test_drain_does_not_wait_for_foreign_or_unresolvable_volumes(
    world: Drains, case: str
) -> None:
    world.volume("a", driver="theirs" if case == "foreign" else "ours")
    if case == "no-claim":
        world.server.drop("/api/v1/namespaces/default/persistentvolumeclaims/a")
    elif case == "no-volume":
        world.server.drop("/api/v1/persistentvolumes/pv-a")
    elif case == "unbound":
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        world.server.patch(f"{claims}/a", {"spec": {"volumeName": None}})
    elif case == "unknown":
        world.driver.faults["get_volume_ids"] = errors.Unimplemented("x")
    world.pod("v0", claims=("a",), owner="StatefulSet")
    async with world.draining():
        await advance(1)
        took_s = await drained(world, within_s=10)

    assert took_s <= 5 + SLOP_S
    assert world.attached("m0") != []


# --- budgets --------------------------------------------------------------------------------


@pytest.mark.row("machine-drain-12")
@pytest.mark.parametrize(
    ("status", "misconfigured"),
    [
        ({"disruptionsAllowed": 1}, False),
        ({"expectedPods": 0, "currentHealthy": 0}, False),
        ({"observedGeneration": 0}, False),
        ({"disruptedPods": {"other": "2026-01-01T00:00:00Z"}}, False),
        ({"currentHealthy": 2}, False),
        ({}, True),
    ],
    ids=["healthy", "empty", "not-seen", "disrupted", "unhealthy", "nothing-allowed"],
)
async def test_misconfigured_disruption_budget_fails_the_drain(
    world: Drains, status: dict[str, Any], misconfigured: bool
) -> None:
    plain(world, 1)
    world.budget(minAvailable=3)
    counted = {
        "observedGeneration": 1,
        "expectedPods": 3,
        "currentHealthy": 3,
        "desiredHealthy": 3,
        "disruptionsAllowed": 0,
    }
    async with world.draining(counting=False):
        await advance(1)
        world.server.patch(f"{BUDGETS}/web/status", {"status": counted | status})
        world.start()
        await advance(2.5)
        said = "PodDisruptionBudget default/web is misconfigured"
        assert (world.state() is DrainState.FAILED) is misconfigured
        assert (said in world.progress().message) is misconfigured
        assert world.progress().message.startswith("- ") is misconfigured


@pytest.mark.row("machine-drain-12")
async def test_briefly_misconfigured_budget_does_not_fail_the_drain(world: Drains) -> None:
    """A Pod is evicted, and its replacement is not created yet."""
    plain(world, 2, grace_s=1)
    world.budget(minAvailable=1)
    world.node("m1")
    async with world.started():
        await advance(2.5)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["p1"])
        world.pod("replacement", node="m1")
        await advance(3)
        assert (world.state(), world.pods()) == (DrainState.DONE, ["replacement"])


@pytest.mark.row("machine-drain-13")
async def test_drain_keeps_mirror_and_daemon_set_pods(world: Drains) -> None:
    world.pod("mirror", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    world.pod("daemon", owner="DaemonSet")
    world.pod("elsewhere", node="m1")
    world.node("m1")
    world.pod("alone")
    async with world.draining():
        await advance(1)
        await drained(world, within_s=10)

    assert world.pods() == ["daemon", "elsewhere", "mirror"]


@pytest.mark.row("machine-drain-14")
async def test_blocked_eviction_is_retried_when_the_budget_allows_it(world: Drains) -> None:
    plain(world, 2, grace_s=1)
    unhealthy(world)
    world.node("m1")
    world.budget(minAvailable=2)
    world.pod("new", node="m1", metadata={"labels": {"app": "web"}})
    async with world.started():
        await advance(60)
        assert (world.state(), world.pods()) == (DrainState.RUNNING, ["new", "p1", "unhealthy"])
        assert "Pod default/p1 waits for its disruption budget" in world.progress().message
        assert "needs 2 healthy pods and has 2 currently" in world.progress().message
        assert world.evictions() <= 2 + 1 + 60 / 20 + 1
        watched = world.server.opened["/apis/policy/v1/poddisruptionbudgets"]
        assert watched == 1 + 1  # one of the drainer, one of the disruption controller
        before = world.evictions()
        world.pod("newer", node="m1", metadata={"labels": {"app": "web"}})
        await advance(2 + SLOP_S)
        assert (world.state(), world.pods()) == (DrainState.DONE, ["new", "newer", "unhealthy"])

    assert world.evictions() == before + 1
    reasons = world.reasons()
    assert reasons == ["NodeDrainBlocked", "NodeDrained"]


@pytest.mark.row("machine-drain-14")
async def test_drain_continues_when_the_blocking_budget_is_deleted(world: Drains) -> None:
    plain(world, 2)
    unhealthy(world)
    world.budget(minAvailable=2)
    async with world.started():
        await advance(2)
        assert world.pods() == ["p0", "p1", "unhealthy"]
        world.server.drop(f"{BUDGETS}/web")
        await advance(5 + SLOP_S)
        assert world.state() is DrainState.DONE


@pytest.mark.row("machine-drain-15")
@pytest.mark.parametrize("claims", [(), ("a",)], ids=["without-volume", "with-volume"])
async def test_pod_is_deleted_when_the_eviction_retries_are_exhausted(
    world: Drains, claims: tuple[str, ...]
) -> None:
    for one in claims:
        world.volume(one)
    world.moves = 0.5
    world.pod("p0", claims=claims)
    unhealthy(world)
    world.budget(minAvailable=5)
    async with world.started(retries=3):
        await advance(59)
        assert (world.pods(), world.evictions()) == (["p0", "unhealthy"], 3)
        await advance(6)
        assert (world.state(), world.progress().forced) == (DrainState.DONE, False)

    assert (world.pods(), world.evictions()) == (["unhealthy"], 4)


@pytest.mark.row("machine-drain-16")
async def test_short_drain_timeout_still_has_three_eviction_attempts(world: Drains) -> None:
    world.pod("p0")
    unhealthy(world)
    world.budget(minAvailable=5)
    async with world.started(timeout_s=9):
        await advance(8.5)
        assert (world.pods(), world.evictions()) == (["p0", "unhealthy"], 3)
        await advance(1)
        assert (world.state(), world.progress().forced) == (DrainState.DONE, True)

    assert world.pods() == ["unhealthy"]


@pytest.mark.row("machine-drain-17")
async def test_drain_fails_when_several_budgets_cover_one_pod(world: Drains) -> None:
    world.pod("p0")
    world.budget("one", minAvailable=0)
    world.budget("two", minAvailable=0)
    async with world.started():
        await advance(2.5)

        assert world.state() is DrainState.FAILED
        assert "2 PodDisruptionBudgets (default/one, default/two)" in world.progress().message
        world.server.drop(f"{BUDGETS}/two")
        world.start()
        await advance(5 + SLOP_S)
        assert world.state() is DrainState.DONE
