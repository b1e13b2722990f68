"""Creation with a driver that finds VMs only by name (`from_gardener`): no VM is leaked,
none is created twice, and none of another owner is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ccm.cloud import GardenerRequest, errors, from_gardener
from ccm.gardener import names
from ccm.kube.errors import ServerError
from ccm.machines.deletion import DENIAL_S
from ccm.testing.clock import advance
from tests.unit.controllers.machines import SECRETS_PATH, TOKENS, Ready, World

pytestmark = pytest.mark.virtual_time

LOST = pytest.mark.parametrize(
    "error",
    [
        errors.DeadlineExceeded("x"),
        errors.Unavailable("x"),
        errors.Internal("x"),
        errors.InvalidArgument("x"),
        errors.ResourceExhausted("x"),
        ValueError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
"""Errors of a creation. None of them says that no VM was created."""

CREATE = ("machine", "machineclass")


class NamedVMs:
    """A cloud and its driver, as an author writes one for Gardener. Each VM has a disk.

    Attributes:
        vms: names by provider ID.
        disks: names of the machines that they were made for.
        calls: methods in the order of their calls.
        fails: raised by the next creation, after the VM and its disk were created.
        hidden: provider IDs that listings and lookups by name do not show yet.
    """

    def __init__(self) -> None:
        self.vms: dict[str, str] = {}
        self.disks: set[str] = set()
        self.calls: list[str] = []
        self.states: list[str] = []
        self.uids: list[str] = []
        self.fails: Exception | None = None
        self.hidden: set[str] = set()

    async def create_machine(self, req: GardenerRequest) -> Mapping[str, str]:
        """Create a VM, even if one of the name is there."""
        name = self._name("create", req)
        provider_id = f"fake:///{name}-{len(self.calls)}"
        self.disks.add(name)
        self.vms[provider_id] = name
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        return {"provider_id": provider_id, "node_name": name, "last_known_state": "made"}

    async def get_machine_status(self, req: GardenerRequest) -> Mapping[str, str]:
        """By provider ID or by name."""
        for provider_id in self._found(req, self._name("status", req)):
            return {"provider_id": provider_id, "node_name": self.vms[provider_id]}
        raise errors.NotFound("no such VM")

    async def delete_machine(self, req: GardenerRequest) -> None:
        """By provider ID or by name, with the disk; silent when nothing is there."""
        name = self._name("delete", req)
        for provider_id in self._found(req, name):
            del self.vms[provider_id]
        self.disks.discard(name)

    async def list_machines(self, _: GardenerRequest) -> Mapping[str, str]:
        """All of the cloud."""
        return {key: name for key, name in self.vms.items() if key not in self.hidden}

    def _name(self, call: str, req: GardenerRequest) -> str:
        assert req.machine is not None
        self.calls.append(call)
        self.states.append(req.machine.status.last_known_state)
        self.uids.append(req.machine.metadata.uid)
        return req.machine.metadata.name

    def _found(self, req: GardenerRequest, name: str) -> list[str]:
        assert req.machine is not None
        wanted = req.machine.spec.provider_id
        seen = [key for key in self.vms if key not in self.hidden]
        return [key for key in seen if (key == wanted if wanted else self.vms[key] == name)]


def by_name(**rules: Any) -> tuple[World, NamedVMs]:
    """Return a world with a class, and the cloud of its name-only driver."""
    world, cloud = Ready(**rules), NamedVMs()
    world.driver = from_gardener(cloud)  # type: ignore[assignment]
    return world, cloud


def record(world: World, path: str) -> None:
    """Record the start of the creation, as a former controller would."""
    annotations = {names.ANNOTATION_CREATION: world.identity().uid}
    world.server.patch(path, {"metadata": {"annotations": annotations}})


def started(world: World, name: str = "m0") -> bool:
    """Whether the Machine records a started creation."""
    return names.ANNOTATION_CREATION in world.get(name)["metadata"].get("annotations", {})


async def test_creation_costs_one_status_call_and_one_token() -> None:
    world, cloud = by_name()
    secrets = []

    def count(method: str, path: str) -> None:
        if method == "POST" and path.startswith(TOKENS):
            secrets.append(path)

    world.server.refuse = count
    async with world.running(*CREATE):
        world.machine()
        await advance(1)

    assert cloud.calls[:2] == ["status", "create"]
    assert len(secrets) == 1
    assert (world.phase(), started(world)) == ("Pending", False)
    assert world.status()["lastKnownState"] == "made"


@LOST
@pytest.mark.parametrize("goes", [False, True], ids=["taken", "deleted"])
async def test_vm_created_despite_an_error_is_adopted_or_deleted(
    goes: bool, error: Exception
) -> None:
    world, cloud = by_name()
    cloud.fails = error
    async with world.running(*CREATE):
        path = world.machine()
        await advance(1)
        assert (world.phase(), started(world)) == ("CrashLoopBackOff", True)
        assert (len(cloud.vms), len(cloud.disks)) == (1, 1)
        if goes:
            world.server.drop(path)
        await advance(30 if goes else 700)

    if goes:
        assert (world.get(), cloud.vms, cloud.disks) == ({}, {}, set())
        return
    assert list(cloud.vms) == [world.get()["spec"]["providerID"]]
    assert (world.phase(), cloud.calls.count("create"), started(world)) == ("Pending", 1, False)


async def test_leftover_disk_of_a_failed_creation_is_deleted() -> None:
    world, cloud = by_name()
    cloud.fails = errors.ResourceExhausted("no host")
    async with world.running(*CREATE):
        path = world.machine()
        await advance(1)
        cloud.vms.clear()
        world.server.drop(path)
        await advance(30)

    assert (world.get(), cloud.disks) == ({}, set())


@pytest.mark.parametrize("place", ["annotation", "state"])
async def test_vm_ordered_before_a_crash_is_adopted_by_the_successor(place: str) -> None:
    """The creation record is in the annotation, or in the status as in an earlier release."""
    world, cloud = by_name()
    path = world.machine()
    if place == "annotation":
        record(world, path)
    else:
        state = f"{names.STATE_CREATION}{world.identity().uid} nic-7"
        world.server.patch(f"{path}/status", {"status": {"lastKnownState": state}})
    cloud.vms["fake:///1"] = "m0"
    await world.run(1, *CREATE)

    assert (world.phase(), world.get()["spec"]["providerID"]) == ("Pending", "fake:///1")
    assert "create" not in cloud.calls
    assert not started(world)
    if place == "state":
        assert set(cloud.states) == {"nic-7"}
        assert world.status()["lastKnownState"] == "nic-7"


async def test_creation_record_of_an_earlier_release_survives_status_writes() -> None:
    world, cloud = by_name()
    path = world.machine(metadata={"finalizers": [names.FINALIZER]})
    state = f"{names.STATE_CREATION}{world.identity().uid} nic-7"
    world.server.patch(f"{path}/status", {"status": {"lastKnownState": state}})
    cloud.vms["fake:///1"] = "m0"
    world.server.drop(SECRETS_PATH + "/small")
    async with world.running("machine"):
        world.server.drop(path)
        await advance(5)
        assert world.phase() == "Terminating"
        assert world.status()["lastKnownState"] == state
        world.secret()
        await advance(30)

    assert (world.get(), cloud.vms) == ({}, {})


@pytest.mark.parametrize("uid", ["", "of-another-machine"])
async def test_foreign_vm_of_the_same_name_is_left_alone(uid: str) -> None:
    """Also if the creation record is that of another object, for example after a restore."""
    world, cloud = by_name()
    cloud.vms["fake:///theirs"] = "m0"
    async with world.running(*CREATE):
        path = world.machine(metadata={"annotations": {names.ANNOTATION_CREATION: uid}})
        await advance(400)
        assert world.operation()["errorCode"] == "AlreadyExists"
        world.server.drop(path)
        await advance(30)

    assert world.get() == {}
    assert cloud.vms == {"fake:///theirs": "m0"}
    assert set(cloud.calls) == {"status"}


async def test_adopted_vm_sets_provider_id_and_node_label() -> None:
    world, cloud = by_name(adopt_unmarked=True)
    cloud.vms["fake:///theirs"] = "m0"
    async with world.running(*CREATE):
        world.machine()
        await advance(1)

    made = world.get()
    assert (world.phase(), made["spec"]["providerID"]) == ("Pending", "fake:///theirs")
    assert made["metadata"]["labels"]["node"] == "m0"
    assert "create" not in cloud.calls


async def test_provider_id_of_a_vm_with_another_name_is_rejected() -> None:
    world, cloud = by_name()
    cloud.vms["fake:///theirs"] = "other-name"
    async with world.running(*CREATE):
        world.machine(providerID="fake:///theirs")
        await advance(1)

    assert "has another name than this machine" in world.operation()["description"]
    assert "create" not in cloud.calls


async def test_contradicting_listing_and_status_adopt_no_vm() -> None:
    """Two VMs have the name; the listing shows one, the status call the other."""
    world, cloud = by_name()
    path = world.machine()
    record(world, path)
    cloud.vms |= {"fake:///1": "m0", "fake:///2": "m0"}

    async def other(_: GardenerRequest) -> Mapping[str, str]:
        return {"fake:///2": "m0"}

    list_machines, cloud.list_machines = cloud.list_machines, other  # type: ignore[method-assign]
    async with world.running(*CREATE):
        await advance(1)
        assert world.operation()["errorCode"] == "Unavailable"
        cloud.list_machines = list_machines  # type: ignore[method-assign]
        await advance(60)

    assert (world.phase(), world.get()["spec"]["providerID"]) == ("Pending", "fake:///1")


async def test_vm_that_becomes_visible_late_is_deleted_with_its_machine() -> None:
    world, cloud = by_name()
    cloud.fails = errors.DeadlineExceeded("x")
    async with world.running(*CREATE):
        path = world.machine()
        await advance(0.5)
        cloud.hidden = set(cloud.vms)
        world.server.drop(path)
        await advance(DENIAL_S - 2)
        assert cloud.calls.count("delete") == 1
        cloud.hidden.clear()
        await advance(DENIAL_S)

    assert (world.get(), cloud.vms) == ({}, {})


async def test_forced_deletion_waits_for_the_class_of_an_ordered_vm() -> None:
    """Without the class no cloud call is possible; the machine waits for the class."""
    world, cloud = by_name()
    labels = {"force-deletion": "true"}
    path = world.machine(metadata={"finalizers": [names.FINALIZER], "labels": labels})
    record(world, path)
    cloud.vms["fake:///1"] = "m0"
    world.server.drop(SECRETS_PATH + "/small")
    async with world.running("machine"):
        world.server.drop(path)
        await advance(60)
        assert world.get()
        world.secret()
        await advance(30)

    assert (world.get(), cloud.vms) == ({}, {})


@pytest.mark.row("machine-create-11")
@pytest.mark.parametrize("status", [500, 403, 409])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
async def test_rejected_write_during_creation_causes_no_second_vm(status: int, nth: int) -> None:
    """For each write: one VM is created, and its provider ID is stored."""
    world, cloud = by_name()
    writes = 0

    def refuse(method: str, path: str) -> Exception | None:
        nonlocal writes
        if method == "GET" or "machineclasses" in path:
            return None
        writes += 1
        if writes == nth:
            return ServerError(status=status, reason="x", message="no")
        return None

    world.server.refuse = refuse
    async with world.running(*CREATE):
        world.machine()
        await advance(60)

    assert writes > nth
    assert (world.phase(), cloud.calls.count("create")) == ("Pending", 1)
    assert list(cloud.vms) == [world.get()["spec"]["providerID"]]
