"""Changes of the journal that users request: delete an entry, give it another owner, rebuild."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ccm.app.journalaccess import OwnerLookup
from ccm.base import redact
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import LoadBalancerTransfer
from ccm.controllers.service.listing import described_service
from ccm.kube.errors import KubeError
from ccm.model import Service
from ccm.persistence.errors import PersistenceError
from ccm.persistence.journal import EntryState, Journal, JournalEntry
from ccm.runtime.journal import LOAD_BALANCER, balancer_entry
from ccm.runtime.journal_report import ADOPT, DROP, REBUILD, JournalChange
from ccm.runtime.orphans import describe, describe_owner

BATCH = 256
"""Maximum entries that a rebuild writes at once, so that each batch is durable in time."""


class RefusedChange(Exception):
    """A change was not carried out; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalChanges:
    """Executor of changes.

    Attributes:
        journal: the journal.
        owners: reads owners.
        client: client for cloud calls.
        listed: yields an entry for each resource that the cloud lists; None: it cannot be listed.
    """

    journal: Journal
    owners: OwnerLookup
    client: CloudClient
    listed: Callable[[], AsyncIterator[Sequence[JournalEntry]]] | None = None

    async def execute(self, change: JournalChange) -> list[str]:
        """Carry out a change, and return what was done. May be repeated after an error.

        Raises:
            RefusedChange: the change is not possible, or failed.
        """
        actions = {DROP: self._drop, ADOPT: self._adopt, REBUILD: self._rebuild}
        if change.action not in actions:
            raise RefusedChange(f"action {change.action!r} must be one of {', '.join(actions)}")
        if change.action != REBUILD and change.name not in self.journal.entries:
            raise RefusedChange(f"there is no entry {change.name}; kube-ccm journal list shows all")
        try:
            return await actions[change.action](change)
        except (CloudError, KubeError, PersistenceError) as error:
            raise RefusedChange(redact.mask_text(str(error))) from error

    async def _drop(self, change: JournalChange) -> list[str]:
        entry = self.journal.entries[change.name]
        if not change.dry_run:
            await self.journal.drop([entry.name])
        return [f"{entry.name} dropped; {describe(entry)} was not changed"]

    async def _adopt(self, change: JournalChange) -> list[str]:
        entry = self.journal.entries[change.name]
        former, (namespace, _, name) = entry.owner, change.owner.rpartition("/")
        if entry.resource != LOAD_BALANCER:
            # A VM keeps the UID of its former owner: a deletion of the new one would not find it.
            raise RefusedChange(
                f"{describe(entry)} is no load balancer, and keeps its owner; delete it in the "
                "cloud, or keep it and drop the entry"
            )
        if change.kind != former.kind.lower():
            raise RefusedChange(f"the new owner must be a {former.kind}, like the former one")
        heir = await self.owners.get(replace(former, namespace=namespace, name=name))
        if not isinstance(heir, Service) or heir.is_deleting:
            raise RefusedChange(f"{former.kind} {change.owner} does not exist, or is being deleted")
        if await self.owners.uid(former) == former.uid:
            raise RefusedChange(f"{describe(entry)} still has its owner {describe_owner(entry)}")
        client, method = self.client, LoadBalancerTransfer.transfer_load_balancer
        if entry.provider != client.name or not client.offers(LoadBalancerTransfer):
            raise RefusedChange(
                f"provider {client.name} cannot give {describe(entry)} to another Service; delete "
                "it in the cloud, or keep it and drop the entry"
            )
        new = balancer_entry(client, heir)
        if not change.dry_run:
            # The intent is durable before the change, as for a creation.
            await self.journal.put(new)
            await client.call(method, client.cluster_name, described_service(entry), heir)
            created = replace(new, state=EntryState.CREATED, resource_id=new.intended_name)
            await self.journal.put(created)
            await self.journal.drop([entry.name])
        return [f"{describe(entry)} now belongs to {describe_owner(new)}, entry {new.name}"]

    async def _rebuild(self, change: JournalChange) -> list[str]:
        if self.listed is None:
            raise RefusedChange("only a running daemon can list the resources; omit --offline")
        known, added = self.journal.entries, list[JournalEntry]()
        async for entries in self.listed():
            for entry in entries:
                if entry.name not in known or known[entry.name].state is EntryState.REMOVED:
                    added.append(entry)
        for first in range(0, 0 if change.dry_run else len(added), BATCH):
            await self.journal.put(*added[first : first + BATCH])
        lines = [f"{one.name} added: {describe(one)} of {describe_owner(one)}" for one in added]
        return lines or ["every listed resource has an entry already"]
