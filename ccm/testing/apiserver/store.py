"""The versioned object store: one revision counter, sorted collections, bounded history.

Every write takes the next revision of one store-wide counter, which becomes the object's
`resourceVersion`. An object is encoded once, when it is written; reads, lists and watches send
those bytes. The decoded form is not kept: each change starts from a fresh copy, so that callers
cannot damage a stored object.

A collection keeps its latest changes for watches. A slow watcher delays neither writes nor other
watchers; it falls behind until its revision has expired.

The store belongs to one event loop; no call blocks except for a short file write.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from ccm.base.parsing import parse_digits
from ccm.testing.apiserver import errors, kinds

HISTORY = 4096
"""Default number of changes kept per kind."""


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
"""Event type of a change, as in watch events."""


class HistoryExpiredError(errors.StatusError):
    """A revision that is older than the kept history (status 410)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """A stored object at one revision: its bytes, labels and selectable fields."""

    key: str
    revision: int
    raw: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    def body(self) -> dict[str, Any]:
        """Return a decoded copy that the caller may change."""
        decoded: dict[str, Any] = msgspec.json.decode(self.raw)
        return decoded


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """A change in a collection's history. A deletion has the last state as `entry`."""

    type: ChangeType
    entry: StoredObject
    previous: StoredObject | None


class Collection:
    """All objects of one kind, sorted by key, with their latest changes.

    Changes at revisions up to `floor` are not available.
    """

    def __init__(self, *, history: int) -> None:
        self._entries: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._limit = history
        self._changes: list[StoredChange] = []
        self.floor = 0
        self._next = asyncio.Event()

    def get(self, key: str) -> StoredObject | None:
        return self._entries.get(key)

    def __iter__(self) -> Iterator[StoredObject]:
        return (self._entries[key] for key in self._keys)

    @property
    def oldest(self) -> int:
        """The lowest revision after which all changes are available."""
        excess = len(self._changes) - self._limit
        return self._changes[excess - 1].entry.revision if excess > 0 else self.floor

    def changes(self, after: int) -> list[StoredChange]:
        """Return every change after a revision.

        Raises:
            HistoryExpiredError: some of the changes have been dropped.
        """
        oldest = self.oldest
        if after < oldest:
            text = f"too old resource version: {after} ({oldest})"
            raise HistoryExpiredError(410, "Expired", text)
        start = bisect.bisect_right(self._changes, after, key=lambda change: change.entry.revision)
        return self._changes[start:]

    async def wait_for_change(self) -> None:
        """Wait for the next change, or for `wake`; the caller then calls `changes`."""
        await self._next.wait()

    def wake(self) -> None:
        """Wake all tasks in `wait_for_change`."""
        # A set event wakes all its waiters; later waiters need a new one.
        self._next.set()
        self._next = asyncio.Event()

    def has_prefix(self, prefix: str) -> bool:
        place = bisect.bisect_left(self._keys, prefix)
        return place < len(self._keys) and self._keys[place].startswith(prefix)

    def record(self, change_type: ChangeType, entry: StoredObject) -> StoredChange:
        """Apply a change and add it to the history."""
        change = StoredChange(type=change_type, entry=entry, previous=self._entries.get(entry.key))
        if change_type == "DELETED":
            del self._entries[entry.key]
            del self._keys[bisect.bisect_left(self._keys, entry.key)]
        else:
            self.place(entry)
        self._changes.append(change)
        # Trim at twice the limit, so that the cost of a trim spreads over many changes.
        if len(self._changes) >= 2 * self._limit:
            self.floor = self.oldest
            del self._changes[: -self._limit]
        self.wake()
        return change

    def place(self, entry: StoredObject) -> None:
        """Store an object without adding a change to the history."""
        if entry.key not in self._entries:
            bisect.insort(self._keys, entry.key)
        self._entries[entry.key] = entry


class _Record(msgspec.Struct, frozen=True):
    """A line of the file on disk: one change of an object."""

    revision: int
    resource: str
    key: str
    change: ChangeType
    raw: msgspec.Raw = msgspec.field(name="object")


