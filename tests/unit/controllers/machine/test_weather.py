"""Bad weather that lasts for a while: quotas, other clusters, lost objects, wrong listings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import ListMachinesRequest, MachineInfo, MachineRecord, MachineRequest
from ccm.machines import reasons
from ccm.testing.clock import advance
from tests.unit.controllers.machines import BASE, TOKENS, FakeDriver, World

pytestmark = pytest.mark.virtual_time

LONG_S = 4 * 3600.0
"""Time in which an orphan would be deleted."""


class Quota(FakeDriver):
    """Holds so many VMs."""

    most = 2

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        if len(self.vms) >= self.most:
            self.calls["refused"] += 1
            raise errors.ResourceExhausted(f"the quota is {self.most} instances")
        return await super().create_machine(req)


async def test_a_quota_is_reached_and_then_raised() -> None:
    world = World()
    world.driver = driver = Quota()
    world.ready_class()
    async with world.running():
        for number in range(4):
            world.machine(f"m{number}")
        await advance(60)
        phases = sorted(world.phase(f"m{number}") for number in range(4))
        assert phases == ["CrashLoopBackOff", "CrashLoopBackOff", "Pending", "Pending"]
        assert driver.calls["refused"] == 2
        driver.most = 4
        await advance(800)

    assert {world.phase(f"m{number}") for number in range(4)} == {"Pending"}
    assert len(driver.vms) == 4


@pytest.mark.parametrize("made", [True, False], ids=["made", "not-made"])
async def test_a_driver_that_never_answers_is_given_up_and_asked_again(made: bool) -> None:
    """What it made without saying so is found."""
    world = World()
    world.ready_class()
    create = world.driver.create_machine

    async def deaf(req: MachineRequest) -> MachineInfo:
        if made:
            world.driver.add(req.identity)
        world.driver.calls["deaf"] += 1
        world.driver.create_machine = create  # type: ignore[method-assign]
        await asyncio.Event().wait()
        raise AssertionError

    world.driver.create_machine = deaf  # type: ignore[method-assign]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(299)
        assert world.phase() == ""
        await advance(60)

    assert (world.phase(), len(world.driver.vms)) == ("Pending", 1)
    assert world.driver.calls["create_machine"] == (0 if made else 1)


class Project(FakeDriver):
    """One project for several clusters, in which names may come twice."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        await self._called("create_machine", req)
        number = len(self.vms) + len(self.deleted)
        info = MachineInfo(provider_id=f"fake:///{number}", node_name=req.identity.name)
        self.add(req.identity, info)
        return info


async def test_two_clusters_in_one_project_with_equal_names() -> None:
    """Nobody touches the other's; even the UIDs may be equal, where one is a copy of the other."""
    project = Project()
    ours, theirs = World(), World()
    for world, cluster in ((ours, "ours"), (theirs, "theirs")):
        world.driver, world.cluster = project, cluster
        world.ready_class()
        path = world.machine()
    project.calls.clear()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(ours.running())
        await advance(60)
        await stack.enter_async_context(theirs.running())
        await advance(300)
        # The name is taken: theirs waits, and says so.
        assert (ours.phase(), theirs.phase()) == ("Pending", "CrashLoopBackOff")
        assert "belongs to cluster 'ours'" in theirs.operation()["description"]
        assert [one.identity.cluster for one in project.vms.values()] == ["ours"]

        ours.server.drop(path)
        await advance(300)
        assert (ours.get(), theirs.phase()) == ({}, "Pending")
        await advance(LONG_S)

    assert [one.identity.cluster for one in project.vms.values()] == ["theirs"]
    assert len(project.deleted) == 1


async def running(world: World, count: int) -> None:
    """So many machines, each with its VM and its node."""
    for number in range(count):
        if not world.get(f"m{number}"):
            world.machine(f"m{number}")
    await advance(60)
    for number in range(count):
        world.node(f"m{number}", providerID=world.get(f"m{number}")["spec"]["providerID"])
    await advance(60)
    assert {world.phase(f"m{number}") for number in range(count)} == {"Running"}


def lose(world: World, path: str) -> None:
    """An object is not in the cluster any more, and nobody deleted it."""
    world.server.patch(path, {"metadata": {"finalizers": None}})
    world.server.drop(path)


@pytest.mark.parametrize("classes", [True, False], ids=["all", "machines-only"])
async def test_a_control_cluster_that_was_emptied(classes: bool) -> None:
    """Without classes no VM is touched; with them no more than a few in each pass."""
    world = World()
    world.ready_class()
    async with world.running():
        await running(world, 30)
    for number in range(30):
        lose(world, f"{BASE}/machines/m{number}")
    if classes:
        lose(world, f"{BASE}/machineclasses/small")
    async with world.running():
        await advance(3600 + 2 * 900)

    assert len(world.driver.deleted) <= (0 if classes else 10)
    if not classes:
        assert any(reason == reasons.REASON_ORPHAN_HELD for reason, _ in world.events)


