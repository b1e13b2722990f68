"""Clocks that jump: no machine fails by it, and no VM goes."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.machines import Identity
from ccm.testing.clock import START, START_S, VirtualTimeLoop, advance
from tests.unit.controllers.machines import BASE, CLUSTER, World

pytestmark = pytest.mark.virtual_time

HOUR_S = 3600.0

SET = {
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "d"}},
        "template": {
            "metadata": {"labels": {"app": "d"}},
            "spec": {"class": {"kind": "MachineClass", "name": "small"}},
        },
    },
}


def jump_of_the_wall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)


class Steady:
    """A server whose clock is right, whatever ours says."""

    @staticmethod
    def now() -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() - START_S)


def touch(world: World, text: str) -> None:
    """Somebody writes on the machine, so that it is looked at."""
    world.server.patch(f"{BASE}/machines/m0", {"metadata": {"annotations": {"touched": text}}})


@pytest.mark.row("machine-clock-01")
@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
async def test_a_jump_of_all_clocks_costs_a_waiting_machine_nothing(seconds: float) -> None:
    """As where the API server runs on our own host."""
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine(creationTimeout="5m")
        await advance(100)
        jump_of_the_wall(seconds)
        touch(world, "after")
        await advance(190)
        assert world.phase() == "Pending"
        if seconds > 0:
            await advance(80)
            assert world.phase() == "Failed"
        world.node()
        await advance(1)

    assert world.phase() == "Running"


@pytest.mark.row("machine-clock-01")
async def test_a_clock_of_ours_that_was_wrong_from_the_start_fails_nobody() -> None:
    world = World()
    world.ready_class()
    world.server.clock = Steady()  # type: ignore[assignment]
    world.machine(creationTimeout="5m")
    jump_of_the_wall(HOUR_S)
    world.driver.faults["create_machine"] = [errors.Internal("x")]
    async with world.running("machine", "machineclass"):
        await advance(1)
        assert world.phase() == "CrashLoopBackOff"
        await advance(220)
        assert world.phase() == "Pending"
        await advance(150)
        assert world.phase() == "Failed"


@pytest.mark.row("machine-clock-02")
async def test_a_jump_makes_no_young_vm_old_enough_to_go() -> None:
    world = World()
    world.ready_class()
    world.server.clock = Steady()  # type: ignore[assignment]
    world.driver.add(Identity(cluster=CLUSTER, pool="small", name="lost", uid="u"))
    born = clock.now()
    async with world.running("machinesafety"):
        await advance(10)
        jump_of_the_wall(2 * HOUR_S)
        await advance(2 * world.period_s * 1.1)
        assert world.driver.deleted == []
        await advance(HOUR_S)

    assert world.driver.deleted == ["fake:///lost"]
    assert clock.now() - born > timedelta(hours=3)
