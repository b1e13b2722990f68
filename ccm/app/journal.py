"""The journal of cloud resources in the daemon: active while this replica leads.

The leader also searches for orphans, and carries out the changes of the journal that users request.
Both end when this replica loses the Lease.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial

from ccm.app.clients import remote_kubeconfigs
from ccm.app.journalaccess import ClusterAccess, cluster_of, explained_kind
from ccm.app.journalchanges import JournalChanges
from ccm.app.options import Options
from ccm.app.persistence import PersistenceStores
from ccm.base import log
from ccm.base.backoff import jittered
from ccm.base.tasks import NamedTaskGroup
from ccm.cloud.calls.client import CloudClient
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from ccm.model.names import NORMAL, WARNING
from ccm.persistence.interface import VersionedPersistence
from ccm.persistence.journal import EntryState, Journal
from ccm.runtime.controller import wait_for_sync
from ccm.runtime.journal import CallJournal
from ccm.runtime.journal_report import JournalChange, JournalResponse, by_age
from ccm.runtime.manifest import ControllerContext
from ccm.runtime.orphans import OrphanSearch, SearchSettings, describe, report_text

DELETE = "delete"
"""Value of `--journal` with which orphans are deleted."""

START_S = 10.0
"""Seconds from the opening of the journal to the first search. By then the caches exist; without
them, the search would read every owner from the API server."""

JITTER = 0.2
"""Maximum random share added to the period, so that daemons do not search at the same time."""

NOT_LOADED = (
    "the journal is not loaded yet; the log and the health check persistence of the daemon say why"
)


class DaemonJournal:
    """Journal of the daemon, and the recorder of its cloud calls.

    Args:
        options: the flags; `--journal` is not `off`.
        stores: storage of the daemon; loads the journal once it is open.
        record_event: called with (type, reason, message), to record an event about the daemon.
    """

    def __init__(
        self,
        options: Options,
        stores: PersistenceStores,
        record_event: Callable[[str, str, str], None],
    ) -> None:
        self._record_event = record_event
        self._stores = stores
        self._settings = SearchSettings(
            deletes=options.journal == DELETE,
            grace_s=options.journal_grace_period.total_seconds(),
            ephemeral_grace_s=options.journal_ephemeral_grace_period.total_seconds(),
        )
        self._classes = options.load_balancer_classes
        self._period_s = options.journal_check_period.total_seconds()
        self._loaded = asyncio.Event()
        self._search: OrphanSearch | None = None
        # Starts a change as the leader; None = the journal is not loaded, or this is no leader.
        self._start: Callable[[JournalChange], asyncio.Task[JournalResponse]] | None = None
        self.journal = Journal(writer=stores.writer, on_change=self._on_change)
        self.calls = CallJournal(
            self.journal,
            blocks=stores.when_unavailable == "block",
            cluster_of=partial(cluster_of, roles=remote_kubeconfigs(options)),
        )
        stores.on_open, stores.on_fault = self._load, self.journal.mark_down

    @asynccontextmanager
    async def running(self, client: CloudClient) -> AsyncIterator[None]:
        """Record the calls of a client during the block; then write the remaining entries."""
        client.set_recorder(self.calls)
        try:
            yield
        finally:
            client.set_recorder(None)
            await self.journal.close()

    async def run(self, context: ControllerContext) -> None:
        """Search for orphans and carry out changes until cancelled, once the journal is loaded."""
        access, journal = ClusterAccess(context), self.journal
        search = self._search = OrphanSearch(
            journal=journal,
            settings=self._settings,
            read_owner=access.owner_uid,
            is_owned=access.is_owned,
            access=access.access_to,
            record_event=self._record_event,
            is_active=self.calls.is_active,
        )
        changes = JournalChanges(
            journal=journal,
            api=context.client(SERVICE.client),
            client=context.cloud_client,
            classes=self._classes,
            listed=access.listed,
            changing=search.changing,
        )
        await self._loaded.wait()
        async with NamedTaskGroup() as group:
            # Of the leader: the context of an HTTP request lacks the guard of the Lease.
            leader = copy_context()
            self._start = lambda change: leader.run(
                group.start, changes.execute(change), name="journal-change"
            )
            try:
                await asyncio.sleep(START_S)
                # With empty caches of a control cluster, the search would read every Machine.
                others = (cluster.informers for cluster in context.clusters.values())
                for informers in (context.informers, *others):
                    await wait_for_sync(informers, component="journal")
                await self._search_periodically(search)
            finally:
                self._start = None

    def read(self) -> JournalResponse:
        """Return all entries, and the orphans of the last search."""
        journal, orphans = self.journal, self._search.orphans if self._search is not None else {}
        removed = journal.by_state(EntryState.REMOVED)
        current = journal.entries.keys() - {entry.name for entry in removed}
        return JournalResponse(
            fault="" if journal.is_open else NOT_LOADED,
            down=journal.fault,
            entries=by_age(journal.entries.values()),
            orphans={
                name: report_text(orphan)
                for name, orphan in sorted(orphans.items())
                if name in current
            },
        )

    async def change(self, change: JournalChange) -> JournalResponse:
        """Carry out a change as the leader, even if the caller is cancelled meanwhile."""
        if self._start is None:
            return JournalResponse(fault=NOT_LOADED)
        task = self._start(change)
        await asyncio.wait({task})
        return JournalResponse(fault=NOT_LOADED) if task.cancelled() else task.result()

    def resources_of(self, kind: str, key: str) -> list[str]:
        """Return texts about the recorded resources of an object, the oldest first.

        Args:
            kind: kind of the object, as in `/explain`.
            key: `NAMESPACE/NAME` of the object; former objects with this key are included.
        """
        return [
            f"{describe(entry)}: {entry.state.value}, created {entry.created_at}, last changed "
            f"{entry.updated_at} by {entry.writer}"
            + (f"; last error: {entry.last_error}" if entry.last_error else "")
            for entry in by_age(
                entry
                for entry in self.journal.entries.values()
                if f"{entry.owner.namespace}/{entry.owner.name}" == key
                and explained_kind(entry.owner) == kind
            )
        ]

    async def _load(self, store: VersionedPersistence, instance: str) -> None:
        await self.journal.open(store, instance)
        self._loaded.set()

    async def _search_periodically(self, search: OrphanSearch) -> None:
        rng = random.Random()
        while True:
            try:
                await search.run()
            except Exception as error:  # noqa: BLE001 - the journal must not end the controllers
                log.logger("journal").error("orphan search failed unexpectedly", exc_info=error)
            await asyncio.sleep(jittered(self._period_s, JITTER, rng))

    def _on_change(self, is_up: bool, reason: str) -> None:
        if not is_up and self._stores.objects.fault:
            return  # the storage has an event of its own
        if is_up:
            event = NORMAL, names.REASON_JOURNAL_UP, "the journal is written durably again"
        else:
            text = f"the journal of cloud resources cannot be written: {reason}"
            event = WARNING, names.REASON_JOURNAL_DOWN, text
        self._record_event(*event)