class ObjectStore:
    """The collections and the registry of all kinds, and their common revision counter.

    A CustomResourceDefinition's kind is served while the store has the definition, except for a
    definition stored by `restore`.

    Args:
        history: number of changes kept per kind for watches.
        path: file with one line per change, which a new store replays; None = no file.
            Lines are flushed at once and survive a killed process, but there is no fsync.
        observe: called with kind and change after each change.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line other than the last is damaged.
    """

    def __init__(
        self,
        *,
        history: int = HISTORY,
        path: pathlib.Path | None = None,
        observe: Callable[[kinds.ServedKind, StoredChange], None] = lambda _kind, _change: None,
    ) -> None:
        self.revision = 1
        self.is_closed = False
        self.kinds = kinds.Registry()
        self._history = history
        self._observe = observe
        self._collections: dict[str, Collection] = {}
        self._path = path
        if path is not None:
            path.touch(mode=0o600)
            self._replay(path)

    def collection(self, kind: kinds.ServedKind) -> Collection:
        """Return the collection of a kind."""
        name = kind.qualified
        if name not in self._collections:
            self._collections[name] = Collection(history=self._history)
        return self._collections[name]

    def get(self, kind: kinds.ServedKind, key: str) -> StoredObject | None:
        return self.collection(kind).get(key)

    def put(self, kind: kinds.ServedKind, key: str, body: dict[str, Any]) -> StoredObject:
        """Create or replace an object at the next revision.

        Sets `metadata.resourceVersion` in `body`; the caller must not change `body` afterwards.
        """
        exists = self.get(kind, key) is not None
        return self._record(kind, "MODIFIED" if exists else "ADDED", key, body)

    def remove(self, kind: kinds.ServedKind, key: str, body: dict[str, Any]) -> StoredObject:
        """Remove an object; watchers get `body` as its last state."""
        return self._record(kind, "DELETED", key, body)

    def restore(self, kind: kinds.ServedKind, key: str, body: dict[str, Any]) -> None:
        """Store an object of another store with its resource version; add no change to the history.

        Watches cannot start before the highest restored version.
        """
        revision = parse_digits(body["metadata"].get("resourceVersion", "")) or 0
        self.revision = max(self.revision, revision)
        head = {"kind": kind.kind, "apiVersion": kind.api_version}
        self.collection(kind).place(entry_of(kind, key, head | body, revision))
        for collection in self._collections.values():
            collection.floor = self.revision

    def close(self) -> None:
        """Wake all tasks that wait for changes."""
        self.is_closed = True
        for collection in self._collections.values():
            collection.wake()

    def _record(
        self, kind: kinds.ServedKind, change: ChangeType, key: str, body: dict[str, Any]
    ) -> StoredObject:
        revision = self.revision + 1
        body["metadata"]["resourceVersion"] = str(revision)
        entry = entry_of(kind, key, body, revision)
        if self._path is not None:
            record = _Record(revision, kind.qualified, key, change, msgspec.Raw(entry.raw))
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
        self._carry_out(kind, change, entry, body)
        return entry

    def _carry_out(
        self, kind: kinds.ServedKind, change: ChangeType, entry: StoredObject, body: dict[str, Any]
    ) -> None:
        self.revision = entry.revision
        self._observe(kind, self.collection(kind).record(change, entry))
        if kind is kinds.DEFINITIONS:
            group, plural = body["spec"]["group"], body["spec"]["names"]["plural"]
            self.kinds.replace(
                group, plural, None if change == "DELETED" else kinds.kind_of_definition(body)
            )

    def _replay(self, path: pathlib.Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # the process was killed while it wrote
            os.truncate(path, whole)
        decoder = msgspec.json.Decoder(_Record)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                record = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number} is damaged: {error}") from error
            kind, body = self.kinds.named(record.resource), msgspec.json.decode(record.raw)
            entry = entry_of(kind, record.key, body, record.revision)
            self._carry_out(kind, record.change, entry, body)


def entry_of(
    kind: kinds.ServedKind, key: str, body: Mapping[str, Any], revision: int = 0
) -> StoredObject:
    """Return the entry of an object; nothing is stored."""
    return StoredObject(
        key=key,
        revision=revision,
        raw=msgspec.json.encode(body),
        labels=body["metadata"].get("labels") or {},
        fields=kind.fields_of(body),
    )
