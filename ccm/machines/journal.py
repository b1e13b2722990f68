"""Access of the orphan search to VMs and their parts, with the credentials of the MachineClass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from ccm.cloud.errors import FailedPrecondition, NotFound, Uninitialized
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.journal import JournalParts, PartRequest
from ccm.cloud.machines import Identity, MachineDriver, MachineRequest, partial_info
from ccm.machines.driver import SharedComponents
from ccm.model import ObjectReference
from ccm.model.machines import Machine
from ccm.persistence.journal import EntryState, JournalEntry
from ccm.runtime.journal import SERVER, server_entry
from ccm.runtime.orphans import CloudLook, Finding


@dataclass(frozen=True, slots=True)
class MachineAccess:
    """Access to the VMs of one API group, and to their parts.

    The methods raise `FailedPrecondition` if the provider spec or credentials no longer exist:
    after the deletion of the MachineClass, of its Secret, or of a machine that contains its
    provider spec itself.

    Attributes:
        shared: components of the machine controllers of the API group.
        cluster: `Owner.cluster` of the machines.
    """

    shared: SharedComponents
    cluster: str = ""
    _keys: defaultdict[str, set[str]] = field(init=False, default_factory=lambda: defaultdict(set))
    """Keys of the machines with a VM, by the last path segment of their provider ID."""

    def __post_init__(self) -> None:
        self.shared.caches.machines.add_handler(
            name="journal",
            on_add=lambda machine, _: self._update_index(None, machine),
            on_update=self._update_index,
            on_delete=lambda machine, _: self._update_index(machine, None),
        )

    async def look(self, entry: JournalEntry) -> CloudLook:
        """See `ResourceAccess.look`."""
        driver = self.shared.driver
        if entry.resource != SERVER:
            part = await driver.caller.call(JournalParts.find_part, self._part(entry))
            # A driver finds parts by our markers, or by the exact name that only we gave.
            finding = Finding.ABSENT if part is None else Finding.MARKED
            return CloudLook(finding=finding, resource_id=part or "")
        try:
            info = await driver.call(MachineDriver.get_machine_status, self._server(entry))
        except Uninitialized as error:
            info = partial_info(error)
        except NotFound:
            return CloudLook(finding=Finding.ABSENT)
        # A name proves no ownership: another cluster may use the same one.
        finding = Finding.UNMARKED if driver.finds_by_name else Finding.MARKED
        return CloudLook(finding=finding, resource_id=info.provider_id)

    async def delete(self, entry: JournalEntry) -> None:
        """See `ResourceAccess.delete`; raises `RetryAfter` until the cloud has deleted the VM."""
        driver = self.shared.driver
        if entry.resource == SERVER:
            with suppress(NotFound):  # nothing is left
                await driver.call(MachineDriver.delete_machine, self._server(entry))
        else:
            await driver.caller.call(JournalParts.delete_part, self._part(entry))

    def has_machine(self, entry: JournalEntry) -> bool:
        """Return whether a machine has the VM of an entry, such as one that imported it."""
        if entry.resource != SERVER:
            return False
        # After a restore of the machines, no entry has its owner: a comparison of each entry with
        # each machine would block the event loop for longer than the Lease lasts.
        keys = self._keys.get(_last_segment(entry.resource_id), ())
        machines = map(self.shared.caches.machines.store.get, keys)
        return any(
            machine is not None and is_same_instance(machine.provider_id, entry.resource_id)
            for machine in machines
        )

    def _update_index(self, old: Machine | None, new: Machine | None) -> None:
        for machine, change in ((old, set.discard), (new, set.add)):
            if machine is not None and machine.provider_id:
                segment = _last_segment(machine.provider_id)
                change(self._keys[segment], machine.key)
                if not self._keys[segment]:
                    del self._keys[segment]

    def account_of(self, entry: JournalEntry) -> str:
        """Return the account of the cloud in which an entry's resource would be looked up."""
        return self.shared.driver.caller.account_of(self._server(entry))

    async def listed(self) -> Sequence[JournalEntry]:
        """Return an entry for each machine's VM, and for each listed VM with our marker.

        VMs without a machine are listed with the credentials of the MachineClasses. In an API group
        that has no MachineClasses, such VMs are not found.

        Raises:
            CloudError: a listing failed.
        """
        caches, driver = self.shared.caches, self.shared.driver
        caller, kind = driver.caller, caches.codec.machines
        requests = [
            driver.request(machine, caches.class_of(machine))
            for machine in caches.machines.store.list()
            if machine.provider_id
        ]
        for machine_class in map(caches.resolve, caches.classes.store.list()):
            if machine_class.access_faults:
                continue
            listing = await self.shared.vms.listings.of(machine_class)
            for record in listing.records:
                identity, place = record.identity, (caches.settings.cluster, caches.namespace)
                if identity.uid and (identity.cluster, identity.namespace) == place:
                    owner = ObjectReference(
                        api_version=kind.api_version,
                        kind=kind.kind,
                        namespace=identity.namespace,
                        name=identity.name,
                        uid=identity.uid,
                    )
                    request = MachineRequest(
                        identity=identity,
                        provider_spec=machine_class.provider_spec,
                        credentials=machine_class.credentials,
                        provider_id=record.info.provider_id,
                        owner=owner,
                    )
                    requests.append(request)
        entries: dict[str, JournalEntry] = {}
        for request in requests:
            account = caller.account_of(request)
            entry = server_entry(caller.name, account, request, cluster=self.cluster)
            created = structs.replace(entry, state=EntryState.CREATED)
            entries.setdefault(entry.name, created)
        return list(entries.values())

    def _server(self, entry: JournalEntry) -> MachineRequest:
        return MachineRequest(
            **self._fields(entry), provider_id=entry.resource_id, creation_started=True
        )

    def _part(self, entry: JournalEntry) -> PartRequest:
        return PartRequest(
            **self._fields(entry),
            kind=entry.resource,
            name=entry.intended_name,
            resource_id=entry.resource_id,
        )

    def _fields(self, entry: JournalEntry) -> dict[str, Any]:
        caches, owner = self.shared.caches, entry.owner
        machine = caches.machines.store.get(f"{owner.namespace}/{owner.name}")
        if machine is not None and machine.uid == owner.uid:
            machine_class = caches.class_of(machine)
        else:
            machine_class = caches.class_named(entry.machine_class, owner.namespace)
        if machine_class.access_faults:
            raise FailedPrecondition("; ".join(machine_class.access_faults))
        identity = Identity(
            cluster=caches.settings.cluster,
            namespace=owner.namespace,
            pool=entry.machine_class,
            name=entry.intended_name if entry.resource == SERVER else owner.name,
            uid=owner.uid,
        )
        return {
            "identity": identity,
            "provider_spec": machine_class.provider_spec,
            "credentials": machine_class.credentials,
        }


def _last_segment(provider_id: str) -> str:
    """Return a text that is equal for all provider IDs of an instance (`is_same_instance`)."""
    return provider_id.partition("://")[2].strip("/").rpartition("/")[2]
