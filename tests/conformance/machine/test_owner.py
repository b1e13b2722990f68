"""Ownership of VMs and nodes: who can edit Machines can set any provider ID and node label."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import IMPORT_ANNOTATION, Identity
from ccm.gardener import names
from ccm.machines import reasons
from ccm.machines.deletion import MARKERS, DeletionStage
from ccm.testing.clock import advance
from tests.conformance.machine.going import M
from tests.conformance.machine.test_creation_by_name import NamedVMs, by_name
from tests.unit.controllers.machines import Ready, World

pytestmark = pytest.mark.virtual_time

CONTROL_PLANE = "cp-1"
LISTED_S = 3_600
"""Longer than the listing period of the safety controller."""
CP_ID = f"fake:///{CONTROL_PLANE}"
TEMPLATE = {
    "metadata": {"labels": {"stolen": "yes"}},
    "spec": {"taints": [{"key": "stolen", "effect": "NoExecute"}]},
}


def control_plane(world: World) -> None:
    """A server of the project that no machine driver created, and its node."""
    world.driver.add(Identity(cluster="", pool="", name=CONTROL_PLANE, uid=""))
    world.node(CONTROL_PLANE)


def thief(world: World, *, phase: str = "Running", text: str = "") -> str:
    """A Machine that names the control plane's server and node as its own; its path."""
    status = {
        "currentStatus": {"phase": phase},
        "lastOperation": {"description": text, "state": "Processing", "type": "Delete"},
    }
    metadata = {"labels": {"node": CONTROL_PLANE}, "finalizers": [names.FINALIZER]}
    return world.machine(
        M, status=status, metadata=metadata, providerID=CP_ID, nodeTemplate=TEMPLATE
    )


def untouched(world: World) -> bool:
    """Return whether server and node are unchanged."""
    node = world.node_object(CONTROL_PLANE)
    metadata, taints = node["metadata"], node["spec"].get("taints") or ()
    is_written = (
        "stolen" in metadata.get("labels", {})
        or names.FINALIZER_NODE in metadata.get("finalizers", ())
        or any(one["key"] == "stolen" for one in taints)
    )
    is_drained = any(task.node_name == CONTROL_PLANE for task in world.drains.tasks)
    return CP_ID in world.driver.vms and not is_written and not is_drained


async def test_foreign_vm_is_not_adopted(world: Ready) -> None:
    control_plane(world)
    world.machine(M, providerID=CP_ID, nodeTemplate=TEMPLATE)
    await world.run(30)

    assert untouched(world)
    assert "was not changed; correct spec.providerID" in world.operation(M)["description"]
    assert world.driver.calls["create_machine"] == 0
    assert world.driver.calls["initialize_machine"] == 0


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
async def test_node_of_a_foreign_vm_is_not_changed(world: Ready, phase: str) -> None:
    control_plane(world)
    thief(world, phase=phase)
    await world.run(60)

    assert untouched(world)
    assert reasons.REASON_VM_NOT_OWNED in world.reasons()


@pytest.mark.parametrize(
    "stage", [None, *DeletionStage], ids=lambda one: one.value if one else "fresh"
)
async def test_foreign_vm_is_not_deleted(world: Ready, stage: DeletionStage | None) -> None:
    control_plane(world)
    text = MARKERS[stage] if stage else ""
    path = thief(world, phase="Terminating" if stage else "Running", text=text)
    world.server.drop(path)
    async with world.running():
        await advance(30)
        assert untouched(world)
        if stage is DeletionStage.FINALIZER:
            return
        assert "was not changed; correct spec.providerID" in world.operation(M)["description"]
        world.server.patch(path, {"spec": {"providerID": ""}})
        await advance(30)

    assert world.get(M) == {}
    assert untouched(world)


async def test_vm_invisible_to_the_credentials_keeps_its_node(world: Ready) -> None:
    control_plane(world)
    del world.driver.vms[CP_ID]
    world.server.drop(thief(world))
    await world.run(30)

    assert world.get(M) == {}
    assert world.node_object(CONTROL_PLANE)
    assert world.drains.tasks == []


