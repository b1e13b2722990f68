"""VMs and nodes without a Machine, row by row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.machines import Identity, ListMachinesRequest, MachineRecord
from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machines import CLUSTER, FakeDriver, World

pytestmark = pytest.mark.virtual_time

PERIOD_S = 900.0


def vm(
    world: World, name: str = "lost", *, cluster: str = CLUSTER, uid: str = "u", **more: Any
) -> str:
    """A VM that was made long ago; its provider ID."""
    identity = Identity(cluster=cluster, pool="small", name=name, uid=uid)
    old = clock.now() - timedelta(hours=2)
    return world.driver.add(identity, **{"created": old, **more}).info.provider_id


async def passes(count: int) -> None:
    """Let that many passes go by."""
    await advance(count * PERIOD_S * 1.1 + 10)


@pytest.mark.row("machine-orphans-01")
async def test_a_vm_that_belongs_to_no_machine() -> None:
    world = World()
    world.ready_class()
    lost = vm(world)
    async with world.running("machinesafety"):
        await advance(10)
        assert world.driver.deleted == []
        await passes(1)

    assert world.driver.deleted == [lost]
    assert [reason for reason, _ in world.events] == ["DeletedOrphanVM"]
    assert world.driver.given["delete_machine"].provider_id == lost


@pytest.mark.row("machine-orphans-01")
@pytest.mark.parametrize("told", [True, False], ids=["created-known", "created-unknown"])
async def test_a_young_vm_waits_for_its_hour(told: bool) -> None:
    world = World()
    world.ready_class()
    vm(world, created=clock.now() if told else None)
    async with world.running("machinesafety"):
        await advance(3590)
        assert world.driver.deleted == []
        await passes(2)

    assert len(world.driver.deleted) == 1


@pytest.mark.row("machine-orphans-01")
async def test_a_machine_that_only_the_cache_lacks_keeps_its_vm() -> None:
    world = World()
    world.ready_class()
    world.machine("lost", providerID="fake:///lost", status={"currentStatus": {"phase": "Running"}})
    vm(world, uid=world.identity("lost").uid)
    async with world.running("machinesafety"):
        assert world.shared is not None
        world.shared.machines._content.store.pop("default/lost")
        await passes(3)

    assert world.driver.deleted == []


@pytest.mark.row("machine-orphans-02")
@pytest.mark.row("machine-orphans-03")
@pytest.mark.row("machine-orphans-04")
@pytest.mark.parametrize(
    ("phase", "provider_id", "kept"),
    [
        ("", "", True),
        ("CrashLoopBackOff", "", True),
        ("CrashLoopBackOff", "fake:///other", True),
        ("Running", "fake:///lost", True),
        ("Running", "fake:///other", False),
        ("Failed", "fake:///other", False),
        ("Running", "", True),
    ],
)
async def test_a_vm_whose_machine_is_there(phase: str, provider_id: str, kept: bool) -> None:
    world = World()
    world.ready_class()
    status = {"currentStatus": {"phase": phase}}
    world.machine("lost", providerID=provider_id, status=status)
    vm(world, uid=world.identity("lost").uid)
    async with world.running("machinesafety"):
        await passes(3)

    assert (world.driver.deleted == []) is kept


@pytest.mark.row("machine-orphans-10", "machine-orphans-11")
@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown", "Failed", "Terminating"])
@pytest.mark.parametrize("name", ["lost", "renamed"])
async def test_a_vm_that_is_written_down(name: str, phase: str) -> None:
    world = World()
    world.ready_class()
    lost = vm(world, name)
    world.machine("lost", providerID=lost, status={"currentStatus": {"phase": phase}})
    async with world.running("machinesafety"):
        await passes(2)

    assert world.driver.deleted == []


@pytest.mark.row("machine-orphans-12")
async def test_what_is_said_of_a_vm_that_goes() -> None:
    world = World()
    world.ready_class()
    lost = vm(world, uid="former")
    async with world.running("machinesafety"):
        await passes(2)

    asked = world.driver.given["delete_machine"]
    assert asked.provider_id == lost
    assert asked.identity == Identity(cluster=CLUSTER, pool="small", name="lost", uid="former")
    assert asked.provider_spec == {"size": "small"}
    assert asked.credentials["userData"]


@pytest.mark.row("machine-orphans-01")
async def test_the_vm_of_a_former_machine_of_that_name() -> None:
    world = World()
    world.ready_class()
    world.machine("lost", status={"currentStatus": {"phase": "CrashLoopBackOff"}})
    former = vm(world, uid="of-another")
    async with world.running("machinesafety"):
        await passes(2)

    assert world.driver.deleted == [former]


@pytest.mark.row("machine-orphans-05")
async def test_what_asks_for_a_pass() -> None:
    world = World()
    world.ready_class()
    gone, doubtful = world.machine("gone"), world.machine("doubtful")
    async with world.running("machinesafety"):
        assert world.driver.calls["list_machines"] == 1
        looked = [await listings(world, 20)]
        world.server.drop(gone)
        looked.append(await listings(world, 60))
        for text in ("a", "OutOfRange", "OutOfRange again", "b"):
            operation = {"status": {"lastOperation": {"description": text}}}
            world.server.patch(f"{doubtful}/status", operation)
            looked.append(await listings(world, 60))
        looked.append(await listings(world, PERIOD_S * 1.1))

    assert looked == [0, 1, 0, 1, 0, 0, 1]


async def listings(world: World, seconds: float) -> int:
    """How many come in that time."""
    before = world.driver.calls["list_machines"]
    await advance(seconds)
    return world.driver.calls["list_machines"] - before


class HalfDeaf(FakeDriver):
    """Cannot list one pool."""

    async def list_machines(self, req: ListMachinesRequest) -> list[MachineRecord]:
        found = await super().list_machines(req)
        if req.pool == "deaf":
            raise errors.Unavailable("x")
        return [one for one in found if one.identity.pool == req.pool]


@pytest.mark.row("machine-orphans-06")
async def test_a_class_that_cannot_be_listed() -> None:
    world = World()
    world.driver = HalfDeaf()
    world.secret("deaf")
    world.machine_class("deaf")
    world.ready_class()
    lost = vm(world)
    async with world.running("machinesafety"):
        await passes(2)

    assert world.driver.deleted == [lost]


@pytest.mark.row("machine-orphans-07")
@pytest.mark.parametrize("cluster", ["", "theirs"])
async def test_a_vm_that_is_not_ours(cluster: str) -> None:
    world = World()
    world.ready_class()
    vm(world, cluster=cluster, uid="" if not cluster else "u")
    async with world.running("machinesafety"):
        await passes(6)

    assert world.driver.deleted == []
    assert [reason for reason, _ in world.events] == ([] if cluster else ["UnmarkedVM"])


@pytest.mark.row("machine-orphans-07")
async def test_a_vm_that_is_not_ours_goes_and_comes() -> None:
    """What is gone is forgotten: a daemon meets many strangers in its life."""
    world = World()
    world.ready_class()
    stranger = vm(world, cluster="", uid="")
    async with world.running("machinesafety"):
        await passes(2)
        world.driver.hides.add(stranger)
        await passes(2)
        world.driver.hides.clear()
        await passes(2)

    assert [reason for reason, _ in world.events] == ["UnmarkedVM"] * 2


@pytest.mark.row("machine-orphans-08")
@pytest.mark.parametrize(("count", "owned", "most"), [(12, 0, 5), (12, 88, 10)])
async def test_many_vms_at_once(count: int, owned: int, most: int) -> None:
    world = World()
    world.ready_class()
    for number in range(owned):
        status = {"currentStatus": {"phase": "Running"}}
        world.machine(f"m{number}", providerID=f"fake:///m{number}", status=status)
        vm(world, f"m{number}", uid=f"m{number}")
    for number in range(count):
        vm(world, f"x{number}", uid=f"x{number}")
    async with world.running("machinesafety"):
        await passes(1)

    assert len(world.driver.deleted) == most
    assert "OrphanVMsHeld" in [reason for reason, _ in world.events]


@pytest.mark.row("machine-orphans-09")
async def test_an_orphan_that_cannot_be_deleted() -> None:
    world = World()
    world.ready_class()
    lost = vm(world)
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    with capture_logs() as lines:
        async with world.running("machinesafety"):
            await passes(1)
            assert world.driver.deleted == []
            await passes(1)

    assert world.driver.deleted == [lost]
    assert [line["event"] for line in lines].count(
        "VMs of a class cannot be looked over, retrying"
    ) == 1


# --- nodes --------------------------------------------------------------------------------


@pytest.mark.row("machine-nodes-01")
@pytest.mark.parametrize(
    ("minutes", "note", "wanted"), [(21, None, "1"), (19, None, None), (21, "1", "1")]
)
async def test_a_node_without_machine(minutes: int, note: str | None, wanted: str | None) -> None:
    world = World()
    world.ready_class()
    notes = {names.ANNOTATION_NOT_MANAGED: note} if note else {}
    world.node("alone", metadata={"annotations": notes, "finalizers": [names.FINALIZER_NODE]})
    await advance(minutes * 60)
    async with world.running("machinesafety"):
        await advance(1)

    metadata = world.node_object("alone")["metadata"]
    assert metadata.get("annotations", {}).get(names.ANNOTATION_NOT_MANAGED) == wanted
    assert ("finalizers" in metadata) is (wanted is None)


@pytest.mark.row("machine-nodes-02")
@pytest.mark.row("machine-nodes-03")
@pytest.mark.parametrize("machines", [1, 2])
async def test_a_marked_node_with_machines(machines: int) -> None:
    world = World()
    world.ready_class()
    world.node("n", metadata={"annotations": {names.ANNOTATION_NOT_MANAGED: "1"}})
    for number in range(machines):
        world.machine(f"m{number}", metadata={"labels": {"node": "n"}})
    await advance(1800)
    async with world.running("machinesafety"):
        await advance(1)

    left = world.node_object("n")["metadata"].get("annotations", {})
    assert (names.ANNOTATION_NOT_MANAGED in left) is (machines > 1)
