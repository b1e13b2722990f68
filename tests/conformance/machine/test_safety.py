"""VMs and nodes without a Machine, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.machines import Identity, ListMachinesRequest, MachineRecord
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.conformance.machine.test_creation_by_name import NamedVMs, by_name, started
from tests.unit.controllers.machines import BASE, CLUSTER, SECRETS_PATH, FakeDriver, Ready, World

pytestmark = pytest.mark.virtual_time

PERIOD_S = 900.0


ALL_MACHINES = f"/apis/{names.GROUP}/{names.VERSION}/machines"
TROUBLE = {"description": "OutOfRange"}
UNMARKED = {"cluster": "", "namespace": "", "uid": ""}


def vm(world: World, name: str = "lost", *, marks: Any = None, uid: str = "u", **more: Any) -> str:
    """A VM that was made long ago; its provider ID."""
    given = {"cluster": CLUSTER, "namespace": "default", "uid": uid, **(marks or {})}
    identity = Identity(pool="small", name=name, **given)
    old = clock.now() - timedelta(hours=2)
    return world.driver.add(identity, **{"created": old, **more}).info.provider_id


async def passes(count: int) -> None:
    """Let that many passes go by."""
    await advance(count * PERIOD_S * 1.1 + 10)


async def looked_over(world: World, count: int) -> None:
    """Let the safety controller work for that many passes."""
    async with world.running("machinesafety"):
        await passes(count)


@pytest.mark.row("machine-orphans-01")
async def test_orphan_vm_is_deleted_in_the_second_pass(world: Ready) -> None:
    lost = vm(world)
    async with world.running("machinesafety"):
        await advance(10)
        assert world.driver.deleted == []
        await passes(1)

    assert world.driver.deleted == [lost]
    assert world.reasons() == ["DeletedOrphanVM"]
    assert world.driver.given["delete_machine"].provider_id == lost


@pytest.mark.row("machine-orphans-01")
@pytest.mark.parametrize("told", [True, False], ids=["created-known", "created-unknown"])
async def test_young_orphan_vm_is_kept_for_an_hour(world: Ready, told: bool) -> None:
    vm(world, created=clock.now() if told else None)
    async with world.running("machinesafety"):
        await advance(3590)
        assert world.driver.deleted == []
        await passes(2)

    assert len(world.driver.deleted) == 1


@pytest.mark.row("machine-orphans-01")
async def test_vm_of_a_machine_missing_from_the_cache_is_kept(world: Ready) -> None:
    world.machine("lost", providerID="fake:///lost", status={"currentStatus": {"phase": "Running"}})
    vm(world, uid=world.identity("lost").uid)
    async with world.running("machinesafety"):
        world.caches.machines.store.pop("default/lost")
        await passes(3)

    assert world.driver.deleted == []


@pytest.mark.row("machine-orphans-02", "machine-orphans-03", "machine-orphans-04")
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
async def test_vm_of_an_existing_machine_is_deleted_only_as_a_duplicate(
    world: Ready, phase: str, provider_id: str, kept: bool
) -> None:
    status = {"currentStatus": {"phase": phase}}
    world.machine("lost", providerID=provider_id, status=status)
    vm(world, uid=world.identity("lost").uid)
    await looked_over(world, 3)

    assert (world.driver.deleted == []) is kept


@pytest.mark.row("machine-orphans-10", "machine-orphans-11")
@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown", "Failed", "Terminating"])
@pytest.mark.parametrize("name", ["lost", "renamed"])
async def test_vm_referenced_by_a_provider_id_is_kept(world: Ready, name: str, phase: str) -> None:
    lost = vm(world, name)
    world.machine("lost", providerID=lost, status={"currentStatus": {"phase": phase}})
    await looked_over(world, 2)

    assert world.driver.deleted == []


@pytest.mark.row("machine-orphans-12")
async def test_orphan_deletion_request_carries_identity_and_class(world: Ready) -> None:
    lost = vm(world, uid="former")
    await looked_over(world, 2)

    asked = world.driver.given["delete_machine"]
    assert asked.provider_id == lost
    assert asked.identity == Identity(
        cluster=CLUSTER, namespace="default", pool="small", name="lost", uid="former"
    )
    assert asked.provider_spec == {"size": "small"}
    assert asked.credentials["userData"]


@pytest.mark.row("machine-orphans-01")
async def test_vm_of_a_former_machine_with_the_same_name_is_deleted(world: Ready) -> None:
    world.machine("lost", status={"currentStatus": {"phase": "CrashLoopBackOff"}})
    former = vm(world, uid="of-another")
    await looked_over(world, 2)

    assert world.driver.deleted == [former]


@pytest.mark.row("machine-orphans-05")
async def test_machine_deletion_and_out_of_range_error_trigger_a_pass(world: Ready) -> None:
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
    """Return the number of listings in that time."""
    before = world.driver.calls["list_machines"]
    await advance(seconds)
    return world.driver.calls["list_machines"] - before


class HalfDeaf(FakeDriver):
    """Driver that cannot list one pool."""

    async def list_machines(self, req: ListMachinesRequest) -> list[MachineRecord]:
        found = await super().list_machines(req)
        if req.pool == "deaf":
            raise errors.Unavailable("x")
        return [one for one in found if one.identity.pool == req.pool]


@pytest.mark.row("machine-orphans-06")
async def test_unlistable_class_does_not_block_other_classes(world: World) -> None:
    world.driver = HalfDeaf()
    world.secret("deaf")
    world.machine_class("deaf")
    world.ready_class()
    lost = vm(world)
    await looked_over(world, 2)

    assert world.driver.deleted == [lost]


@pytest.mark.row("machine-orphans-07")
@pytest.mark.parametrize("cluster", ["", "theirs"])
async def test_unmarked_or_foreign_vm_is_not_deleted(world: Ready, cluster: str) -> None:
    vm(world, marks={"cluster": cluster} if cluster else UNMARKED)
    await looked_over(world, 6)

    assert world.driver.deleted == []
    assert world.reasons() == ([] if cluster else ["UnmarkedVM"])


@pytest.mark.row("machine-orphans-07")
async def test_unmarked_vm_is_reported_again_after_it_vanished(world: Ready) -> None:
    """Reported VMs that vanish are forgotten, so that memory stays bounded."""
    stranger = vm(world, marks=UNMARKED)
    async with world.running("machinesafety"):
        await passes(2)
        world.driver.hides.add(stranger)
        await passes(2)
        world.driver.hides.clear()
        await passes(2)

    assert world.reasons() == ["UnmarkedVM"] * 2


@pytest.mark.row("machine-orphans-08")
@pytest.mark.parametrize(("count", "owned", "most"), [(12, 0, 5), (12, 88, 10)])
async def test_orphan_deletions_per_pass_are_limited(
    world: Ready, count: int, owned: int, most: int
) -> None:
    for number in range(owned):
        status = {"currentStatus": {"phase": "Running"}}
        world.machine(f"m{number}", providerID=f"fake:///m{number}", status=status)
        vm(world, f"m{number}", uid=f"m{number}")
    for number in range(count):
        vm(world, f"x{number}", uid=f"x{number}")
    await looked_over(world, 1)

    assert len(world.driver.deleted) == most
    assert "OrphanVMsHeld" in world.reasons()


@pytest.mark.row("machine-orphans-09")
async def test_failed_orphan_deletion_is_retried(world: Ready) -> None:
    lost = vm(world)
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    with capture_logs() as lines:
        async with world.running("machinesafety"):
            await passes(1)
            assert world.driver.deleted == []
            await passes(1)

    assert world.driver.deleted == [lost]
    assert [line["event"] for line in lines].count("VM check of a class failed, retrying") == 1


@pytest.mark.row("machine-orphans-09")
async def test_failed_orphan_deletion_delays_no_other(world: Ready) -> None:
    lost = sorted(vm(world, f"x{number}", uid=f"x{number}") for number in range(3))
    world.driver.faults["delete_machine"] = [errors.FailedPrecondition("it is protected")]
    async with world.running("machinesafety"):
        await passes(1)
        assert world.driver.deleted == lost[1:]
        await passes(1)

    assert world.driver.deleted == [*lost[1:], lost[0]]


# --- namespaces ---------------------------------------------------------------------------


def elsewhere(world: World, name: str, provider_id: str) -> None:
    """A Machine of another namespace."""
    if world.server.get("/api/v1/namespaces/theirs") is None:
        world.server.put("/api/v1/namespaces", {"metadata": {"name": "theirs"}})
    body = {"metadata": {"name": name}, "spec": {"providerID": provider_id}}
    world.server.put(f"{BASE.replace('/default', '/theirs')}/machines", body)


def refused(method: str, path: str) -> Exception | None:
    """Forbid the list of Machines in all namespaces."""
    if (method, path) == ("GET", ALL_MACHINES):
        return Forbidden(status=403, reason="Forbidden", message="no")
    return None


@pytest.mark.row("machine-orphans-13")
async def test_vm_of_another_namespace_is_not_deleted(world: Ready) -> None:
    vm(world, marks={"namespace": "theirs"})
    await looked_over(world, 4)

    assert (world.driver.deleted, world.events) == ([], [])


@pytest.mark.row("machine-orphans-14")
@pytest.mark.parametrize("owned", [True, False])
async def test_vm_without_namespace_is_deleted_unless_owned_elsewhere(
    world: Ready, owned: bool
) -> None:
    lost = vm(world, marks={"namespace": ""})
    if owned:
        elsewhere(world, "other", lost)
    await looked_over(world, 4)

    assert world.driver.deleted == ([] if owned else [lost])
    assert world.reasons() == ([] if owned else ["DeletedOrphanVM"])


@pytest.mark.row("machine-orphans-14")
async def test_vms_owned_in_another_namespace_do_not_change_the_limit(world: Ready) -> None:
    """VMs in use elsewhere neither block the deletion of orphans nor raise its limit."""
    for number in range(100):
        elsewhere(world, f"m{number}", vm(world, f"m{number}", marks={"namespace": ""}))
    for number in range(7):
        vm(world, f"x{number}", uid=f"x{number}")
    async with world.running("machinesafety"):
        await passes(1)
        first = len(world.driver.deleted)
        await passes(1)

    assert (first, len(world.driver.deleted), len(world.driver.vms)) == (5, 7, 100)


@pytest.mark.row("machine-orphans-15")
async def test_vm_without_namespace_is_kept_if_listing_all_is_forbidden(world: World) -> None:
    world.server.refuse = refused
    world.ready_class()
    unknown = [vm(world, f"a{number}", marks={"namespace": ""}) for number in range(7)]
    ours = vm(world)
    await looked_over(world, 4)

    assert world.driver.deleted == [ours]
    assert sorted(world.driver.vms) == sorted(unknown)
    reasons = sorted(reason for reason, _ in world.events)
    assert reasons == ["DeletedOrphanVM", "OrphanVMsUnconfirmed"]


@pytest.mark.row("machine-orphans-13", "machine-orphans-14")
async def test_namespaces_with_one_cluster_marker_keep_each_others_vms(world: Ready) -> None:
    """Each namespace has its own daemon, and VMs with and without the namespace mark."""
    for name, namespace in (("m0", "default"), ("m1", "")):
        world.lived(name)
        vm(world, name, uid=world.identity(name).uid, marks={"namespace": namespace})
    for name, namespace in (("o0", "theirs"), ("o1", "")):
        elsewhere(world, name, vm(world, name, uid=name, marks={"namespace": namespace}))
    await looked_over(world, 4)

    assert (world.driver.deleted, world.events) == ([], [])


# --- drivers that know names only -------------------------------------------------------------


async def made(world: World, name: str = "m0") -> str:
    """A Machine whose VM was created by the controllers; its path."""
    async with world.running("machine", "machineclass"):
        path = world.machine(name)
        await advance(5)
    assert world.get(name)["spec"]["providerID"]
    return path


def strip(world: World, path: str) -> None:
    """A user removes the finalizers of a Machine, and deletes it."""
    world.server.unmake(path)


def reasons(world: World) -> list[str]:
    """Return the reasons of the events about VMs."""
    ours = ("DeletedOrphanVM", "OrphanVMsHeld", "UnmarkedVM", "OrphanVMsUnconfirmed")
    return [reason for reason, _ in world.events if reason in ours]


@pytest.mark.row("machine-orphans-16")
@pytest.mark.parametrize("rights", ["all", "one"])
async def test_vm_of_a_machine_without_finalizers_is_deleted_as_orphan(rights: str) -> None:
    world, cloud = by_name()
    world.server.refuse = refused if rights == "one" else world.server.refuse
    path, other = await made(world), await made(world, "m1")
    uid = world.identity().uid
    async with world.running("machinesafety"):
        strip(world, path)
        for _ in range(3):
            # Passes in quick succession: the first listings may lag behind a deletion.
            await advance(8)
            world.server.patch(f"{other}/status", {"status": {"lastOperation": TROUBLE}})
            world.server.patch(f"{other}/status", {"status": {"lastOperation": None}})
        assert cloud.calls.count("delete") == 0
        await advance(120)

    assert (list(cloud.vms.values()), cloud.calls.count("delete")) == (["m1"], 1)
    assert reasons(world) == ["DeletedOrphanVM"]
    assert cloud.uids[-1] == uid


async def delete_beside_a_hidden_twin(world: World, cloud: NamedVMs, path: str) -> None:
    """Delete a Machine whose VM has a twin that the cloud lists only after the deletion."""
    cloud.vms["fake:///twin"] = "m0"
    cloud.hidden.add("fake:///twin")
    world.server.drop(path)
    await advance(30)
    assert (world.get(), list(cloud.vms)) == ({}, ["fake:///twin"])
    cloud.hidden.clear()
    await advance(200)


@pytest.mark.row("machine-orphans-16")
async def test_hidden_duplicate_vm_is_deleted_once_it_is_listed() -> None:
    world, cloud = by_name()
    path = await made(world)
    async with world.running():
        await delete_beside_a_hidden_twin(world, cloud, path)

    assert cloud.vms == {}
    assert reasons(world) == ["DeletedOrphanVM"]


@pytest.mark.row("machine-orphans-16")
async def test_vm_without_stored_provider_id_is_deleted_as_orphan() -> None:
    """The object recorded the creation, and its finalizers were removed by hand."""
    world, cloud = by_name()
    cloud.fails = errors.DeadlineExceeded("x")
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
    assert (len(cloud.vms), started(world)) == (1, True)
    async with world.running("machinesafety"):
        strip(world, path)
        await advance(150)

    assert cloud.vms == {}


@pytest.mark.row("machine-orphans-16")
async def test_hidden_duplicate_is_deleted_after_a_failed_creation() -> None:
    world, cloud = by_name()
    cloud.fails = errors.DeadlineExceeded("x")
    async with world.running():
        path = world.machine()
        await advance(1)
        assert (len(cloud.vms), started(world)) == (1, True)
        await delete_beside_a_hidden_twin(world, cloud, path)

    assert cloud.vms == {}


@pytest.mark.row("machine-orphans-16")
async def test_orphan_limit_applies_to_name_only_drivers() -> None:
    world, cloud = by_name()
    paths = [await made(world, f"m{number}") for number in range(7)]
    async with world.running("machinesafety"):
        for path in paths:
            strip(world, path)
        await advance(200)
        assert len(cloud.vms) == 2
        await passes(2)

    assert cloud.vms == {}
    assert "OrphanVMsHeld" in reasons(world)


@pytest.mark.row("machine-orphans-17")
@pytest.mark.parametrize("origin", ["typed", "typed before the start", "restored"])
async def test_vm_assigned_by_a_user_is_not_deleted_as_orphan(origin: str) -> None:
    """A user set the provider ID, or copied the annotations of another Machine."""
    world, cloud = by_name()
    await made(world, "other")
    notes = world.get("other")["metadata"]["annotations"] if origin == "restored" else {}
    cloud.vms["fake:///m0"] = "m0"
    early = world.lived() if origin == "typed before the start" else ""
    async with world.running("machinesafety"):
        path = early or world.lived(metadata={"annotations": notes})
        await advance(1)
        strip(world, path)
        await passes(3)

    assert "fake:///m0" in cloud.vms
    assert reasons(world) == ["UnmarkedVM"]


@pytest.mark.row("machine-orphans-17")
async def test_ambiguous_vms_of_one_name_are_neither_adopted_nor_deleted() -> None:
    """No VM is adopted, so that the deletion of the machine deletes none."""
    world, cloud = by_name(adopt_unmarked=True)
    cloud.vms |= {"fake:///1": "m0", "fake:///2": "m0"}
    async with world.running():
        path = world.machine()
        await advance(5)
        world.server.drop(path)
        await advance(200)

    assert world.get() == {}
    assert sorted(cloud.vms) == ["fake:///1", "fake:///2"]


@pytest.mark.row("machine-orphans-17")
async def test_new_vm_with_the_name_of_a_deleted_machine_is_kept() -> None:
    world, cloud = by_name()
    path = await made(world)
    async with world.running():
        world.server.drop(path)
        await advance(120)
        assert (world.get(), cloud.vms) == ({}, {})
        cloud.vms["fake:///new"] = "m0"
        await passes(4)

    assert list(cloud.vms) == ["fake:///new"]
    assert reasons(world) == ["UnmarkedVM"]


@pytest.mark.row("machine-orphans-17")
async def test_vm_taken_over_by_a_recreated_machine_is_kept() -> None:
    world, cloud = by_name()
    path = await made(world)
    async with world.running("machinesafety"):
        strip(world, path)
        await advance(1)
        again = world.machine(providerID=next(iter(cloud.vms)))
        await advance(150)
        strip(world, again)
        await passes(4)

    assert len(cloud.vms) == 1


@pytest.mark.row("machine-orphans-17")
@pytest.mark.parametrize("tie", ["name", "provider ID"])
async def test_vm_claimed_in_another_namespace_is_kept(tie: str) -> None:
    world, cloud = by_name()
    path = await made(world)
    if tie == "name":
        elsewhere(world, "m0", "")
    else:
        elsewhere(world, "moved", next(iter(cloud.vms)))
    async with world.running("machinesafety"):
        strip(world, path)
        await passes(4)

    assert len(cloud.vms) == 1


@pytest.mark.row("machine-orphans-17")
async def test_vm_is_kept_after_the_class_credentials_changed() -> None:
    """New credentials may show another project, where a foreign VM has the name."""
    world, cloud = by_name()
    path = await made(world)
    world.server.patch(f"{SECRETS_PATH}/small", {"stringData": {"token": "new"}})
    async with world.running("machinesafety"):
        strip(world, path)
        await passes(4)

    assert len(cloud.vms) == 1


@pytest.mark.row("machine-orphans-17")
async def test_vm_of_a_machine_missing_from_a_restored_list_is_kept() -> None:
    """A new list lacks the Machine, as after a restore of etcd from an older backup."""
    world, cloud = by_name()
    path = await made(world)
    world.server.patch(path, {"metadata": {"finalizers": None}})
    async with world.running("machinesafety"):
        world.caches.machines.remove("default/m0")
        world.server.drop(path)
        await passes(4)

    assert len(cloud.vms) == 1
    assert reasons(world) == ["UnmarkedVM"]


@pytest.mark.row("machine-orphans-17")
async def test_restart_keeps_vms_of_machines_deleted_before() -> None:
    world, cloud = by_name()
    path = await made(world)
    async with world.running("machinesafety"):
        strip(world, path)
        await advance(20)
    await looked_over(world, 4)

    assert len(cloud.vms) == 1
    assert reasons(world) == ["UnmarkedVM"]


@pytest.mark.row("machine-orphans-07")
async def test_unmarked_vm_is_kept_although_its_driver_marks_vms(world: Ready) -> None:
    """The VM has the name of a deleted Machine, but never belonged to one."""
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(5)
    (record,) = world.driver.vms.values()
    world.driver.vms.clear()
    world.driver.add(replace(record.identity, **UNMARKED), record.info)
    async with world.running("machinesafety"):
        strip(world, path)
        await passes(4)

    assert world.driver.deleted == []
    assert reasons(world) == ["UnmarkedVM"]


# --- nodes --------------------------------------------------------------------------------


@pytest.mark.row("machine-nodes-01")
@pytest.mark.parametrize(
    ("minutes", "note", "wanted"), [(21, None, "1"), (19, None, None), (21, "1", "1")]
)
async def test_node_without_machine_is_annotated_after_20_minutes(
    world: Ready, minutes: int, note: str | None, wanted: str | None
) -> None:
    notes = {names.ANNOTATION_NOT_MANAGED: note} if note else {}
    world.node("alone", metadata={"annotations": notes, "finalizers": [names.FINALIZER_NODE]})
    await advance(minutes * 60)
    await world.run(1, "machinesafety")

    metadata = world.node_object("alone")["metadata"]
    assert metadata.get("annotations", {}).get(names.ANNOTATION_NOT_MANAGED) == wanted
    assert ("finalizers" in metadata) is (wanted is None)


@pytest.mark.row("machine-nodes-02", "machine-nodes-03")
@pytest.mark.parametrize("machines", [1, 2])
async def test_not_managed_annotation_is_removed_if_one_machine_has_the_node(
    world: Ready, machines: int
) -> None:
    world.node("n", metadata={"annotations": {names.ANNOTATION_NOT_MANAGED: "1"}})
    for number in range(machines):
        world.machine(f"m{number}", metadata={"labels": {"node": "n"}})
    await advance(1800)
    await world.run(1, "machinesafety")

    left = world.node_object("n")["metadata"].get("annotations", {})
    assert (names.ANNOTATION_NOT_MANAGED in left) is (machines > 1)