async def test_an_older_snapshot_of_the_control_cluster() -> None:
    """It does not know the VMs of its machines yet, and brings back one that is gone."""
    world = World()
    world.ready_class()
    for number in range(3):
        world.machine(f"m{number}")
    before = {number: world.get(f"m{number}") for number in range(3)}
    async with world.running():
        await running(world, 3)
        world.server.drop(f"{BASE}/machines/m2")
        await advance(60)
        assert len(world.driver.vms) == 2
    for number in range(2):
        path = f"{BASE}/machines/m{number}"
        world.server.patch(path, {"spec": before[number]["spec"] | {"providerID": None}})
        world.server.patch(path, {"metadata": {"labels": None, "annotations": None}})
        world.server.patch(f"{path}/status", {"status": None})
    calls = world.driver.calls["create_machine"]
    async with world.running():
        await advance(LONG_S)

    assert world.driver.calls["create_machine"] == calls
    assert {world.get(f"m{number}")["spec"]["providerID"] for number in range(2)} == set(
        world.driver.vms
    )
    assert {world.phase(f"m{number}") for number in range(2)} == {"Running"}
    assert world.server.list(TOKENS) == []


async def test_half_a_listing_makes_no_second_vm_and_deletes_none() -> None:
    """A VM that a listing lacks is found by the driver, which looks for its marks itself."""
    world = World()
    world.ready_class()
    async with world.running():
        await running(world, 4)
        world.driver.hides = set(list(world.driver.vms)[:2])
        world.machine("late")
        identity = world.identity("late")
        world.driver.add(identity, MachineInfo(provider_id="fake:///late", node_name="late"))
        world.driver.hides.add("fake:///late")
        await advance(LONG_S)

    assert len(world.driver.vms) == 5
    assert world.driver.deleted == []
    assert world.get("late")["spec"]["providerID"] == "fake:///late"


class Stale(FakeDriver):
    """Lists as it was a while ago."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[MachineRecord] = []

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        now = await super().list_machines(req)
        found, self.before = self.before, list(now)
        return found


async def test_a_listing_of_the_past_deletes_no_vm_of_today() -> None:
    world = World()
    world.driver = driver = Stale()
    world.ready_class()
    async with world.running():
        await running(world, 3)
        path = f"{BASE}/machines/m0"
        world.server.drop(path)
        await advance(60)
        # Under its name there is another one now, whose VM no listing has yet.
        world.machine("m0")
        await advance(LONG_S)

    assert len(driver.vms) == 3
    assert len(driver.deleted) == 1
    assert {one.identity.uid for one in driver.vms.values()} == {
        world.identity(f"m{number}").uid for number in range(3)
    }


async def test_another_leader_goes_on_in_mid_creation() -> None:
    """The first one's call is still on its way in the cloud, and lands after its successor's look.

    The order has a token, as clouds that may answer late have to offer one.
    """
    world = World()
    world.ready_class()
    world.machine()
    create, orders = world.driver.create_machine, dict[str, MachineInfo]()

    async def order(req: MachineRequest) -> MachineInfo:
        if req.identity.uid not in orders:
            orders[req.identity.uid] = await create(req)
        return orders[req.identity.uid]

    async def late(req: MachineRequest) -> MachineInfo:
        landing.append(asyncio.ensure_future(arrives(req)))
        await asyncio.Event().wait()
        raise AssertionError

    async def arrives(req: MachineRequest) -> None:
        await asyncio.sleep(30)
        await order(req)

    landing: list[asyncio.Task[None]] = []
    world.driver.create_machine = late  # type: ignore[method-assign]
    async with world.running("machine", "machineclass"):
        await advance(10)
    world.driver.create_machine = order  # type: ignore[method-assign]
    async with world.running("machine", "machineclass"):
        await advance(60)

    assert [task.done() for task in landing] == [True]
    assert (world.phase(), len(world.driver.vms)) == ("Pending", 1)
    assert world.get()["spec"]["providerID"] in world.driver.vms


async def test_records_without_an_id_are_nobodys() -> None:
    """A cloud that answers in a way nobody documented takes nothing away."""
    world = World()
    world.ready_class()
    async with world.running():
        await running(world, 2)
        for key, record in world.driver.vms.items():
            world.driver.vms[key] = replace(record, info=MachineInfo())
        await advance(LONG_S)

    assert world.driver.deleted == []
