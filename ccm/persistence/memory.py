"""In-memory storage, lost when the process ends. For tests and trials."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Annotated

import msgspec

from ccm.persistence import envelope
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.interface import CAS, FENCING, GVK, Expected, Version
from ccm.persistence.objects import MAX_ENVELOPE, StoragePlace
from ccm.persistence.registry import store_backend
from ccm.persistence.store import Claim, Page, StoredRecord, check_epoch, check_expected


class MemoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the process; lost when the process ends."""

    name: Annotated[str, msgspec.Meta(description="Unique name of the instance.")] = "memory"


class MemoryStore:
    """Store in the memory of the process.

    Attributes:
        held: cluster UID and place -> envelope; kept after `close`, as on a disk.
    """

    def __init__(self) -> None:
        self.capabilities = frozenset({CAS, FENCING})
        self.max_bytes = MAX_ENVELOPE
        self.held: dict[tuple[str, StoragePlace], bytes] = {}
        self._cluster = ""
        self._epoch = 0

    async def open(self, claim: Claim) -> None:
        """See `Store.open`."""
        self._cluster = claim.cluster_uid
        self._epoch = max(self._epoch, claim.epoch)

    async def probe(self) -> None:
        """See `Store.probe`; memory always works."""

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """See `Store.read`."""
        body = self.held.get((self._cluster, place))
        return None if body is None else StoredRecord(body, envelope.read_head(body).version)

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """See `Store.write`."""
        check_epoch(self._epoch, entry.epoch)
        record = await self.read(place)
        check_expected(expect, record and record.version)
        self.held[self._cluster, place] = entry.body
        self._epoch = entry.epoch
        return entry.version

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """See `Store.remove`."""
        check_epoch(self._epoch, epoch)
        self.held.pop((self._cluster, place), None)

    async def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """See `Store.scan`."""
        for (cluster, place), body in list(self.held.items()):
            if (cluster, place.kind) == (self._cluster, kind):
                yield [(place, StoredRecord(body, envelope.read_head(body).version))]

    async def clusters(self, wanted: str) -> Collection[str]:  # noqa: ARG002
        """See `ClusterListing.clusters`."""
        return {cluster for cluster, _ in self.held}

    async def close(self) -> None:
        """See `Store.close`."""


storage = store_backend("memory", MemoryConfig, lambda _: MemoryStore(), ("name",))
