"""Deletion without class, Secret, credentials or node, per row of the conformance table."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import MachineInfo
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.machines import reasons
from ccm.machines.deletion import MARKERS, DeletionStage
from ccm.testing.clock import advance
from tests.conformance.machine.going import (
    ALL,
    ATTACHMENTS,
    LONG_S,
    NONE,
    SHORT_S,
    M,
    attached,
    goes,
    left,
    unmake,
)
from tests.conformance.table import case
from tests.unit.controllers.machines import BASE, NODES_PATH, SECRETS_PATH, TOKENS, Ready, World

pytestmark = pytest.mark.virtual_time

# --- which node -----------------------------------------------------------------------------


@pytest.mark.row("machine-delete-status-01")
@pytest.mark.parametrize("labelled", [True, False], ids=["the-node-says-so", "the-cloud-says-so"])
async def test_missing_node_label_is_restored_from_node_or_cloud(
    world: Ready, labelled: bool
) -> None:
    world.drains.seconds = 30
    goes(world, MARKERS[DeletionStage.STATUS], labels={"node": ""})
    if labelled:
        labels = {names.LABEL_MACHINE_NAME: M}
        world.server.patch(f"{NODES_PATH}/{M}", {"metadata": {"labels": labels}})
    async with world.running():
        await advance(1)
        assert world.get(M)["metadata"]["labels"] == {"node": M}
        await advance(40)

    assert [task.node_name for task in world.drains.tasks][:1] == [M]
    assert left(world) == NONE
    assert world.driver.calls["get_machine_status"] == (0 if labelled else 1)


@pytest.mark.row("machine-delete-status-02")
@pytest.mark.parametrize(
    ("fault", "drains"),
    [
        (errors.NotFound("x"), 0),
        (errors.Unimplemented("x"), 0),
        (errors.Uninitialized("x"), 0),
        (errors.Uninitialized("x").carrying(MachineInfo(node_name=M)), 1),
    ],
    ids=["not-found", "unimplemented", "uninitialized", "uninitialized-with-name"],
)
async def test_deletion_continues_when_the_cloud_knows_no_node(
    world: Ready, fault: errors.CloudError, drains: int
) -> None:
    world.driver.faults["get_machine_status"] = fault
    goes(world, MARKERS[DeletionStage.STATUS], labels={"node": ""})
    await world.run(1)

    assert (world.get(M), world.driver.vms) == ({}, {})
    assert len(world.drains.tasks) == drains


@pytest.mark.parametrize(
    ("fault", "after_s"),
    [
        case("machine-delete-status-03", errors.Unavailable("x"), SHORT_S),
        case("machine-delete-status-04", errors.Internal("x"), LONG_S),
    ],
)
async def test_deletion_waits_while_the_vm_status_call_fails(
    world: Ready, fault: errors.CloudError, after_s: float
) -> None:
    world.driver.faults["get_machine_status"] = [fault]
    goes(world, labels={"node": ""}, phase="Running")
    async with world.running():
        await advance(after_s - 1)
        assert MARKERS[DeletionStage.STATUS] in world.operation(M)["description"]
        assert (world.operation(M)["state"], left(world)) == ("Failed", ALL)
        await advance(after_s * 0.2 + 2)

    assert left(world) == NONE


# --- what is missing ------------------------------------------------------------------------


CLASS, SECRET = f"{BASE}/machineclasses/small", f"{SECRETS_PATH}/small"


@pytest.mark.row("machine-delete-class-01", "machine-delete-secret-01")
@pytest.mark.parametrize("gone", [CLASS, SECRET], ids=["class", "secret"])
async def test_deletion_uses_the_last_known_class_and_secret(world: World, gone: str) -> None:
    world.secret(key="token")
    world.machine_class()
    async with world.running("machine", "machineclass"):
        path = world.machine(M)
        await advance(1)
        world.node(M, providerID="fake:///0")
        await advance(1)
        unmake(world, gone)
        await advance(1)
        world.server.drop(path)
        await advance(5)
        # A deleted class is dropped with its last machine; an existing one is kept.
        assert list(world.caches._usable) == ([] if gone == CLASS else ["default/small"])

    assert left(world) == NONE
    assert world.driver.given["delete_machine"].credentials["key"] == b"token"
    assert world.driver.given["delete_machine"].provider_spec == {"size": "small"}


@pytest.mark.row("machine-delete-class-02")
async def test_deletion_waits_for_a_class_missing_since_the_start(world: World) -> None:
    goes(world)
    async with world.running():
        await advance(60)
        text = world.operation(M)["description"]
        assert "MachineClass default/small does not exist; create it" in text
        assert MARKERS[DeletionStage.VM] in text
        assert left(world) == ALL
        world.ready_class()
        await advance(1)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-class-03")
@pytest.mark.parametrize(("provider_id", "goes_away"), [("", True), (f"fake:///{M}", False)])
async def test_forced_deletion_without_class_needs_an_empty_provider_id(
    world: World, provider_id: str, goes_away: bool
) -> None:
    goes(world, labels={"force-deletion": "true", "node": ""}, providerID=provider_id)
    await world.run(60)

    assert (world.get(M) == {}) is goes_away


@pytest.mark.parametrize(
    "fault",
    [
        case("machine-delete-class-04", {"nodeTemplate": {"capacity": {}}}),
        case("machine-delete-class-05", {"provider": "other"}),
    ],
    ids=["template", "provider"],
)
async def test_invalid_class_blocks_no_deletion(world: World, fault: dict[str, Any]) -> None:
    world.secret()
    world.machine_class(**fault)
    goes(world)
    await world.run(1)

    assert left(world) == NONE


# --- which project --------------------------------------------------------------------------


def rotate(world: World, key: bytes) -> None:
    """The credentials of the class are replaced."""
    world.server.patch(SECRET, {"data": {"key": base64.b64encode(key).decode()}})


def lose(world: World, name: str = M) -> None:
    """Delete the VM of a machine in the cloud, as a user does."""
    gone = next(key for key, one in world.driver.vms.items() if one.identity.name == name)
    del world.driver.vms[gone]


async def made(world: World, *others: str) -> str:
    """Machines that are made with the first credentials; the path of `M`."""
    world.secret(key="first")
    world.machine_class()
    async with world.running("machine", "machineclass"):
        for name in (M, *others):
            world.machine(name)
        await advance(1)
        for record in list(world.driver.vms.values()):
            world.node(record.identity.name, providerID=record.info.provider_id)
        await advance(1)
    rotate(world, b"second")
    return f"{BASE}/machines/{M}"


async def lost(world: World, *others: str) -> None:
    """As `made`; then the VM of `M` is deleted in the cloud, and `M` by a user."""
    path = await made(world, *others)
    lose(world)
    world.server.drop(path)


@pytest.mark.row("machine-delete-project-01")
async def test_vm_invisible_to_new_credentials_blocks_the_deletion(world: World) -> None:
    """The new project contains VMs of this cluster too: those created since."""
    path = await made(world)
    vms, world.driver.deleted = dict(world.driver.vms), ["counts on"]
    world.driver.vms.clear()
    async with world.running("machine", "machineclass"):
        world.machine("new")
        await advance(1)
        world.server.drop(path)
        await advance(30)
        text = world.operation(M)["description"]
        assert "the credentials or the region of class small differ from those" in text
        assert (world.operation(M)["state"], world.get(M) != {}) == ("Failed", True)
        assert world.node_object(M) != {}
        world.driver.vms |= vms
        rotate(world, b"first")
        await advance(1)

    assert (world.get(M), world.node_object(M)) == ({}, {})
    assert [record.identity.name for record in world.driver.vms.values()] == ["new"]


@pytest.mark.row("machine-delete-project-02")
async def test_new_credentials_that_show_sibling_vms_allow_the_deletion(world: World) -> None:
    await lost(world, "other")
    await world.run(5, "machine", "machineclass")

    assert world.get(M) == {}


@pytest.mark.row("machine-delete-project-03")
async def test_new_credentials_that_showed_the_vm_allow_the_deletion(world: World) -> None:
    path = await made(world)
    world.driver.faults["delete_machine"] = [errors.RetryAfter("x", seconds=3)]
    world.server.drop(path)
    async with world.running("machine", "machineclass"):
        await advance(1)
        world.driver.vms.clear()
    # The successor knows that the credentials have shown the VM.
    await world.run(10, "machine", "machineclass")

    assert world.get(M) == {}


@pytest.mark.row("machine-delete-project-04")
async def test_forced_deletion_accepts_a_vm_invisible_to_new_credentials(world: World) -> None:
    path = await made(world)
    world.driver.vms.clear()
    world.server.drop(path)
    async with world.running("machine", "machineclass"):
        await advance(30)
        assert world.get(M) != {}
        world.server.patch(path, {"metadata": {"labels": {"force-deletion": "true"}}})
        await advance(5)

    assert world.get(M) == {}


def recorded(world: World, name: str = M) -> int:
    """Return the number of origins recorded for the VM of a machine."""
    notes = world.get(name)["metadata"]["annotations"]
    return len(notes[names.ANNOTATION_ORIGIN].split(","))


@pytest.mark.row("machine-delete-project-05")
@pytest.mark.parametrize("listed_by", ["machinesafety", "creation"])
async def test_vm_listed_with_new_credentials_gets_a_second_origin(
    world: World, listed_by: str
) -> None:
    path = await made(world, "other")
    controllers = ["machine", "machineclass"]
    if listed_by == "machinesafety":
        controllers.append(listed_by)
    else:
        world.machine("new")
    await world.run(5, *controllers)
    assert [recorded(world), recorded(world, "other")] == [2, 2]
    lose(world)
    world.server.drop(path)
    await world.run(5, "machine", "machineclass")

    assert world.get(M) == {}
    assert [reason for reason, _ in world.events if reason.startswith("VM")] == []


@pytest.mark.row("machine-delete-project-05")
async def test_credential_rotation_patches_each_machine_once(world: World) -> None:
    """Each machine is patched once, and not at all while the credentials stay the same."""
    world.secret(key="first")
    world.machine_class()
    async with world.running():
        for number in range(10):
            world.machine(f"m{number}")
        await advance(1)
        for record in list(world.driver.vms.values()):
            world.node(record.identity.name, providerID=record.info.provider_id)
        await advance(60)
        before = world.server.writes("machines")
        await advance(3 * 1000)
        assert world.driver.calls["list_machines"] >= 3
        assert world.server.writes("machines") == before
        rotate(world, b"second")
        await advance(3 * 1000)

    assert world.server.writes("machines") == before + 10
    assert [recorded(world, f"m{number}") for number in range(10)] == [2] * 10


@pytest.mark.row("machine-delete-project-05")
async def test_sibling_vm_listed_before_allows_a_later_deletion(world: World) -> None:
    """The sibling VM proves that the new credentials show the same project."""
    path = await made(world, "other")
    lose(world)
    async with world.running():
        await advance(5)
        assert [recorded(world), recorded(world, "other")] == [1, 2]
        world.server.drop(path)
        await advance(5)

    assert world.get(M) == {}


@pytest.mark.row("machine-delete-project-06")
async def test_wait_for_the_former_credentials_ends_after_ten_minutes(world: World) -> None:
    """The wait continues across a restart; every listing confirms that the VM is missing."""
    await lost(world)
    async with world.running("machine", "machineclass"):
        await advance(400)
        assert (world.get(M) != {}, world.driver.calls["delete_machine"]) == (True, 0)
    async with world.running("machine", "machineclass"):
        await advance(190)
        assert (world.get(M) != {}, world.driver.calls["delete_machine"]) == (True, 0)
        world.driver.faults["list_machines"] = [errors.Unavailable("x")]
        await advance(60)

    assert (world.get(M), world.driver.calls["delete_machine"]) == ({}, 1)
    assert [reason for reason, _ in world.events if reason.startswith("VM")] == [
        reasons.REASON_VM_NOT_VISIBLE,
        reasons.REASON_VM_PRESUMED_DELETED,
    ]


@pytest.mark.row("machine-delete-project-06")
async def test_another_credential_rotation_restarts_the_wait(world: World) -> None:
    await lost(world)
    async with world.running("machine", "machineclass"):
        await advance(500)
        rotate(world, b"third")
        await advance(500)
        assert (world.get(M) != {}, world.driver.calls["delete_machine"]) == (True, 0)
        await advance(250)

    assert world.get(M) == {}


@pytest.mark.row("machine-delete-project-06")
async def test_returning_to_former_credentials_resets_the_wait(world: World) -> None:
    """The same wrong credentials restart the wait, also across a restart."""
    await lost(world)
    async with world.running("machine", "machineclass"):
        await advance(500)
        world.driver.faults["delete_machine"] = errors.Unavailable("x")
        rotate(world, b"first")
        await advance(1)
        world.driver.faults.clear()
        rotate(world, b"second")
        await advance(1)
    async with world.running("machine", "machineclass"):
        await advance(500)
        assert world.get(M) != {}
        await advance(250)

    assert world.get(M) == {}


# --- tokens, nodes, volumes -----------------------------------------------------------------


@pytest.mark.row("machine-delete-node-01")
async def test_node_of_another_vm_is_neither_drained_nor_deleted(world: Ready) -> None:
    goes(world, providerID="fake:///older")
    await world.run(5)

    assert (world.get(M), world.drains.tasks) == ({}, [])
    assert world.node_object(M) != {}


@pytest.mark.row("machine-delete-node-02")
async def test_forbidden_node_deletion_is_retried(world: Ready) -> None:
    goes(world)
    denied = [True]
    world.server.refuse = lambda method, path: (
        Forbidden(status=403, reason="Forbidden", message="no nodes for you")
        if denied[0] and method == "DELETE" and path.startswith(NODES_PATH)
        else None
    )
    async with world.running():
        await advance(SHORT_S - 1)
        operation = world.operation(M)
        assert MARKERS[DeletionStage.NODE] in operation["description"]
        assert "no nodes for you" in operation["description"]
        assert (operation["state"], left(world)) == ("Failed", (True, False, True))
        denied[0] = False
        await advance(3)

    assert left(world) == NONE
    assert world.driver.calls["delete_machine"] == 1


@pytest.mark.row("machine-delete-node-03")
async def test_drain_stops_when_its_node_vanishes(world: Ready) -> None:
    world.drains.seconds = 3600
    goes(world)
    async with world.running():
        await advance(10)
        assert left(world) == ALL
        unmake(world, f"{NODES_PATH}/{M}")
        await advance(1)

    assert left(world) == NONE
    assert len(world.drains.stopped) == 1


@pytest.mark.row("machine-delete-volumes-01")
async def test_forced_deletion_deletes_volume_attachments_and_waits(world: Ready) -> None:
    goes(world, labels={"force-deletion": "true"})
    attached(world, "v0", "v1")
    async with world.running():
        await advance(6)
        assert (world.server.list(ATTACHMENTS), left(world)) == ([], ALL)
        assert MARKERS[DeletionStage.VOLUMES] in world.operation(M)["description"]
        attached(world)
        await advance(6)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-volumes-02")
async def test_vm_deletion_stops_waiting_for_volumes_at_the_timeout(world: Ready) -> None:
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    goes(world, labels={"force-deletion": "true"})
    attached(world, "v0")
    async with world.running():
        await advance(115)
        assert left(world) == ALL
        assert "1 volume is still attached" in world.operation(M)["description"]
    # The timeout continues under the successor.
    await world.run(30)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-creation-01", "machine-create-15")
async def test_deletion_waits_for_a_creation_in_progress(world: Ready) -> None:
    world.driver.seconds = 10
    async with world.running("machine", "machineclass"):
        path = world.machine(M)
        await advance(15)
        world.server.drop(path)
        await advance(3)
        asked = [world.driver.calls[one] for one in ("get_machine_status", "delete_machine")]
        assert (asked, world.phase(M)) == ([0, 0], "")
        await advance(60)

    assert (world.get(M), world.driver.vms, world.server.list(TOKENS)) == ({}, {}, [])
    assert world.driver.calls["create_machine"] == 1


@pytest.mark.row("machine-delete-creation-01")
async def test_deletion_proceeds_after_a_creation_in_progress_fails(world: Ready) -> None:
    """The failed pass writes nothing, so that no watch event requeues the machine."""
    world.driver.seconds = 10
    world.driver.faults["create_machine"] = [errors.Unavailable("x"), errors.Unavailable("y" * 99)]
    path = world.machine(M)
    await world.run(24, "machine", "machineclass")
    async with world.running("machine", "machineclass"):
        await advance(15)
        world.server.drop(path)
        await advance(60)

    assert world.driver.calls["create_machine"] == 2
    assert (world.get(M), world.driver.vms) == ({}, {})
