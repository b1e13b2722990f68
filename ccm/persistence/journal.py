"""Journal of cloud resources: a durable entry for each resource, with its owner in the cluster.

The entry is written before the resource is created. So the resource can be found after a crash or
the loss of its owner, even if the cloud stores no labels. The journal is only a hint: the cluster
and the cloud stay the only sources of truth, and an entry alone never justifies a deletion.

Entries are stored in pages. A page is one stored object with up to `PAGE_SIZE` entries, and is
written with its version as precondition. A committer task collects the changes of a few
milliseconds, so that hundreds of creations cost a few writes. Entries are independent of each
other: no transaction covers two pages. All entries are also in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import msgspec

from ccm.base import clock, drain, log, metrics, redact, tasks
from ccm.base.backoff import ExponentialBackoff, FailureStreak
from ccm.model.times import format_time
from ccm.persistence import errors, objects
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import ABSENT, CAS, GVK, Expected, VersionedPersistence

PAGES = GVK(objects.SELF_REDACTED, "v1", "JournalPage")
"""Kind of the stored pages."""

PAGE_SIZE = 100
"""Maximum entries of a page: small enough for every store, large enough for a batch."""

BATCH_S = 0.002
"""Seconds for which the committer collects entries before it writes; few, because cloud calls wait
for the write."""

FLUSH_S = 1.0
"""Maximum seconds from `Journal.put_later` to the write; no call waits for it, so that more entries
share a write."""

WAIT_S = 2.0
"""Maximum seconds for which `Journal.put` waits. Then the journal counts as unavailable, so that a
slow store does not delay every cloud call."""

CLOSE_S = 5.0
"""Maximum seconds for the last write in `Journal.close`; the Lease is released only afterwards."""

MAX_PENDING = 10_000
"""Maximum entries that wait for an unavailable store, to limit memory; further new entries are not
recorded."""

KEEP_REMOVED = timedelta(days=7)
MAX_REMOVED = 1000
"""Maximum age and number of removed entries, which are kept only for `kube-ccm journal` and
`kube-ccm explain`."""

MAX_ERROR = 200
"""Maximum characters of `JournalEntry.last_error`: a full page must fit into every store."""

MAX_NAME_BYTES = 400
"""Maximum bytes in JSON of each name and ID of an entry that users or providers choose. A single
long one must not make a page too large, since then none of its entries is written."""

_LIMITED = ("account", "machine_class", "intended_name", "resource_id")

CONCURRENT_PAGES = 8
"""Maximum pages written at the same time, so that a large flush does not overload the store."""

MAX_ATTEMPTS = 5
"""Maximum attempts to write a page that another writer changes at the same time."""

_RETRY = ExponentialBackoff(base_s=1.0, cap_s=30.0, jitter=0.2)
"""Delays between attempts to write while the journal is unavailable."""

UP = metrics.gauge("ccm_journal_up", "1 = the journal of cloud resources is written durably.")


class EntryState(StrEnum):
    """State of a resource."""

    INTENT = "Intent"
    """About to be created; it may exist."""
    CREATED = "Created"
    """Its existence was confirmed."""
    DELETING = "Deleting"
    """Its deletion has begun; parts of it may be left."""
    REMOVED = "Removed"
    """Its absence was confirmed."""


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Object of the cluster for which a resource was created.

    Attributes:
        cluster: role of the cluster that stores the object, such as `control`; empty = the cluster
            of the daemon.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    cluster: str = ""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Record of one resource.

    Attributes:
        name: unique name, from `entry_name`.
        resource: type of resource: `loadbalancer`, `server`, or the kind of a part.
        provider: name of the provider.
        account: account of the cloud that contains the resource; empty = unknown.
        owner: object of the cluster for which the resource was created.
        state: state of the resource.
        purpose: name of the part, unique among the parts of one kind and owner; empty for a load
            balancer or VM.
        machine_class: name of the MachineClass with the credentials for the resource; empty = the
            provider's own credentials.
        intended_name: name that the resource has or will have in the cloud.
        annotations: annotations of the Service that the provider reads.
        ephemeral: whether the resource must not outlive the operation that created it.
        resource_id: ID of the resource in the cloud; empty until it is known.
        created_at: time of the intent (RFC 3339).
        updated_at: time of the last change (RFC 3339).
        attempts: number of failed calls since the last success.
        last_error: redacted text of the last error.
        epoch: epoch of the leader that changed the entry last; never decreases.
        writer: identity of that leader.
    """

    name: str
    resource: str
    provider: str
    account: str = ""
    owner: Owner
    state: EntryState
    purpose: str = ""
    machine_class: str = ""
    intended_name: str = ""
    annotations: dict[str, str] = {}
    ephemeral: bool = False
    resource_id: str = ""
    created_at: str = ""
    updated_at: str = ""
    attempts: int = 0
    last_error: str = ""
    epoch: int = 0
    writer: str = ""

    def may_be_in(self, account: str) -> bool:
        """Return whether the resource may be in an account: its own is the same, or unknown."""
        return self.account in ("", account)


