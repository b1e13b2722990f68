"""Access of the orphan search to VMs and their parts, with the credentials of the MachineClass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from ccm.cloud.errors import NotFound, Unimplemented, Uninitialized
from ccm.cloud.journal import JournalParts, PartRequest
from ccm.cloud.machines import Identity, MachineDriver, MachineRequest, partial_info
from ccm.machines.classes import ResolvedClass
from ccm.machines.driver import SharedComponents
from ccm.model import ObjectReference
from ccm.persistence.journal import EntryState, JournalEntry
from ccm.runtime.journal import SERVER, server_entry
from ccm.runtime.orphans import CloudLook, Finding


@dataclass(frozen=True, slots=True)
class MachineAccess:
    """Access to the VMs of one API group, and to their parts.

    After the deletion of a MachineClass or of its Secret, nothing can be looked up. That also holds
    for an API group whose machines contain their provider spec themselves.

    Attributes:
        shared: components of the machine controllers of the API group.
    """

    shared: SharedComponents

    async def look(self, entry: JournalEntry) -> CloudLook:
        """See `ResourceAccess.look`."""
        machine_class = self._class(entry)
        if machine_class.access_faults:
            return CloudLook(finding=Finding.UNKNOWN, text="; ".join(machine_class.access_faults))
        driver = self.shared.driver
        if entry.resource != SERVER:
            request = self._part(entry, machine_class)
            try:
                part = await driver.caller.call(JournalParts.find_part, request)
            except Unimplemented:
                text = f"the machine driver cannot look up a {entry.resource}"
                return CloudLook(finding=Finding.UNKNOWN, text=text)
            # A driver finds parts by our markers, or by the exact name that only we gave.
            finding = Finding.ABSENT if part is None else Finding.MARKED
            return CloudLook(finding=finding, resource_id=part or "")
        try:
            info = await driver.call(
                MachineDriver.get_machine_status, self._server(entry, machine_class)
            )
        except Uninitialized as error:
            info = partial_info(error)
        except NotFound:
            return CloudLook(finding=Finding.ABSENT)
        # A name proves nothing: another cluster may use it.
        finding = Finding.UNMARKED if driver.finds_by_name else Finding.MARKED
        return CloudLook(finding=finding, resource_id=info.provider_id)

    async def delete(self, entry: JournalEntry) -> None:
        """See `ResourceAccess.delete`; raises `RetryAfter` while the cloud deletes the VM."""
        machine_class, driver = self._class(entry), self.shared.driver
        if entry.resource == SERVER:
            await driver.call(MachineDriver.delete_machine, self._server(entry, machine_class))
        else:
            await driver.caller.call(JournalParts.delete_part, self._part(entry, machine_class))

    async def listed(self) -> Sequence[JournalEntry]:
        """Return an entry for each machine's VM, and for each listed VM with our marker.

        VMs without a machine are listed with the credentials of the MachineClasses, so none is
        found in an API group without them.

        Raises:
            CloudError: a listing failed.
        """
        caches, kind = self.shared.caches, self.shared.caches.codec.machines
        entries: dict[str, JournalEntry] = {}

        def add(owner: ObjectReference, vm: Identity, provider_id: str) -> None:
            entry = server_entry(self.shared.driver.caller.name, owner, vm.name, vm.pool)
            entry = structs.replace(entry, state=EntryState.CREATED, resource_id=provider_id)
            entries.setdefault(entry.name, entry)

        for machine in caches.machines.store.list():
            if machine.provider_id:
                identity = caches.settings.identity(machine)
                add(kind.reference(machine), identity, machine.provider_id)
        for machine_class in map(caches.resolve, caches.classes.store.list()):
            if machine_class.access_faults:
                continue
            listing = await self.shared.vms.listings.of(machine_class)
            for record in listing.records:
                marks, place = record.identity, (caches.settings.cluster, caches.namespace)
                if marks.uid and (marks.cluster, marks.namespace) == place:
                    owner = ObjectReference(
                        api_version=kind.api_version,
                        kind=kind.kind,
                        namespace=marks.namespace,
                        name=marks.name,
                        uid=marks.uid,
                    )
                    add(owner, marks, record.info.provider_id)
        return list(entries.values())

    def _class(self, entry: JournalEntry) -> ResolvedClass:
        return self.shared.caches.class_named(entry.machine_class, entry.owner.namespace)

    def _identity(self, entry: JournalEntry) -> Identity:
        return Identity(
            cluster=self.shared.caches.settings.cluster,
            namespace=entry.owner.namespace,
            pool=entry.machine_class,
            name=entry.intended_name if entry.resource == SERVER else entry.owner.name,
            uid=entry.owner.uid,
        )

    def _server(self, entry: JournalEntry, machine_class: ResolvedClass) -> MachineRequest:
        return MachineRequest(
            identity=self._identity(entry),
            provider_spec=machine_class.provider_spec,
            credentials=machine_class.credentials,
            provider_id=entry.resource_id,
            creation_started=True,
        )

    def _part(self, entry: JournalEntry, machine_class: ResolvedClass) -> PartRequest:
        return PartRequest(
            kind=entry.resource,
            name=entry.intended_name,
            resource_id=entry.resource_id,
            identity=self._identity(entry),
            provider_spec=machine_class.provider_spec,
            credentials=machine_class.credentials,
        )
