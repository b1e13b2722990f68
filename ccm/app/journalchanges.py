"""Changes of the journal that users request: delete an entry, give it another owner, rebuild."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ccm.base import log, redact
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError, FailedPrecondition
from ccm.cloud.interface import LoadBalancerTransfer
from ccm.controllers.service.listing import described_service
from ccm.controllers.service.plan import wants_balancer
from ccm.kube.client import Client
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.resources import SERVICES
from ccm.model import Service
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.persistence.errors import PersistenceError
from ccm.persistence.journal import EntryState, Journal, JournalEntry
from ccm.runtime.journal import LOAD_BALANCER, balancer_entry
from ccm.runtime.journal_report import ADOPT, DROP, REBUILD, JournalChange, JournalResponse
from ccm.runtime.orphans import describe, describe_owner

BATCH = 256
"""Maximum entries that a rebuild writes at once: a batch must be durable within `WAIT_S` of the
journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalChanges:
    """Executor of the changes that users request.

    Attributes:
        journal: the journal.
        api: client of the API server, to read Services.
        client: client for cloud calls.
        classes: `--load-balancer-classes`.
        listed: yields an entry for each resource that the cloud lists; None: nothing can be listed.
        changing: lock held during each change; see `OrphanSearch.changing`.
    """

    journal: Journal
    api: Client
    client: CloudClient
    classes: Collection[str] = ()
    listed: Callable[[], AsyncIterator[Sequence[JournalEntry]]] | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def execute(self, change: JournalChange) -> JournalResponse:
        """Carry out a change; the response has the error, after which it may be repeated."""
        logger = log.logger("journal")
        try:
            async with self.changing:
                done = await self._execute(change)
        except (CloudError, KubeError, PersistenceError) as error:
            return JournalResponse(fault=redact.mask_text(str(error)))
        except Exception as error:
            logger.error("journal change failed unexpectedly", exc_info=error)
            return JournalResponse(fault=f"unexpected {type(error).__name__}; see the log")
        logger.info(
            "journal changed",
            action=change.action,
            name=change.name,
            owner=change.owner,
            dry_run=change.dry_run,
        )
        return JournalResponse(done=done)

    async def _execute(self, change: JournalChange) -> list[str]:
        actions = {DROP: self._drop, ADOPT: self._adopt, REBUILD: self._rebuild}
        if change.action not in actions:
            raise FailedPrecondition(
                f"action {change.action!r} must be one of {', '.join(actions)}"
            )
        if change.action != REBUILD and change.name not in self.journal.entries:
            raise FailedPrecondition(f"there is no entry {change.name}; see kube-ccm journal list")
        return await actions[change.action](change)

    async def _drop(self, change: JournalChange) -> list[str]:
        entry = self.journal.entries[change.name]
        if not change.dry_run:
            await self.journal.put(drop=[entry.name])
        return [f"{entry.name} dropped; {describe(entry)} was not changed"]

    async def _adopt(self, change: JournalChange) -> list[str]:
        entry, client = self.journal.entries[change.name], self.client
        if entry.resource != LOAD_BALANCER:
            # The marker of a VM has the UID of its former owner: with the deletion of the new
            # owner, the VM would not be found.
            raise FailedPrecondition(
                f"{describe(entry)} is no load balancer, and keeps its owner; delete it in the "
                "cloud, or keep it and drop the entry"
            )
        service = await self._service(change.owner)
        if service is None or service.is_deleting:
            raise FailedPrecondition(f"Service {change.owner} does not exist, or is being deleted")
        former = await self._service(f"{entry.owner.namespace}/{entry.owner.name}")
        if former is not None and former.uid == entry.owner.uid:
            raise FailedPrecondition(f"{describe(entry)} still has its owner {former.key}")
        if not wants_balancer(service, self.classes):
            # The controller would ignore the Service, and never delete the load balancer.
            name = service.spec.load_balancer_class
            raise FailedPrecondition(
                f"Service {change.owner} has type {service.type} and "
                f"{f'class {name}' if name else 'no class'}; it must have type "
                f"{TYPE_LOAD_BALANCER}, and no class or one of --load-balancer-classes"
            )
        is_ours = entry.provider == client.name and entry.may_be_in(client.cloud.account)
        if not (is_ours and client.offers(LoadBalancerTransfer)):
            raise FailedPrecondition(
                f"provider {client.name}, with its present account, cannot give {describe(entry)} "
                "to another Service; if no Service uses it, delete it in the cloud; to keep it, "
                "drop the entry"
            )
        new, method = balancer_entry(client, service), LoadBalancerTransfer.transfer_load_balancer
        if not change.dry_run:
            # The intent is durable before the change, as for a creation.
            await self.journal.put(new)
            await client.call(method, client.cluster_name, described_service(entry), service)
            await self.journal.put(replace(new, state=EntryState.CREATED), drop=[entry.name])
        return [f"{describe(entry)} now belongs to {describe_owner(new)}, entry {new.name}"]

    async def _rebuild(self, change: JournalChange) -> list[str]:
        if self.listed is None:
            raise FailedPrecondition("only a daemon can list the resources; omit --offline")
        known, added = self.journal.entries, list[JournalEntry]()
        async for entries in self.listed():
            for entry in entries:
                if entry.name not in known or known[entry.name].state is EntryState.REMOVED:
                    added.append(entry)
        for first in range(0, 0 if change.dry_run else len(added), BATCH):
            await self.journal.put(*added[first : first + BATCH])
        lines = [
            f"{entry.name} added: {describe(entry)} of {describe_owner(entry)}" for entry in added
        ]
        return lines or ["every listed resource has an entry already"]

    async def _service(self, key: str) -> Service | None:
        namespace, _, name = key.rpartition("/")
        try:
            return await self.api.resource(SERVICES).get(name, namespace=namespace)
        except NotFound:
            return None