def entry_name(resource: str, uid: str, purpose: str = "", account: str = "") -> str:
    """Return the name of the entry of an owner's resource in one account of the cloud."""
    key = "/".join((uid, purpose, account) if account else (uid, purpose))
    return f"{resource}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


def redact_entry(entry: JournalEntry) -> JournalEntry:
    """Return an entry without secrets in its error and annotations, and without long names and IDs.

    The other names and IDs stay unchanged: with a masked or partial name, a resource or its owner
    would seem to be gone. A name or ID that is omitted counts as unknown.
    """
    if omitted := {name: "" for name in _LIMITED if _is_long(getattr(entry, name))}:
        entry = msgspec.structs.replace(entry, **omitted)
    is_short = len(entry.last_error) <= MAX_ERROR
    if is_short and not any(map(_is_secret_name, entry.annotations)):
        # One search for all texts, because usually none contains a secret.
        text = "\n".join((entry.last_error, *entry.annotations.values()))
        if redact.mask_text(text, len(text)) == text:
            return entry
    annotations = {
        key: redact.MASK if _is_secret_name(key) else redact.mask_text(value)
        for key, value in entry.annotations.items()
    }
    error = entry.last_error and redact.mask_text(entry.last_error)[:MAX_ERROR]
    return msgspec.structs.replace(entry, annotations=annotations, last_error=error)


def _is_long(text: str) -> bool:
    # The first comparison saves the encoding of most texts: a character has up to 6 bytes in JSON.
    return len(text) > MAX_NAME_BYTES // 6 and len(msgspec.json.encode(text)) > MAX_NAME_BYTES


def _marked(
    entry: JournalEntry, old: JournalEntry | None, marks: Mapping[str, Any]
) -> JournalEntry:
    """Return an entry with times and writer; `old` if nothing else differs."""
    if old is not None:
        marks_before = {name: getattr(old, name) for name in (*marks, "created_at")}
        if msgspec.structs.replace(entry, **marks_before) == old:
            return old
    created = entry.created_at or marks["updated_at"]
    return msgspec.structs.replace(entry, created_at=created, **marks)


# Cached, because a batch repeats the same few annotation names.
_is_secret_name = lru_cache(1024)(redact.is_secret_name)


@dataclass(slots=True, eq=False)
class JournalPage:
    """State of one page.

    Attributes:
        name: name of the stored object.
        version: precondition of the next write.
        names: names of its entries, including deleted ones that are still stored.
    """

    name: str
    version: Expected = ABSENT
    names: set[str] = field(default_factory=set)


def _encode(page: str, entries: Mapping[str, JournalEntry]) -> dict[str, Any]:
    head = {"apiVersion": PAGES.api_version, "kind": PAGES.kind, "metadata": {"name": page}}
    return {**head, "entries": msgspec.to_builtins(entries)}


def _decode(obj: Mapping[str, Any]) -> dict[str, JournalEntry]:
    try:
        return msgspec.convert(obj.get("entries"), dict[str, JournalEntry])
    except msgspec.ValidationError as error:
        name = obj["metadata"]["name"]
        raise errors.CorruptObject(
            f"journal page {name}: {error}; a newer version may have written it"
        ) from error


