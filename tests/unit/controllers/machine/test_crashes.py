"""The daemon ends at any of its calls, done or not, and another one goes on: no VM is lost, none
made twice, none forgotten."""

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
from ccm.machines import creation
from ccm.testing.clock import advance, settle
from tests.unit.controllers.machines import TOKENS, FakeDriver, World

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


async def story(world: World, *, goes: bool) -> None:
    """Machines become nodes; in one of the stories the first goes again."""
    await advance(60)
    for record in list(world.driver.vms.values()):
        name = record.identity.name
        if not world.node_object(name):
            world.node(name, providerID=record.info.provider_id)
    await advance(60)
    if goes and world.get("m0").get("metadata", {}).get("deletionTimestamp") is None:
        if world.get("m0"):
            world.server.drop("/apis/machine.sapcloud.io/v1alpha1/namespaces/default/machines/m0")
        await advance(60)


async def ended_at(fatal: int, *, machines: int, goes: bool) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    points = Points(fatal)
    world, driver = World(), Fragile()
    world.driver, driver.point, world.server.point = driver, points, points
    world.ready_class()
    for number in range(machines):
        world.machine(f"m{number}")
    async with world.running():
        telling = asyncio.ensure_future(story(world, goes=goes))
        ended = asyncio.ensure_future(points.reached.wait())
        await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, ended):
            task.cancel()
        await asyncio.wait({telling, ended})
    driver.point = world.server.point = Points(fatal=10**9)
    async with world.running():
        await story(world, goes=goes)
        await advance(600)
        await settle()
    names = [f"m{number}" for number in range(int(goes), machines)]
    assert sorted(one.identity.name for one in world.driver.vms.values()) == names
    assert [world.phase(name) for name in names] == ["Running"] * len(names)
    stored = {world.get(name)["spec"]["providerID"] for name in names}
    assert stored == set(world.driver.vms)
    assert world.server.list(TOKENS) == []
    assert world.node_object("m0") == {} or not goes
    return points.reached.is_set()


@pytest.mark.parametrize("goes", [False, True], ids=["come", "come-and-go"])
@pytest.mark.parametrize(
    ("machines", "step", "least"),
    [pytest.param(4, 1, 75, marks=pytest.mark.soak), (2, 3, 40)],
    ids=["all", "some"],
)
async def test_no_vm_is_lost_nor_made_twice(
    goes: bool, machines: int, step: int, least: int
) -> None:
    tried = 0
    for fatal in range(1, MOST_POINTS, step):
        if not await ended_at(fatal, machines=machines, goes=goes):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried * step >= least


# --- machines that fail, and one that is preserved -------------------------------------------


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


async def test_without_the_look_for_a_vm_doubles_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What these tests are worth: a daemon that looks for none makes another one."""

    def blind(*_: Any, **__: Any) -> tuple[None, str]:
        return None, ""

    monkeypatch.setattr(creation, "match_marked", blind)
    for fatal in range(1, MOST_POINTS):
        try:
            if not await ended_at(fatal, machines=2, goes=False):
                pytest.fail("no double was reported")
        except AssertionError as error:
            if "['m0', 'm0', 'm1']" in str(error) or "['m0', 'm1', 'm1']" in str(error):
                break
