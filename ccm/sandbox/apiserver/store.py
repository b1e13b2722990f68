"""The versioned object store: one revision counter, sorted collections, bounded history.

Every write takes the next revision of one store-wide counter, which is the object's
`resourceVersion`. An object is encoded once, when it is written; reads, lists and
watches send those bytes. Its decoded form is not kept: who wants to change an object
decodes a fresh copy, so nobody can damage a stored one.

A collection keeps its last changes. Watches read them (a slow watcher holds nothing up: it
only falls behind until its place is forgotten), and lists at an earlier revision undo
them. What is older than the history has expired.

All of it belongs to one event loop; no call blocks except for a short file write.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from ccm.sandbox.apiserver import errors, extensions, kinds, selectors
from ccm.sandbox.apiserver import journal as journals

HISTORY = 4096
"""How many changes of each kind are kept unless told otherwise."""


ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
"""What happened to an object, in the words of watch events."""


class HistoryExpiredError(errors.ApiError):
    """A revision that is older than what is kept."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored object at one revision: its bytes, and what selectors look at."""

    key: str
    revision: int
    raw: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    def body(self) -> dict[str, Any]:
        """A fresh decoded copy that the caller may change."""
        found: dict[str, Any] = msgspec.json.decode(self.raw)
        return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of a collection's history; `entry` of a deletion is the last state."""

    type: ChangeType
    entry: Entry
    previous: Entry | None


class Collection:
    """All objects of one kind, sorted by key, with their latest changes.

    Changes cannot be asked for from below the `floor`.
    """

    def __init__(self, *, history: int, floor: int = 0) -> None:
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._limit = history
        self._changes: list[Change] = []
        self._floor = floor
        self._next = asyncio.Event()

    def get(self, key: str) -> Entry | None:
        """The object of that key, if there is one."""
        return self._entries.get(key)

    def __iter__(self) -> Iterator[Entry]:
        return (self._entries[key] for key in self._keys)

    @property
    def oldest(self) -> int:
        """The lowest revision that changes can still be asked from."""
        excess = len(self._changes) - self._limit
        return self._changes[excess - 1].entry.revision if excess > 0 else self._floor

    def changes(self, after: int) -> list[Change]:
        """Every change above a revision.

        Raises:
            HistoryExpiredError: some of them are no longer kept.
        """
        oldest = self.oldest
        if after < oldest:
            text = f"too old resource version: {after} ({oldest})"
            raise HistoryExpiredError(410, "Expired", text)
        start = bisect.bisect_right(self._changes, after, key=lambda change: change.entry.revision)
        return self._changes[start:]

    def at(self, revision: int) -> list[Entry]:
        """The objects, sorted by key, as they were at a revision.

        Raises:
            HistoryExpiredError: that revision is no longer kept.
        """
        later = self.changes(revision)
        if not later:
            return list(self)
        entries = dict(self._entries)
        for change in reversed(later):
            if change.previous is None:
                entries.pop(change.entry.key, None)
            else:
                entries[change.entry.key] = change.previous
        return [entries[key] for key in sorted(entries)]

    async def changed(self) -> None:
        """Wait for the next change; take the changes by `changes`."""
        await self._next.wait()

    def wake(self) -> None:
        """End the wait of everyone who waits for a change."""
        self._next.set()
        self._next = asyncio.Event()

    def has_prefix(self, prefix: str) -> bool:
        """Whether any key starts with `prefix`."""
        place = bisect.bisect_left(self._keys, prefix)
        return place < len(self._keys) and self._keys[place].startswith(prefix)

    def record(self, change_type: ChangeType, entry: Entry) -> None:
        """Carry out one change; one that is not above the floor leaves no history."""
        change = Change(type=change_type, entry=entry, previous=self._entries.get(entry.key))
        self._place(change)
        if entry.revision > self._floor:
            self._changes.append(change)
        if len(self._changes) >= 2 * self._limit:
            self._floor = self.oldest
            del self._changes[: -self._limit]
        self.wake()

    def _place(self, change: Change) -> None:
        key = change.entry.key
        if change.type == "DELETED":
            del self._entries[key]
            del self._keys[bisect.bisect_left(self._keys, key)]
            return
        if change.previous is None:
            bisect.insort(self._keys, key)
        self._entries[key] = change.entry