class Journal:
    """All entries of one cluster.

    Before `open`, entries are kept in memory; `open` merges them with the stored entries.

    Args:
        writer: returns the identity of this process as leader.
        on_change: called with (is_up, reason) when the journal becomes unavailable or available.

    Attributes:
        entries: all entries by name; read-only.
    """

    def __init__(
        self,
        *,
        writer: Callable[[], WriterIdentity],
        on_change: Callable[[bool, str], None] = lambda *_: None,
    ) -> None:
        self._writer = writer
        self._on_change = on_change
        self._entries: dict[str, JournalEntry] = {}
        self.entries: Mapping[str, JournalEntry] = MappingProxyType(self._entries)
        self._names_of: defaultdict[str, set[str]] = defaultdict(set)
        self._pages: list[JournalPage] = []
        self._page_of: dict[str, JournalPage] = {}
        self._min_epoch = 0
        self._provider: VersionedPersistence | None = None
        self._instance = ""
        self._committer: asyncio.Task[None] | None = None
        self._is_closing = False
        # Names of the entries with changes that are not stored yet.
        self._dirty: set[str] = set()
        # Those of them for which a `put` waits: the next commit writes them.
        self._urgent: set[str] = set()
        # Loop time by which the others are written.
        self._flush_at = math.inf
        self._changed = asyncio.Event()
        # Set and replaced after each commit, so that each waiter checks its entries again.
        self._committed = asyncio.Event()
        self._fault: errors.PersistenceError | None = None
        self._down_since = ""
        self._retry_at = 0.0
        self._streak = FailureStreak(policy=_RETRY)
        self._outage = log.Outage(
            log.logger("journal"),
            start_message="journal is unavailable",
            end_message="journal is available",
        )

    @property
    def is_open(self) -> bool:
        """Whether the stored entries are loaded."""
        return self._committer is not None

    @property
    def fault(self) -> str:
        """Error that makes the journal unavailable, and its time; empty = no error is known."""
        return "" if self._fault is None else f"{self._fault}; unavailable since {self._down_since}"

    def by_owner(self, uid: str) -> Sequence[JournalEntry]:
        """Return the entries of the owner with a UID."""
        return [self._entries[name] for name in sorted(self._names_of.get(uid, ()))]

    def by_state(self, *states: EntryState) -> Sequence[JournalEntry]:
        """Return the entries in any of the states."""
        return [entry for entry in self._entries.values() if entry.state in states]

    # Changes

    async def put(
        self, *entries: JournalEntry, drop: Collection[str] = (), delay_s: float = 0.0
    ) -> None:
        """Record entries, and delete others; the changes are durable when this method returns.

        An entry that differs from the stored one only in its times and writer is not written.

        Args:
            entries: entries to record.
            drop: names of the entries to delete.
            delay_s: how long the write may wait for further changes.

        Raises:
            BackendUnavailable: the store did not confirm the write in time, or the journal was
                unavailable before; the changes are kept, and written as soon as possible.
            Fenced: another leader has written; nothing is recorded any more.
        """
        names = self._change(entries, drop, is_urgent=not delay_s)
        self._flush_at = min(self._flush_at, _now() + delay_s) if delay_s else self._flush_at
        await self._wait_until_durable(names)

    def put_later(self, *entries: JournalEntry, drop: Collection[str] = ()) -> None:
        """Change entries as `put` does, but without waiting for the write.

        They are written within `FLUSH_S`, or earlier with another entry of their page. No error is
        raised, not even if entries are not recorded (`MAX_PENDING`).
        """
        with suppress(errors.PersistenceError):
            self._change(entries, drop, is_urgent=False)

    def prune(self, now: datetime) -> int:
        """Delete `REMOVED` entries that are too old or too many; return their number."""
        removed = sorted(self.by_state(EntryState.REMOVED), key=lambda entry: entry.updated_at)
        oldest = format_time(now - KEEP_REMOVED)
        excess = len(removed) - MAX_REMOVED
        pruned = [e.name for n, e in enumerate(removed) if n < excess or e.updated_at < oldest]
        self.put_later(drop=pruned)
        return len(pruned)

    def _change(
        self, entries: Collection[JournalEntry], drop: Collection[str], *, is_urgent: bool
    ) -> set[str]:
        """Change entries in memory; return the names of those that have to be written."""
        if self._is_fenced:
            self._check_up()
        dropped: dict[str, JournalEntry | None] = dict.fromkeys(drop)
        changes = {**dropped, **{entry.name: entry for entry in entries}}
        now = format_time(clock.now())
        marks = {"updated_at": now, "epoch": self._epoch, "writer": self._writer().identity}
        for name, wanted in changes.items():
            old = self._entries.get(name)
            entry = None if wanted is None else _marked(redact_entry(wanted), old, marks)
            if entry is not old:
                if old is None and len(self._dirty) >= MAX_PENDING:
                    raise errors.BackendUnavailable(f"{MAX_PENDING} journal entries wait")
                self._set(name, entry)
                self._dirty.add(name)
        if waiting := self._dirty & changes.keys():
            self._flush_at = min(self._flush_at, _now() + FLUSH_S)
            self._urgent |= waiting if is_urgent else set()
            self._changed.set()
        return waiting

    def _set(self, name: str, entry: JournalEntry | None) -> None:
        if (old := self._entries.pop(name, None)) is not None:
            self._names_of[old.owner.uid].discard(name)
            if not self._names_of[old.owner.uid]:
                del self._names_of[old.owner.uid]
        if entry is not None:
            self._entries[name] = entry
            self._names_of[entry.owner.uid].add(name)

    async def _wait_until_durable(self, names: Collection[str]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._dirty.isdisjoint(names):
                    self._check_up()
                    await self._committed.wait()
        except TimeoutError:
            text = f"the store did not confirm a write within {WAIT_S:g} s"
            self._mark_down(errors.BackendUnavailable(text))
            raise errors.BackendUnavailable(text) from None

    def _check_up(self) -> None:
        if self._fault is not None:
            raise type(self._fault)(self.fault)

    @property
    def _is_fenced(self) -> bool:
        return isinstance(self._fault, errors.Fenced)

    @property
    def _epoch(self) -> int:
        # At least the highest stored epoch: a store outside of the cluster may outlive the Lease,
        # whose count of transitions then starts again.
        return max(self._writer().epoch, self._min_epoch)

    # Opening and closing

    async def open(self, provider: VersionedPersistence, instance: str) -> None:
        """Load the stored entries; then write those recorded before. May be repeated after errors.

        Args:
            provider: an initialized provider.
            instance: its instance that stores the journal.

        Raises:
            PersistenceError: the pages cannot be read.
        """
        if self.is_open:
            return
        pages: list[JournalPage] = []
        loaded: dict[str, tuple[JournalEntry, JournalPage]] = {}
        async for _, obj, version in provider.iter_objects(instance, PAGES):
            # In a thread, because thousands of entries would block the event loop.
            entries = await asyncio.to_thread(_decode, obj)
            page = JournalPage(obj["metadata"]["name"], version, set(entries))
            pages.append(page)
            for name, entry in entries.items():
                if name not in loaded or loaded[name][0].updated_at < entry.updated_at:
                    loaded[name] = entry, page
        self._min_epoch = max((entry.epoch for entry, _ in loaded.values()), default=0)
        for name in self._dirty & self._entries.keys():
            self._set(name, msgspec.structs.replace(self._entries[name], epoch=self._epoch))
        for name, (entry, page) in loaded.items():
            self._page_of[name] = page
            recorded, is_created = self._entries.get(name), entry.state is EntryState.CREATED
            # An intent recorded before may be an update: the stored entries were not known yet.
            if recorded is None or (is_created and recorded.state is EntryState.INTENT):
                self._set(name, entry)
                self._dirty.discard(name)
        self._provider, self._instance, self._pages = provider, instance, pages
        self._committer = tasks.spawn(self._commit_until_closed(), name="journal")
        self._mark_up()
        self._wake_waiters()
        log.logger("journal").info("journal opened", entries=len(self._entries), pages=len(pages))

    async def close(self) -> None:
        """Write all entries that wait, within `CLOSE_S`, and stop; idempotent."""
        committer, self._is_closing = self._committer, True
        self._changed.set()
        if committer is not None:
            await asyncio.wait({committer}, timeout=CLOSE_S)
            await tasks.cancel_and_join(committer)
        self._committer, self._fault = None, errors.Closed("the journal is closed")
        self._down_since = format_time(clock.now())
        UP.set(0)
        self._wake_waiters()

    def mark_down(self, reason: str) -> None:
        """Report that the storage cannot be opened, so that no call waits for it."""
        self._mark_down(errors.BackendUnavailable(reason))

    # Writes

    async def _commit_until_closed(self) -> None:
        # Cloud calls in progress may finish during a shutdown: their entries must still be written.
        drain.exempt()
        while not (self._is_closing or self._is_fenced):
            self._changed.clear()
            is_urgent = bool(self._urgent) and self._fault is None
            due = self._flush_at if self._fault is None else self._retry_at
            wait_s = BATCH_S if is_urgent else due - _now()
            if not self._dirty or (wait_s > 0 and not is_urgent):
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s if self._dirty else None):
                        await self._changed.wait()
                continue
            # A batch that fills a page does not wait for more.
            await asyncio.sleep(BATCH_S if is_urgent and len(self._urgent) < PAGE_SIZE else 0)
            await self._commit()
        if not self._is_fenced:
            await self._commit()

    async def _commit(self) -> None:
        """Write the pages of all entries that are due."""
        is_due = self._fault is not None or self._is_closing or _now() >= self._flush_at
        names, self._urgent = self._dirty if is_due else self._dirty & self._urgent, set()
        if is_due:
            self._flush_at = math.inf
        pages = self._pages_for(names)
        failures: list[errors.PersistenceError] = []

        async def write(page: JournalPage) -> None:
            if (error := await self._write(page)) is not None:
                failures.append(error)

        await tasks.run_bounded(
            pages, write, limit=min(len(pages), CONCURRENT_PAGES), name="journal-page"
        )
        if failures:
            # A fence is final, and must not be hidden by the failure of another page.
            self._mark_down(max(failures, key=lambda error: isinstance(error, errors.Fenced)))
        elif pages:
            self._mark_up()
        if self._dirty:
            self._flush_at = min(self._flush_at, _now() + FLUSH_S)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._committed.set()
        self._committed = asyncio.Event()

    def _pages_for(self, names: set[str]) -> set[JournalPage]:
        """Return the pages of entries; new ones are placed together, to write few pages."""
        new = {name for name in names if name not in self._page_of}
        unplaced = [name for name in new if name in self._entries]
        self._dirty -= new.difference(unplaced)  # deleted before they were stored
        while unplaced:
            batch = [unplaced.pop() for _ in range(min(len(unplaced), PAGE_SIZE))]
            max_names = PAGE_SIZE - len(batch)
            page = next((p for p in reversed(self._pages) if len(p.names) <= max_names), None)
            if page is None:
                page = JournalPage(f"page-{token_hex(4)}")
                self._pages.append(page)
            page.names.update(batch)
            self._page_of.update(dict.fromkeys(batch, page))
        return {self._page_of[name] for name in names if name in self._page_of}

    async def _write(self, page: JournalPage) -> errors.PersistenceError | None:
        """Write a page with all its entries; return the error."""
        try:
            for _ in range(MAX_ATTEMPTS):
                names, current = frozenset(page.names), self._entries
                entries = {name: current[name] for name in names if name in current}
                try:
                    await self._store(page, entries)
                except errors.VersionConflict:
                    await self._reload(page)
                else:
                    self._confirm(page, names, entries)
                    return None
            return errors.BackendUnavailable(f"{page.name} is changed by another writer")
        except errors.PersistenceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect of a store must not end the committer
            log.logger("journal").error("journal page not written", page=page.name, error=error)
            return errors.BackendUnavailable(type(error).__name__)

    async def _store(self, page: JournalPage, entries: Mapping[str, JournalEntry]) -> None:
        provider = self._provider
        assert provider is not None
        # An empty page is kept for new entries: the daemon needs no permission to delete objects.
        expect = page.version if CAS in provider.capabilities(self._instance) else None
        obj = _encode(page.name, entries)
        _, page.version = await provider.put_versioned(self._instance, obj, expect=expect)

    async def _reload(self, page: JournalPage) -> None:
        """Read a page again after a version conflict.

        Another writer changed it, or an earlier write of ours took effect without a response.

        Entries in memory are kept: they are newer unless another leader has written.

        Raises:
            Fenced: another leader has written.
        """
        assert self._provider is not None
        key = objects.key_of("", page.name)
        try:
            stored = await self._provider.get_versioned(self._instance, PAGES, key)
        except errors.CorruptObject:
            stored, page.version = None, None  # replaced: all its entries are in memory
        else:
            page.version = ABSENT
        if stored is None:
            return
        obj, page.version = stored
        entries = await asyncio.to_thread(_decode, obj)
        newest = max((entry.epoch for entry in entries.values()), default=0)
        if newest > self._epoch:
            raise errors.Fenced(f"a leader of epoch {newest} has written to the journal")
        for name in entries.keys() - page.names - self._entries.keys():
            self._set(name, entries[name])
            self._page_of[name] = page
            page.names.add(name)

    def _confirm(
        self, page: JournalPage, names: Collection[str], entries: Mapping[str, JournalEntry]
    ) -> None:
        for name in names:
            entry = self._entries.get(name)
            # An entry that was changed during the write is written again.
            if entry is entries.get(name):
                self._dirty.discard(name)
                if entry is None:
                    page.names.discard(name)
                    del self._page_of[name]

    def _mark_down(self, fault: errors.PersistenceError) -> None:
        if self._is_fenced:
            return  # final: a caller whose wait ends later must not hide it
        was_up, self._fault = self._fault is None, fault
        if was_up:
            self._down_since = format_time(clock.now())
        UP.set(0)
        self._outage.record_failure(error=str(fault), since=self._down_since)
        # Failures of callers during the delay do not extend it.
        if _now() >= self._retry_at:
            self._retry_at = _now() + self._streak.next_delay(_now())
        if was_up:
            self._on_change(False, str(fault))

    def _mark_up(self) -> None:
        was_down, self._fault = self._fault is not None, None
        UP.set(1)
        self._streak.reset()
        self._outage.record_success()
        if was_down:
            self._on_change(True, "")


def _now() -> float:
    return asyncio.get_running_loop().time()
