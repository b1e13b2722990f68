"""The daemon ends at any of its calls while Machines fail or are preserved; another one goes on.

`tests/conformance/machine/test_crashes.py` has the creation and the deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ccm.cloud.machines import (
    DeleteMachineResponse,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
)
from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machines import FakeDriver, World

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 999


class Points:
    """Counts the points at which a daemon may end, and stops it for ever at one of them."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self.reached = asyncio.Event()
        self._fatal = fatal

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.count += 1
        if self.count >= self._fatal:
            self.reached.set()
            await asyncio.get_running_loop().create_future()


class Fragile(FakeDriver):
    """May be where the daemon ends; makes a VM whenever it is asked for one."""

    finds = False

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        await self.point()
        found = await super().create_machine(req)
        await self.point()
        return found

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        await self.point()
        return await super().initialize_machine(req)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        await self.point()
        found = await super().delete_machine(req)
        await self.point()
        return found

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        await self.point()
        return await super().list_machines(req)

    point: Any = None


def sick_world() -> World:
    """Three of a deployment are about to be given up; one that failed is preserved for an hour,
    and one fails whose node wants it to be.
    """
    # No set replaces what fails here: it is under way to the end of the test.
    world = World(creation_timeout_s=86_400.0)
    for number in range(8):
        world.lived(f"w{number}", group="w")
        world.node(f"w{number}")
    for number in range(3):
        world.lived(f"m{number}", phase="Unknown", group="d")
        world.node(f"m{number}", ready="Unknown")
    wish = {"annotations": {names.ANNOTATION_PRESERVE: "now"}}
    world.lived("p0", phase="Failed", metadata=wish, machinePreserveTimeout="30m")
    world.node("p0", ready="Unknown")
    world.lived("p1", phase="Unknown", group="p")
    when = {"annotations": {names.ANNOTATION_PRESERVE: "when-failed"}}
    world.node("p1", ready="Unknown", metadata=when)
    return world


async def gave_up_until(fatal: int) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    points, world = Points(fatal), sick_world()
    ever_kept = True

    async def looks() -> None:
        nonlocal ever_kept
        current = world.status("p1")["currentStatus"]
        ever_kept &= current["phase"] != "Failed" or "preserveExpiryTime" in current
        await points()

    world.server.point = looks
    async with world.running("machine"):
        reached = asyncio.ensure_future(points.reached.wait())
        await asyncio.wait({reached}, timeout=2400)
        reached.cancel()
    world.server.point = Points(fatal=10**9)
    async with world.running("machine"):
        await advance(3600)
    phases = [world.phase(f"m{number}") for number in range(3)]
    assert sorted(phases) == ["Failed", "Unknown", "Unknown"]
    assert [world.phase(name) for name in ("p0", "p1")] == ["Failed", "Failed"]
    assert ever_kept
    node = world.node_object("p0")
    left = str([node["spec"].get("taints"), node["metadata"].get("annotations")])
    assert [word for word in ("preserve", "scale-down") if word in left] == []
    assert "preserveExpiryTime" not in world.status("p0")["currentStatus"]
    assert names.ANNOTATION_PRESERVE not in world.get("p0")["metadata"].get("annotations", {})
    return points.reached.is_set()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 9], ids=["all", "some"])
async def test_never_two_are_given_up_and_what_is_preserved_is_preserved_once(step: int) -> None:
    tried = 0
    for fatal in range(1, MOST_POINTS, step):
        if not await gave_up_until(fatal):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried * step >= 40