async def test_running_machine_cannot_take_over_a_foreign_vm(world: Ready) -> None:
    control_plane(world)
    path = world.lived(M)
    world.node(M)
    async with world.running():
        await advance(30)
        stolen = {"metadata": {"labels": {"node": CONTROL_PLANE}}, "spec": {"providerID": CP_ID}}
        world.server.patch(path, stolen | {"spec": {"providerID": CP_ID, "nodeTemplate": TEMPLATE}})
        await advance(60)
        world.server.drop(path)
        await advance(60)

    assert untouched(world)


async def test_node_is_not_drained_while_the_vm_owner_is_unknown(
    world: Ready,
) -> None:
    path = world.lived(M)
    world.node(M, metadata={"labels": {}})
    world.driver.faults["list_machines"] = [errors.Unavailable("down")] * 2
    world.server.drop(path)
    async with world.running("machine", "machineclass"):
        await advance(1)
        assert world.drains.tasks == []
        assert world.operation(M)["state"] == "Failed"
        await advance(30)

    assert [task.node_name for task in world.drains.tasks] == [M]
    assert world.get(M) == {}


async def test_class_annotation_imports_an_existing_vm(world: World) -> None:
    world.secret()
    world.machine_class(
        metadata={
            "name": "small",
            "finalizers": [names.FINALIZER],
            "annotations": {IMPORT_ANNOTATION: f"fake:///other, {CP_ID}"},
        }
    )
    control_plane(world)
    path = world.machine(M, providerID=CP_ID)
    async with world.running():
        await advance(30)
        assert world.phase(M) == "Running"
        world.server.drop(path)
        await advance(30)

    assert world.get(M) == {}
    assert (world.driver.vms, world.node_object(CONTROL_PLANE)) == ({}, {})


async def test_restored_machine_keeps_its_vm(world: Ready) -> None:
    path = world.lived(M)
    marks = replace(world.identity(M), uid="before-the-restore")
    world.driver.add(marks)
    world.node(M, metadata={"labels": {}})
    async with world.running():
        await advance(30)
        assert names.FINALIZER_NODE in world.node_object(M)["metadata"]["finalizers"]
        world.server.drop(path)
        await advance(30)

    assert (world.get(M), world.driver.vms, world.node_object(M)) == ({}, {}, {})


async def test_known_vm_owner_costs_no_cloud_call(world: Ready) -> None:
    async with world.running("machine", "machineclass"):
        path = world.machine(M)
        await advance(1)
        world.node(M, providerID="fake:///0")
        await advance(30)
        world.server.drop(path)
        await advance(30)

    assert world.get(M) == {}
    assert world.driver.calls["get_machine_status"] == 0


def running_vm(world: World, cloud: NamedVMs, name: str) -> tuple[str, str]:
    """Add a VM of a name, its node, and a Machine that names both; return path and provider ID."""
    provider_id = f"fake:///{name}-0"
    cloud.vms[provider_id] = name
    world.node(name, providerID=provider_id)
    path = world.machine(
        M,
        providerID=provider_id,
        status={"currentStatus": {"phase": "Running"}},
        metadata={"labels": {"node": name}, "finalizers": [names.FINALIZER]},
    )
    return path, provider_id


@pytest.mark.parametrize("name", [M, "somebody-else"])
async def test_name_only_driver_decides_ownership_by_name(name: str) -> None:
    world, cloud = by_name()
    path, provider_id = running_vm(world, cloud, name)
    world.server.drop(path)
    await world.run(30)

    assert (provider_id in cloud.vms) is (name != M)
    assert (world.node_object(name) == {}) is (name == M)


async def test_renamed_vm_is_not_deleted() -> None:
    world, cloud = by_name()
    path, provider_id = running_vm(world, cloud, M)
    async with world.running("machine", "machineclass", "machinesafety"):
        await advance(LISTED_S)
        cloud.vms[provider_id] = "given-away"
        await advance(LISTED_S)
        world.server.drop(path)
        await advance(30)

    assert cloud.vms == {provider_id: "given-away"}
    assert "was not changed" in world.operation(M)["description"]
