"""Access of the orphan search to VMs and their parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from msgspec import structs

from ccm.cloud.errors import Unavailable, Uninitialized
from ccm.cloud.journal import PartRequest
from ccm.cloud.machines import MachineInfo
from ccm.gardener.codec import CODEC
from ccm.machines.journal import MachineAccess
from ccm.model import ObjectReference
from ccm.persistence.journal import EntryState, JournalEntry, entry_name
from ccm.runtime.journal import server_entry
from ccm.runtime.orphans import Finding
from ccm.testing.clock import settle
from tests.unit.controllers.machines import BASE, CLUSTER, FakeDriver, World

pytestmark = pytest.mark.virtual_time

FOUND = MachineInfo(provider_id="fake:///m0", node_name="m0")


class FakeParts(FakeDriver):
    """The same with parts, by kind and name."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[tuple[str, str], str] = {}
        self.asked: list[PartRequest] = []

    async def find_part(self, req: PartRequest) -> str | None:
        self.asked.append(req)
        return self.parts.get((req.kind, req.name))

    async def delete_part(self, req: PartRequest) -> None:
        del self.parts[req.kind, req.name]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.driver = FakeParts()
    made.ready_class()
    async with made.running("machineclass"):
        # The first use starts the informers.
        assert not made.caches.machines.store
        assert not made.caches.class_named("x", "default").origin
        await settle()
        yield made


def access_of(world: World) -> MachineAccess:
    assert world.shared is not None
    return MachineAccess(world.shared)


def owner(name: str = "m0") -> ObjectReference:
    kind = CODEC.machines
    return ObjectReference(
        api_version=kind.api_version,
        kind=kind.kind,
        namespace="default",
        name=name,
        uid=f"uid-{name}",
    )


def entry(name: str = "m0", pool: str = "small") -> JournalEntry:
    made = server_entry("fake", owner(name), name, pool)
    return structs.replace(made, state=EntryState.CREATED, resource_id=f"fake:///{name}")


def part(kind: str = "sshkey") -> JournalEntry:
    named = {"name": entry_name(kind, "uid-m0", "key"), "intended_name": "key", "purpose": "key"}
    return structs.replace(entry(), resource=kind, resource_id="7", **named)


def with_vm(world: World) -> None:
    access = access_of(world)
    world.driver.add(access._identity(entry()), FOUND)


@pytest.mark.row("journal-04")
async def test_vm_is_found_and_deleted_with_the_class_of_the_entry(world: World) -> None:
    access = access_of(world)
    assert (await access.look(entry())).finding is Finding.ABSENT

    with_vm(world)
    look = await access.look(entry())
    assert (look.finding, look.resource_id) == (Finding.MARKED, "fake:///m0")

    await access.delete(entry())
    assert world.driver.deleted == ["fake:///m0"]
    request = world.driver.given["delete_machine"]
    assert (request.identity.cluster, request.identity.uid) == (CLUSTER, "uid-m0")
    assert request.credentials["userData"]


async def test_uninitialized_vm_exists(world: World) -> None:
    world.driver.faults["get_machine_status"] = Uninitialized("a volume is missing").carrying(FOUND)

    look = await access_of(world).look(entry())

    assert (look.finding, look.resource_id) == (Finding.MARKED, "fake:///m0")


@pytest.mark.row("journal-04")
async def test_vm_that_is_found_by_its_name_is_not_proven_ours(world: World) -> None:
    world.driver.finds_by_name = True
    with_vm(world)

    assert (await access_of(world).look(entry())).finding is Finding.UNMARKED


async def test_vm_of_a_deleted_class_cannot_be_checked(world: World) -> None:
    look = await access_of(world).look(entry(pool="gone"))

    assert look.finding is Finding.UNKNOWN
    assert "gone" in look.text


async def test_error_of_the_cloud_is_no_absence(world: World) -> None:
    world.driver.faults["get_machine_status"] = Unavailable("the cloud is down")

    with pytest.raises(Unavailable):
        await access_of(world).look(entry())


@pytest.mark.row("journal-09")
async def test_part_is_found_and_deleted_by_kind_and_name(world: World) -> None:
    driver, access = world.driver, access_of(world)
    assert isinstance(driver, FakeParts)
    assert (await access.look(part())).finding is Finding.ABSENT

    driver.parts["sshkey", "key"] = "7"
    look = await access.look(part())
    assert (look.finding, look.resource_id) == (Finding.MARKED, "7")
    assert driver.asked[-1].identity.uid == "uid-m0"

    await access.delete(part())
    assert driver.parts == {}


async def test_part_of_a_driver_without_lookup_cannot_be_checked(world: World) -> None:
    world.driver = FakeDriver()
    access = access_of(world)
    caller = access.shared.driver.caller
    caller.swap(replace(caller.cloud, machines=FakeDriver()))  # type: ignore[attr-defined]

    look = await access.look(part())

    assert (look.finding, look.text) == (
        Finding.UNKNOWN,
        "the machine driver cannot look up a sshkey",
    )


@pytest.mark.row("journal-12")
async def test_vms_of_machines_and_marked_vms_without_one_get_entries(world: World) -> None:
    access = access_of(world)
    world.lived("kept")
    await settle()
    with_vm(world)
    for strange in ({"cluster": "theirs"}, {"namespace": "other"}, {"uid": ""}):
        identity = replace(access._identity(entry("far")), **strange)
        world.driver.add(identity, replace(FOUND, provider_id=f"fake:///{strange}"))

    entries = {one.intended_name: one for one in await access.listed()}

    assert sorted(entries) == ["kept", "m0"]
    kept = world.server.get(f"{BASE}/machines/kept")
    assert kept is not None
    assert entries["kept"].owner.uid == kept["metadata"]["uid"]
    assert entries["m0"] == entry()
