"""Interface of a store for bytes; `engine` turns such stores into a provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import Fenced, VersionConflict
from ccm.persistence.interface import ABSENT, GVK, Expected, Version
from ccm.persistence.objects import StoragePlace


class Claim(NamedTuple):
    """Identity of the process that opens a store.

    Attributes:
        cluster_uid: cluster that owns the data.
        epoch: epoch of the leader that opens the store.
    """

    cluster_uid: str
    epoch: int


class StoredRecord(NamedTuple):
    """Stored envelope, and its version in the store."""

    body: bytes
    version: Version


Page: TypeAlias = Sequence[tuple[StoragePlace, StoredRecord]]


class Store(Protocol):
    """One instance of storage.

    A store may raise only these errors: `BackendUnavailable` for a temporary failure; `BackendDead`
    from `open` for a permanent failure, and from all methods once damage of the whole store is
    known; `Fenced` from `open`, `write` and `remove`; `VersionConflict` from `write` and `remove`;
    `CorruptObject` for a damaged record. Every call has a deadline and may be cancelled at any
    point. A cancelled write must have happened completely or not at all.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities, as determined by `open`."""

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of an envelope; the provider refuses larger ones before any request."""

    async def open(self, claim: Claim) -> None:
        """Prepare the store, check that it is writable, and remove remains of a crash.

        Called again after a temporary failure.
        """

    async def probe(self) -> None:
        """Check that the store works. Raises BackendUnavailable."""

    async def read(self, place: StoragePlace) -> StoredRecord | None:
        """Return the envelope stored at a place; None if it is absent."""

    async def write(self, place: StoragePlace, entry: StoreEntry, expect: Expected) -> Version:
        """Write an entry durably if the precondition `expect` holds; return its new version."""

    async def remove(self, place: StoragePlace, epoch: int) -> None:
        """Durably delete the envelope stored at a place; succeed if it is absent."""

    def scan(self, kind: GVK) -> AsyncGenerator[Page, None]:
        """Iterate over all envelopes of a kind, page by page."""

    async def close(self) -> None:
        """Release all resources. Called once, without calls in flight, even if `open` failed."""


def check_expected(expect: Expected, current: Version | None) -> None:
    """Check the precondition of a write against the stored version.

    Raises:
        VersionConflict: the precondition does not hold.
    """
    if expect is None:
        return
    if (expect is ABSENT and current is not None) or (expect is not ABSENT and current != expect):
        raise VersionConflict("the object was changed concurrently")


def check_epoch(stored: int, epoch: int) -> None:
    """Check the epoch of a write against the epoch in the store.

    Raises:
        Fenced: a newer leader has written.
    """
    if stored > epoch:
        raise Fenced(
            f"a leader of epoch {stored} has written, but this process has epoch {epoch}: "
            "another replica leads, or the Lease was recreated; see the recovery guide",
            stored,
        )
