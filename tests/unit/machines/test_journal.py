"""Access of the orphan search to VMs and their parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import pytest_asyncio
from msgspec import structs

from ccm.app.journalaccess import ClusterAccess
from ccm.cloud.errors import (
    FailedPrecondition,
    NotFound,
    Unavailable,
    Unimplemented,
    Uninitialized,
)
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.journal import PartRequest
from ccm.cloud.machines import Credentials, Identity, MachineInfo, MachineRequest
from ccm.gardener.codec import CODEC
from ccm.machines import journal
from ccm.machines.driver import SharedComponents
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
    reference = owner(name)
    identity = Identity(
        cluster=CLUSTER, namespace="default", pool=pool, name=name, uid=reference.uid
    )
    request = MachineRequest(
        identity=identity,
        provider_spec={},
        credentials=Credentials({}),
        provider_id=f"fake:///{name}",
        owner=reference,
    )
    return structs.replace(server_entry("fake", "", request), state=EntryState.CREATED)


def part(kind: str = "sshkey") -> JournalEntry:
    named = {"name": entry_name(kind, "uid-m0", "key"), "intended_name": "key", "purpose": "key"}
    return structs.replace(entry(), resource=kind, resource_id="7", **named)


def with_vm(world: World) -> None:
    access = access_of(world)
    world.driver.add(access._server(entry()).identity, FOUND)


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


@pytest.mark.row("journal-03")
async def test_deletion_that_finds_nothing_has_succeeded(world: World) -> None:
    world.driver.faults["delete_machine"] = NotFound("no server")

    await access_of(world).delete(entry())

    assert world.driver.calls["delete_machine"] == 1


def ownership(world: World) -> Callable[[JournalEntry], bool]:
    context: Any = SimpleNamespace(
        cloud_client=None,
        clusters={},
        informers=SimpleNamespace(all=()),
        shared={SharedComponents: world.shared},
    )
    return ClusterAccess(context).is_owned


@pytest.mark.row("journal-04")
@pytest.mark.parametrize("provider_id", ["fake:///m0", "fake://project/m0/"])
async def test_vm_that_another_machine_imported_has_an_owner(
    world: World, provider_id: str
) -> None:
    """Its marks still name the former machine, which is gone."""
    is_owned = ownership(world)
    assert not is_owned(entry())

    path = world.machine("heir", providerID=provider_id)
    await settle()

    assert is_owned(entry())
    others = [part(), entry("other"), structs.replace(entry(), resource_id="")]
    assert not any(map(is_owned, others))

    world.server.patch(path, {"spec": {"providerID": "fake:///other"}})
    await settle()
    assert [is_owned(entry()), is_owned(entry("other"))] == [False, True]

    world.server.unmake(path)
    await settle()
    assert not is_owned(entry("other"))


async def test_entry_is_compared_only_with_machines_that_may_have_its_vm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore, no machine has the UID in the journal."""
    names = [f"m{number}" for number in range(30)]
    for name in names:
        world.machine(name, providerID=f"fake:///{name}")
    await settle()
    compare = Mock(wraps=is_same_instance)
    monkeypatch.setattr(journal, "is_same_instance", compare)
    is_owned = ownership(world)

    assert all(is_owned(entry(name)) for name in names)

    assert compare.call_count == len(names)


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
    access, lost = access_of(world), entry(pool="gone")
    for ask in (access.look, access.delete):
        with pytest.raises(FailedPrecondition, match="MachineClass default/gone does not exist"):
            await ask(lost)
    with pytest.raises(FailedPrecondition, match="gone"):
        access.account_of(lost)


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

    with pytest.raises(Unimplemented, match="does not offer parts of machines"):
        await access.look(part())


@pytest.mark.row("journal-12")
async def test_vms_of_machines_and_marked_vms_without_one_get_entries(world: World) -> None:
    access = access_of(world)
    world.lived("kept")
    await settle()
    with_vm(world)
    for strange in ({"cluster": "theirs"}, {"namespace": "other"}, {"uid": ""}):
        identity = replace(access._server(entry("far")).identity, **strange)
        world.driver.add(identity, replace(FOUND, provider_id=f"fake:///{strange}"))

    entries = {one.intended_name: one for one in await access.listed()}

    assert sorted(entries) == ["kept", "m0"]
    kept = world.server.get(f"{BASE}/machines/kept")
    assert kept is not None
    assert entries["kept"].owner.uid == kept["metadata"]["uid"]
    assert entries["m0"] == entry()


class Located(FakeDriver):
    """VMs in the account that the credentials name."""

    def machine_account(self, req: MachineRequest) -> str:
        return req.credentials["userData"].decode()


@pytest.mark.row("journal-12")
async def test_entries_have_the_account_of_the_class_and_the_cluster_of_the_machine(
    world: World,
) -> None:
    world.driver = Located()
    assert world.shared is not None
    caller = world.shared.driver.caller
    caller.swap(replace(caller.cloud, machines=world.driver))  # type: ignore[attr-defined]
    access = MachineAccess(world.shared, "control")
    world.lived("kept")
    await settle()
    with_vm(world)

    entries = {one.intended_name: one for one in await access.listed()}

    account = access.account_of(entry())
    assert account != ""
    assert {one.account for one in entries.values()} == {account}
    assert {one.owner.cluster for one in entries.values()} == {"control"}
    assert sorted(entries) == ["kept", "m0"]
