"""The journal of cloud resources in the daemon: active while this replica leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ccm.app.persistence import PersistenceStores
from ccm.cloud.calls.client import CloudClient
from ccm.model import names
from ccm.model.names import NORMAL, WARNING
from ccm.persistence.journal import Journal
from ccm.runtime.journal import CallJournal


class DaemonJournal:
    """Journal of the daemon, and the recorder of its cloud calls.

    Args:
        mode: value of `--journal`, not `off`.
        stores: storage of the daemon; loads the journal once it is open.
        record_event: called with (type, reason, message), to record an event about the daemon.
    """

    def __init__(
        self,
        mode: str,
        stores: PersistenceStores,
        record_event: Callable[[str, str, str], None],
    ) -> None:
        self.mode = mode
        self._record_event = record_event
        self.journal = Journal(writer=stores.writer, on_change=self._on_change)
        self.calls = CallJournal(self.journal, blocks=stores.when_unavailable == "block")
        stores.on_open = self.journal.open

    @asynccontextmanager
    async def running(self, client: CloudClient) -> AsyncIterator[None]:
        """Record the calls of a client during the block; then write the remaining entries."""
        client.set_recorder(self.calls)
        try:
            yield
        finally:
            client.set_recorder(None)
            await self.journal.close()

    def _on_change(self, is_up: bool, reason: str) -> None:
        if is_up:
            event = NORMAL, names.REASON_JOURNAL_UP, "the journal is written durably again"
        else:
            text = f"the journal of cloud resources cannot be written: {reason}"
            event = WARNING, names.REASON_JOURNAL_DOWN, text
        self._record_event(*event)
