"""Parts of machines in the journal: SSH keys, placement groups and volumes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import json, structs

from ccm import cloud
from ccm.cloud import JournalParts, LoadBalancer, MachineDriver, errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.kubermatic import KubermaticDriver
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.interface import Expected, Version
from ccm.persistence.journal import EntryState, Journal, JournalEntry
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import StoragePlace
from ccm.runtime.journal import CallJournal
from ccm.testing.probes import retry_after_hints
from providers.hcloud import kubermatic, machines
from tests.hcloud.balancing import service
from tests.hcloud.harness import HcloudHarness
from tests.hcloud.test_kubermatic import config
from tests.hcloud.test_machines import machines_of
from tests.support.journals import WatchedStore, opened


def client_of(harness: HcloudHarness, journal: Journal | None = None) -> CloudClient:
    client = CloudClient(harness.project)
    client.set_recorder(CallJournal(journal) if journal else None)
    return client


def request_of(harness: HcloudHarness, identity: cloud.Identity, **spec: Any) -> Any:
    """A request about a machine in a placement group, with a volume."""
    owner = cloud.ObjectReference(kind="Machine", name=identity.name, uid=identity.uid)
    parts = {"placementGroupPrefix": "workers", "volumes": [10], "location": "fsn1"}
    found = machines_of(harness, **parts, **spec)
    return found.request(identity, owner=owner)


def part_of(request: cloud.MachineRequest, entry: JournalEntry) -> cloud.PartRequest:
    return cloud.PartRequest(
        kind=entry.resource,
        name=entry.intended_name,
        resource_id=entry.resource_id,
        identity=request.identity,
        provider_spec=request.provider_spec,
        credentials=request.credentials,
    )


def by_resource(journal: Journal) -> Mapping[str, JournalEntry]:
    return {entry.resource: entry for entry in journal.entries.values()}


@pytest.mark.row("journal-01")
async def test_parts_of_a_server_are_recorded(harness: HcloudHarness) -> None:
    identity, world = machines_of(harness).identity(), harness.service.cloud
    request = request_of(harness, identity)
    async with opened(MemoryStore()) as journal:
        client = client_of(harness, journal)
        info = await client.call(MachineDriver.create_machine, request)

        found = by_resource(journal)
        assert {entry.state for entry in found.values()} == {EntryState.CREATED}
        assert found["server"].resource_id == info.provider_id
        assert [key["name"] for key in world.ssh_keys.values()] == [found["sshkey"].intended_name]
        ((number, group),) = world.placement_groups.items()
        assert found["placementgroup"].intended_name == group["name"]
        assert found["placementgroup"].resource_id == str(number)
        ((number, volume),) = world.volumes.items()
        assert found["volume"].intended_name == volume["name"]
        assert found["volume"].resource_id == str(number)
        assert not any(entry.ephemeral for entry in found.values())

        key, parts = part_of(request, found["sshkey"]), JournalParts
        assert await client.call(parts.find_part, key) == str(*world.ssh_keys)
        # The group has a server, and is deleted with its last one.
        assert await client.call(parts.find_part, part_of(request, found["placementgroup"])) is None

        # The volume is deleted after its server.
        with pytest.raises(errors.RetryAfter, match=f"volume {number} is attached to server"):
            await client.call(parts.delete_part, part_of(request, found["volume"]))
        assert await client.call(parts.find_part, part_of(request, found["volume"])) == str(number)

        await done(client, MachineDriver.delete_machine, request)
        assert {entry.state for entry in journal.entries.values()} == {EntryState.REMOVED}
        assert world.volumes == {}
        assert await client.call(parts.find_part, key) is None


async def done(client: CloudClient, method: Any, *arguments: Any) -> None:
    """Call again as long as the cloud needs time."""
    await retry_after_hints(lambda: client.call(method, *arguments))


class History(WatchedStore):
    """Store that remembers, by resource, the states of each version of an entry."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.states: dict[str, list[str]] = defaultdict(list)
        self._versions: dict[str, Any] = {}

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        for name, one in json.decode(entry.body)["object"]["entries"].items():
            if self._versions.get(name) != one:
                self._versions[name] = one
                self.states[one["resource"]].append(one["state"])
        return await super().write(place, entry, expect)


