"""Drains as tasks: begun once, told in time, ended with their controller."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ccm.base import lease_guard
from ccm.kube.errors import Conflict, Unreachable
from ccm.machines.drain import DrainState
from ccm.testing.clock import advance, settle
from tests.unit.controllers.drains import BUDGETS, PODS, Drains

pytestmark = pytest.mark.virtual_time


async def test_a_drain_that_runs_or_is_done_is_not_begun_again() -> None:
    world = Drains()
    world.pod("p0")
    async with world.draining():
        await advance(1)
        world.start()
        world.start()
        await advance(6)
        assert world.state() is DrainState.DONE
        world.start()
        await settle()
        assert (world.evictions(), world.state()) == (1, DrainState.DONE)
        assert world.woken == 2


@pytest.mark.row("machine-drain-29")
@pytest.mark.parametrize("pods", [0, 1])
async def test_that_nobody_had_to_leave_is_no_event(pods: int) -> None:
    world = Drains()
    for number in range(pods):
        world.pod(f"p{number}")
    async with world.draining():
        await advance(1)
        world.start()
        await advance(6)
        assert world.state() is DrainState.DONE

    assert [reason for reason, _ in world.events] == ["NodeDrained"] * pods


async def test_a_drain_that_was_stopped_is_forgotten() -> None:
    world = Drains()
    world.pod("p0", grace_s=100)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(1)
        uid = world.get()["metadata"]["uid"]
        await world.drainer.stop(uid)
        await world.drainer.stop(uid)
        assert world.drainer.progress(uid) is None
        woken = world.woken
        await advance(120)
        assert (world.woken, world.pods()) == (woken, [])


async def test_a_node_that_stays_is_drained_without_a_mark() -> None:
    """Whoever preserves it comes again, sees the end, and may have it drained anew then."""
    world = Drains()
    world.pod("p0")
    async with world.draining():
        await advance(1)
        task = replace(world.task(), terminating=False, cordon=False)
        before = world.node_object()
        for state in (DrainState.RUNNING, DrainState.RUNNING, DrainState.DONE):
            world.drainer.start(task, lambda: None)
            assert world.state() is state
            await advance(3)
        assert world.pods() == []
        assert world.node_object() == before
        await world.drainer.stop(task.machine.uid)
        world.drainer.start(task, lambda: None)
        assert world.state() is DrainState.RUNNING


@pytest.mark.parametrize("ends", [True, False], ids=["deletion", "update"])
async def test_a_deletion_goes_before_another_drain_of_the_node(ends: bool) -> None:
    """And so does an update in place, which cordons the node too."""
    world = Drains()
    world.pod("p0", grace_s=20)
    async with world.draining():
        await advance(1)
        kept = replace(world.task(), terminating=False, cordon=False)
        world.drainer.start(kept, lambda: None)
        await advance(5)
        world.drainer.start(replace(world.task(), terminating=ends), lambda: None)
        await advance(20)
        assert (world.state(), world.pods(), world.evictions()) == (DrainState.DONE, [], 1)

    assert world.node_object()["spec"]["unschedulable"] is True
    left = [task.get_name() for task in asyncio.all_tasks() if "drain-" in task.get_name()]
    assert left == []


async def test_a_drain_that_failed_begins_anew_for_who_comes_again() -> None:
    world = Drains()
    world.pod("p0")
    world.budget("one", minAvailable=0)
    world.budget("two", minAvailable=0)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(3)
        assert world.state() is DrainState.FAILED
        world.server.drop(f"{BUDGETS}/two")
        world.start()
        assert world.state() is DrainState.RUNNING
        await advance(7)
        assert world.state() is DrainState.DONE


async def test_drains_end_with_their_controller() -> None:
    world = Drains()
    world.pod("p0", grace_s=100)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(1)

    left = [task.get_name() for task in asyncio.all_tasks() if "drain-" in task.get_name()]
    assert left == []


async def test_nobody_pays_for_drains_that_are_not() -> None:
    world = Drains()
    async with world.draining(counting=False):
        await advance(1)
        watches = len(world.server.watches)
        world.pod("p0", grace_s=1)
        await advance(1)
        world.start()
        await advance(0.5)
        assert len(world.server.watches) == watches + 1
        await advance(2)
        assert world.state() is DrainState.DONE
        assert len(world.server.watches) == watches


async def test_a_leader_without_lease_changes_nothing() -> None:
    """A drain has the fence of whoever started it."""
    world = Drains()
    world.pod("p0")
    held = lease_guard.LeaseGuard()
    held.govern()
    held.extend(asyncio.get_running_loop().time() + 2)

    def checked(method: str, _path: str) -> Exception | None:
        """As the wire does it."""
        try:
            if method != "GET":
                lease_guard.check()
        except lease_guard.Lapsed as error:
            return Unreachable(str(error), kind="timeout")
        return None

    async with world.draining(counting=False):
        await advance(1)
        held.extend(asyncio.get_running_loop().time() + 0.5)
        await advance(1)
        world.server.refuse = checked
        world.start()
        await advance(10)
        assert (world.pods(), world.state()) == (["p0"], DrainState.FAILED)
        held.extend(asyncio.get_running_loop().time() + 60)
        world.start()
        await advance(7)
        assert world.state() is DrainState.DONE


async def test_force_meets_another_pod_of_that_name() -> None:
    """It came in between, and stays."""
    world = Drains()
    world.pod("p0")
    world.node("m1")

    def replaced(method: str, _path: str) -> None:
        if method == "DELETE":
            world.server.refuse = lambda *_: None
            world.server.kill(f"{PODS}/p0")
            world.pod("p0", node="m1")

    async with world.draining():
        await advance(1)
        world.server.refuse = replaced
        world.start(force=True)
        await settle()
        assert world.state() is DrainState.DONE

    assert [one["spec"]["nodeName"] for one in world.server.list(PODS)] == ["m1"]


async def test_an_eviction_that_others_got_in_the_way_of_is_asked_for_again() -> None:
    """Real API servers answer so when budgets change in that moment."""
    world = Drains()
    world.pod("p0", grace_s=1)
    conflicts = [Conflict(status=409, reason="Conflict", message="modified") for _ in range(2)]
    world.server.refuse = lambda _method, path: (
        conflicts.pop() if conflicts and path.endswith("/eviction") else None
    )
    async with world.draining():
        await advance(1)
        world.start()
        await advance(3)
        assert (world.state(), world.pods(), world.evictions()) == (DrainState.DONE, [], 3)