class Store:
    """The collections of all kinds, the table of these, and the counter they share.

    A stored CustomResourceDefinition is served from its own revision on.
    """

    def __init__(self, *, history: int = HISTORY, journal: journals.Journal | None = None) -> None:
        self.revision = 1
        self.is_closed = False
        self.kinds = kinds.Registry()
        self._history = history
        self._floor = 0
        self._collections: dict[str, Collection] = {}
        self._journal = journal
        if journal is not None:
            self._load(journal)

    def collection(self, kind: kinds.Kind) -> Collection:
        """All objects of a kind."""
        name = kind.qualified
        if name not in self._collections:
            self._collections[name] = Collection(history=self._history, floor=self._floor)
        return self._collections[name]

    def get(self, kind: kinds.Kind, key: str) -> Entry | None:
        """One object, if it exists."""
        return self.collection(kind).get(key)

    def put(self, kind: kinds.Kind, key: str, body: dict[str, Any]) -> Entry:
        """Store an object under its key, new or not, at the next revision.

        Sets `metadata.resourceVersion` in `body`; the caller must not change it later.
        """
        known = self.get(kind, key) is not None
        return self._record(kind, "MODIFIED" if known else "ADDED", key, body)

    def remove(self, kind: kinds.Kind, key: str, body: dict[str, Any]) -> Entry:
        """Take an object out; `body` is the last state that watchers shall see."""
        return self._record(kind, "DELETED", key, body)

    def close(self) -> None:
        """Wake everyone who waits for changes."""
        self.is_closed = True
        for collection in self._collections.values():
            collection.wake()

    def _record(
        self, kind: kinds.Kind, change: ChangeType, key: str, body: dict[str, Any]
    ) -> Entry:
        revision = self.revision + 1
        body["metadata"]["resourceVersion"] = str(revision)
        entry = entry_of(kind, key, body, revision)
        if self._journal is not None:
            raw = msgspec.Raw(entry.raw)
            record = journals.Record(revision, kind.qualified, key, change, raw)
            is_full = self._journal.append(record)
        self._take(kind, change, entry, body)
        if self._journal is not None and is_full:
            self._journal.compact(self.revision, self._living())
        return entry

    def _take(
        self, kind: kinds.Kind, change: ChangeType, entry: Entry, body: dict[str, Any]
    ) -> None:
        self.revision = max(self.revision, entry.revision)
        self.collection(kind).record(change, entry)
        if kind is kinds.DEFINITIONS:
            group, plural = body["spec"]["group"], body["spec"]["names"]["plural"]
            gone = change == "DELETED"
            self.kinds.replace(group, plural, None if gone else extensions.kind_of(body))

    def _living(self) -> Iterator[journals.Record]:
        # What custom objects are has to be read before them.
        first = kinds.DEFINITIONS.qualified
        for name in sorted(self._collections, key=lambda name: name != first):
            for entry in self._collections[name]:
                yield journals.Record(
                    entry.revision, name, entry.key, "ADDED", msgspec.Raw(entry.raw)
                )

    def _load(self, journal: journals.Journal) -> None:
        for record in journal.load():
            if not record.resource:
                self._floor = self.revision = record.revision
                continue
            kind = self.kinds.named(record.resource)
            body = msgspec.json.decode(record.raw)
            entry = entry_of(kind, record.key, body, record.revision)
            self._take(kind, record.change, entry, body)


def entry_of(kind: kinds.Kind, key: str, body: Mapping[str, Any], revision: int = 0) -> Entry:
    """An object as it is kept at a revision, or would be."""
    return Entry(
        key=key,
        revision=revision,
        raw=msgspec.json.encode(body),
        labels=body["metadata"].get("labels") or {},
        fields=selectors.fields_of(kind, body),
    )
