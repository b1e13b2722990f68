"""Interface of a store for bytes; `engine` turns such stores into a provider.

The functions of this module are shared by the stores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from ccm.base import proxies
from ccm.base.backoff import ExponentialBackoff
from ccm.persistence import envelope
from ccm.persistence.envelope import StoreEntry
from ccm.persistence.errors import BackendDead, BackendUnavailable, Fenced, VersionConflict
from ccm.persistence.interface import ABSENT, GVK, Expected, Version
from ccm.persistence.objects import StoragePlace, to_canonical_json

T = TypeVar("T")

RETRY_S = 25.0
"""Seconds for which `retry` repeats an operation: less than the engine's deadline, so that the
error still names the cause."""

BACKOFF = ExponentialBackoff(base_s=0.05, cap_s=2.0, jitter=1.0)
"""Delays of `retry`: random, so that several processes do not overload a store that recovers."""

PORT = r"0*(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
"""Pattern of the ports from 1 to 65535."""


class Claim(NamedTuple):
    """Identity of the process that opens a store.

    Attributes:
        cluster_uid: cluster that owns the data.
        epoch: epoch of the leader that opens the store.
        lease: see `WriterIdentity`.
    """

    cluster_uid: str
    epoch: int
    lease: str = ""


class StoredRecord(NamedTuple):
    """Stored envelope, and its version in the store."""

    body: bytes
    version: Version


Page: TypeAlias = Sequence[tuple[StoragePlace, StoredRecord]]


class Store(Protocol):
    """Storage of one instance.

    A store may raise only these errors:

    - `BackendUnavailable`: a temporary failure.
    - `BackendDead`: from `open`, a permanent failure; from any method, damage of the whole store.
    - `Fenced`, from `open`, `write` and `remove`: a newer leader has written.
    - `VersionConflict`, from `write` and `remove`: a concurrent change.
    - `CorruptObject`: a damaged record.

    Every call has a deadline and may be cancelled at any point. A cancelled write must have
    happened completely or not at all.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities, as determined by `open`."""

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of an envelope; the provider refuses larger ones before any request."""

    async def open(self, claim: Claim) -> None:
        """Prepare the store, check that it is writable, and clean up after a crash.

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


@runtime_checkable
class ClusterListing(Protocol):
    """Optional interface of a store: the clusters that have data in the storage."""

    async def clusters(self, wanted: str) -> Collection[str]:
        """Return the UIDs of the clusters; only `wanted` if it is one of them, or all.

        Creates nothing; may be called before `open`. Raises BackendUnavailable.
        """


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


def own_marker(stored: bytes | None, claim: Claim, where: str) -> bytes:
    """Return the content of the marker of a storage that belongs to the claim's cluster and Lease.

    Args:
        stored: the present marker; None = the storage is new.
        claim: the cluster, and the leader's epoch and Lease.
        where: the storage, for error messages.

    Raises:
        BackendDead: the storage belongs to another cluster or daemon, or its marker is damaged.
    """
    marker = envelope.build_marker(claim.cluster_uid) if stored is None else stored
    envelope.check_marker(marker, claim.cluster_uid, where, claim.lease)
    owner = {"lease": claim.lease} if claim.lease else {}
    return to_canonical_json({**json.loads(marker), **owner})


def claim_marker(stored: bytes | None, claim: Claim, where: str) -> bytes:
    """Return the content of the marker with which a leader claims a storage; see `own_marker`.

    Raises:
        BackendDead: see `own_marker`.
        Fenced: a newer leader has claimed the storage.
    """
    marker = own_marker(stored, claim, where)
    check_epoch(envelope.epoch_of(marker), claim.epoch)
    return to_canonical_json({**json.loads(marker), "epoch": claim.epoch})


def check_settings(backend: str, config: object, formats: Mapping[str, tuple[str, str]]) -> None:
    """Check the format of settings.

    Args:
        backend: name of the backend.
        config: its settings.
        formats: setting -> pattern of valid values, and advice for the error message.

    Raises:
        BackendDead: a setting is invalid.
    """
    for setting, (pattern, advice) in formats.items():
        value = getattr(config, setting)
        if not re.fullmatch(pattern, str(value)):
            shown = proxies.without_credentials(value) if isinstance(value, str) else value
            raise BackendDead(f"{backend}.{setting} is {shown!r}; use {advice}")


async def retry(
    name: str,
    operation: Callable[[], Awaitable[T]],
    failures: tuple[type[Exception], ...],
    explain: Callable[[Any, int], tuple[str, bool]],
) -> T:
    """Run an operation, and repeat it after temporary failures.

    Args:
        name: name of the storage, for the error message.
        operation: the operation; it may run several times, so it must be repeatable.
        failures: exceptions of a failed operation.
        explain: called with an exception and the number of earlier ones; returns the cause, without
            data that was sent, and whether a retry may succeed.

    Raises:
        BackendUnavailable: the operation failed; its outcome is unknown.
    """
    why = f"no response within {RETRY_S:.0f} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(RETRY_S):
            for count in itertools.count():
                try:
                    return await operation()
                except failures as error:
                    why, is_temporary = explain(error, count)
                    if not is_temporary:
                        break
                await asyncio.sleep(BACKOFF.delay(count, random.Random()))
    raise BackendUnavailable(f"{name}: {why}")