@pytest.mark.row("journal-11")
async def test_each_resource_is_written_twice_at_its_creation_and_twice_at_its_deletion(
    harness: HcloudHarness,
) -> None:
    request, web = request_of(harness, machines_of(harness).identity()), service()
    kinds = ("server", "sshkey", "placementgroup", "volume", "loadbalancer")
    store = History()
    for _ in range(2):  # the second process finds everything, and writes nothing
        async with opened(store) as journal:
            client = client_of(harness, journal)
            await done(client, MachineDriver.create_machine, request)
            await done(client, LoadBalancer.ensure_load_balancer, "c1", web, ())
        assert store.states == {kind: ["Intent", "Created"] for kind in kinds}

    async with opened(store) as journal:
        client = client_of(harness, journal)
        await done(client, MachineDriver.delete_machine, request)
        await done(client, LoadBalancer.ensure_load_balancer_deleted, "c1", web)
    whole = ["Intent", "Created", "Deleting", "Removed"]
    assert store.states == dict.fromkeys(kinds, whole)


@pytest.mark.row("journal-01")
async def test_parts_left_without_a_server_are_found_and_deleted(harness: HcloudHarness) -> None:
    identity, world = machines_of(harness).identity(), harness.service.cloud
    request = request_of(harness, identity)
    await harness.fail(structs.replace(harness.faults["quota"], operation="POST /servers"))
    async with opened(MemoryStore()) as journal:
        client = client_of(harness, journal)
        with pytest.raises(errors.CloudError):
            await client.call(MachineDriver.create_machine, request)
        found = by_resource(journal)
        assert found["server"].state is EntryState.INTENT
        await harness.heal()

        for kind, table in (
            ("sshkey", world.ssh_keys),
            ("placementgroup", world.placement_groups),
            ("volume", world.volumes),
        ):
            part = part_of(request, found[kind])
            assert await client.call(JournalParts.find_part, part) == str(*table)
            for marks in ({"cluster": "other"}, {"pool": "other", "uid": "other"}):
                foreign = replace(part, identity=replace(identity, **marks))
                assert await client.call(JournalParts.find_part, foreign) is None
                await client.call(JournalParts.delete_part, foreign)
            assert len(table) == 1

            await client.call(JournalParts.delete_part, part)
            assert table == {}
            await client.call(JournalParts.delete_part, part)


async def test_a_part_of_an_unknown_kind_is_no_absent_part(harness: HcloudHarness) -> None:
    request = request_of(harness, machines_of(harness).identity())
    part = cloud.PartRequest(
        kind="network",
        name="x",
        identity=request.identity,
        provider_spec={},
        credentials=request.credentials,
    )
    for method in (JournalParts.find_part, JournalParts.delete_part):
        with pytest.raises(errors.Unimplemented, match="parts of kind 'network' are unknown"):
            await client_of(harness).call(method, part)


async def test_parts_of_kubermatics_machines_are_found(harness: HcloudHarness) -> None:
    spec = config(token={"value": harness.service.token}, placementGroupPrefix="workers")
    spec["cloudProviderSpec"]["token"] = harness.service.token
    identity = machines_of(harness).identity()
    async with machines.open_clients(harness.url) as clients, opened(MemoryStore()) as journal:
        driver: Any = KubermaticDriver(kubermatic.KubermaticMachines(clients), {})
        client = CloudClient(cloud.Cloud(name="hcloud", kubermatic=driver)).for_kubermatic()
        client.set_recorder(CallJournal(journal))
        assert client.offers(JournalParts)
        request = cloud.MachineRequest(
            identity=identity,
            provider_spec=spec,
            credentials=cloud.Credentials({}),
            owner=cloud.ObjectReference(kind="Machine", name=identity.name, uid=identity.uid),
        )
        await client.call(MachineDriver.create_machine, request)

        keys, part = (
            harness.service.cloud.ssh_keys,
            part_of(request, by_resource(journal)["sshkey"]),
        )
        assert await client.call(JournalParts.find_part, part) == str(*keys)
        await client.call(JournalParts.delete_part, part)
        assert keys == {}
