"""Search for orphans: cloud resources in the journal whose owner no longer exists.

A journal entry is only a hint. If the caches lack the owner of an entry, the search reads the owner
from the API server, and then the resource from the cloud. A resource that exists without its owner
is an orphan, unless a recreated Service uses it. Orphans are reported. With `--journal=delete`, an
orphan is deleted if all conditions of `failed_conditions` hold and orphans are few. Many orphans
mean that the owners are missing by mistake, for example after the restore of an old backup of the
cluster.

Intents are examined even if their owner exists. After a leader was killed during a creation, the
next leader finds the resource, and makes no call that would record it. If the cloud has the
resource, the entry becomes `CREATED`. The intent of a part that the cloud does not have is dropped.

A deletion ends only when the deleting call succeeds: volumes may be left although the cloud no
longer has the VM. With `--journal=delete`, the search repeats the call until then, under the same
conditions.

The search is idempotent: it may be interrupted at any point and repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from ccm.base import clock, log, metrics, redact
from ccm.base.tasks import run_bounded
from ccm.cloud.errors import CloudError, RetryAfter
from ccm.kube.errors import KubeError
from ccm.model import names
from ccm.model.times import parse_optional_time
from ccm.persistence.errors import PersistenceError
from ccm.persistence.journal import EntryState, Journal, JournalEntry, Owner

SETTLE_S = 900.0
"""Seconds for which an entry must be unchanged before its resource may count as absent, or before
an intent without an owner is examined. A creation may take as long (the longest deadline of a cloud
call), and its resource may not be visible earlier."""

GRACE_S = 3600.0
"""Default seconds from the first search that finds an orphan to its deletion: an owner that was
deleted by mistake can be restored until then."""

EPHEMERAL_GRACE_S = 600.0
"""Default seconds from the last change of the entry of an ephemeral resource to its deletion: the
operation that uses the resource may still run until then."""

MIN_DELETIONS_PER_SEARCH, MAX_DELETION_SHARE = 5, 0.1
"""A search deletes nothing if there are more orphans than this number and this share of all
entries."""

MAX_CONCURRENT_CHECKS = 4
"""Entries examined at once: a search is not urgent, and must not use up the cloud's rate limit."""

ORPHANS = metrics.gauge(
    "ccm_journal_orphans",
    "Cloud resources in the journal without an owner, by kind of resource and action of the "
    "daemon: report, delete (after the grace period), or blocked (too many orphans).",
    ["resource", "action"],
)


class OwnerState(Enum):
    """State of an entry's owner on the API server."""

    ALIVE = "exists"
    CHANGED = "was replaced by an object of the same name"
    ABSENT = "no longer exists"
    UNKNOWN = "could not be read"


class Finding(Enum):
    """Result of a live read of a resource from the cloud."""

    MARKED = "exists, and the cloud shows that it belongs to this owner"
    UNMARKED = "exists, but nothing in the cloud shows its owner"
    TAKEN_OVER = "exists, and belongs to the present object with the owner's name"
    ABSENT = "does not exist"
    UNFINISHED = "does not exist, but the call that deletes it with its parts has not succeeded"
    UNKNOWN = "could not be checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudLook:
    """Result of a live read of an entry's resource from the cloud.

    Attributes:
        finding: whether the resource exists.
        resource_id: its ID in the cloud; empty if unknown.
        text: why the resource could not be checked.
        can_transfer: whether the provider can give the resource to another owner.
    """

    finding: Finding
    resource_id: str = ""
    text: str = ""
    can_transfer: bool = False


class ResourceAccess(Protocol):
    """Access to the cloud resources of one kind."""

    async def look(self, entry: JournalEntry) -> CloudLook:
        """Read the resource from the cloud, not from a cache. Raises CloudError."""
        ...

    async def delete(self, entry: JournalEntry) -> None:
        """Delete the resource; return once it is absent. Raises CloudError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A resource without an owner, or one whose owner or existence is unclear.

    Attributes:
        entry: its journal entry.
        owner: state of its owner.
        look: result of the read from the cloud.
        age_s: seconds since the first of the consecutive searches by this process that confirmed
            the orphan; for an ephemeral resource, since the last change of the entry.
    """

    entry: JournalEntry
    owner: OwnerState
    look: CloudLook
    age_s: float

    @property
    def lacks_owner(self) -> bool:
        """Whether the owner is absent, or irrelevant because the resource is ephemeral."""
        return self.owner is OwnerState.ABSENT or self.entry.ephemeral


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of the search.

    Attributes:
        deletes: whether orphans are deleted (`--journal=delete`).
        grace_s: minimum seconds from the first search that finds an orphan to its deletion.
        ephemeral_grace_s: minimum seconds from the last change of the entry of an ephemeral
            resource to its deletion.
    """

    deletes: bool = False
    grace_s: float = GRACE_S
    ephemeral_grace_s: float = EPHEMERAL_GRACE_S


def failed_conditions(orphan: Orphan, settings: SearchSettings) -> list[str]:
    """Return those conditions for the deletion of an orphan that do not hold.

    Three further conditions are checked elsewhere. The store belongs to this cluster
    (`Store.open`). This process leads: each call and each write is fenced by the Lease. Orphans are
    few (`limit_of`).
    """
    entry, look = orphan.entry, orphan.look
    # An ephemeral resource may have no marker; then its exact ID must be in the journal.
    has_exact_id = bool(entry.resource_id) and look.resource_id == entry.resource_id
    # UNFINISHED: the deletion began with this proof, or because the owner was deleted.
    is_proven = look.finding in (Finding.MARKED, Finding.UNFINISHED)
    grace_s = settings.ephemeral_grace_s if entry.ephemeral else settings.grace_s
    conditions = {
        "the mode is delete": settings.deletes,
        "the cloud shows the resource": is_proven or look.finding is Finding.UNMARKED,
        "the resource is proven ours": is_proven or (entry.ephemeral and has_exact_id),
        "the owner is absent": orphan.lacks_owner,
        "the grace period is over": orphan.age_s >= grace_s,
    }
    return [text for text, holds in conditions.items() if not holds]


def limit_of(entry_count: int) -> int:
    """Return the number of orphans above which a search deletes none."""
    return max(MIN_DELETIONS_PER_SEARCH, int(entry_count * MAX_DELETION_SHARE))


@dataclass(kw_only=True)
class OrphanSearch:
    """Search for orphans; the leader runs it at its start and periodically.

    Attributes:
        journal: the journal.
        settings: settings of the search.
        read_owner: reads the UID of an object from the API server, not from a cache; None = the
            object does not exist. Raises KubeError.
        is_owned: whether the caches contain the owner with its UID, or another machine that has the
            VM, such as one that imported it. True = the owner is not read.
        is_active: whether a cloud call about the entry is in progress, so that the entry may
            change at any moment.
        access: returns the access to an entry's resource. Raises CloudError: there is none, and
            the resource is only reported.
        record_event: called with (type, reason, message), to record an event about the daemon,
            since an orphan has no Kubernetes object.
        orphans: orphans that the last search found, by name of the entry.
        changing: lock held during each deletion. Changes that a user requests hold it, too, so that
            an orphan is not dropped or adopted while it is deleted.
    """

    journal: Journal
    settings: SearchSettings
    read_owner: Callable[[Owner], Awaitable[str | None]]
    is_owned: Callable[[JournalEntry], bool]
    access: Callable[[JournalEntry], ResourceAccess]
    record_event: Callable[[str, str, str], None]
    is_active: Callable[[JournalEntry], bool] = lambda _entry: False
    orphans: Mapping[str, Orphan] = field(init=False, default_factory=dict)
    changing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _first_seen: dict[str, float] = field(init=False, default_factory=dict)
    _reported: dict[str, str] = field(init=False, default_factory=dict)
    _log: log.Logger = field(init=False, default_factory=lambda: log.logger("journal"))

    async def run(self) -> None:
        """Search once; report the orphans, and delete those that may be deleted."""
        if not self.journal.is_open:
            return
        self.journal.prune(clock.now())
        orphans: dict[str, Orphan] = {}

        async def check(entry: JournalEntry) -> None:
            if self._is_suspect(entry) and (orphan := await self._check(entry)) is not None:
                orphans[entry.name] = orphan

        entries = self.journal.by_state(EntryState.INTENT, EntryState.CREATED, EntryState.DELETING)
        # Most entries end without a wait; `run_bounded` lets other tasks run between them.
        await run_bounded(entries, check, limit=MAX_CONCURRENT_CHECKS, name="orphan-search")
        self.orphans = orphans
        self._first_seen = {name: at for name, at in self._first_seen.items() if name in orphans}
        # Orphans in their grace period count, too: a large number is a warning at any time.
        ownerless = [orphan for orphan in orphans.values() if orphan.lacks_owner]
        is_blocked = self.settings.deletes and len(ownerless) > limit_of(len(entries))
        self._report(orphans, is_blocked=is_blocked)
        for orphan in () if is_blocked else ownerless:
            if not failed_conditions(orphan, self.settings):
                async with self.changing:
                    await self._delete(orphan)

    def _is_suspect(self, entry: JournalEntry) -> bool:
        if self.is_active(entry):
            return False
        age_s, is_intent = _age_s(entry), entry.state is EntryState.INTENT
        if entry.ephemeral and age_s < self.settings.ephemeral_grace_s:
            return False  # its operation may still run
        if is_intent and age_s < SETTLE_S:
            # Its creation may still run. With an owner, the search can only complete the entry.
            return not entry.ephemeral and self.is_owned(entry)
        return entry.ephemeral or is_intent or not self.is_owned(entry)

    async def _check(self, entry: JournalEntry) -> Orphan | None:
        """Examine one entry; return None if it is no orphan."""
        owner = await self._owner_state(entry)
        is_needed = owner in (OwnerState.ALIVE, OwnerState.UNKNOWN) and not entry.ephemeral
        is_intent = entry.state is EntryState.INTENT
        if is_needed and (owner is OwnerState.UNKNOWN or not is_intent):
            return None
        look = await self._look(entry)
        if self._has_changed(entry):
            return None  # the next search examines it
        if look.finding is Finding.TAKEN_OVER:
            # The entry stays: a later search records the absence of the resource, or finds an
            # orphan after the loss of the present owner.
            return None
        if look.finding is Finding.ABSENT:
            # If the owner exists, its controller repeats the creation, which completes the intent.
            # A part is an exception: the repeated creation may give it another name.
            if (entry.purpose or not is_needed) and _age_s(entry) >= SETTLE_S:
                await self._record_absence(entry)
        elif not is_needed:
            return self._orphan(entry, owner, look)
        elif look.finding is not Finding.UNKNOWN:
            known = look.resource_id or entry.resource_id
            self.journal.put_later(_with_state(entry, EntryState.CREATED, resource_id=known))
        return None

    def _orphan(self, entry: JournalEntry, owner: OwnerState, look: CloudLook) -> Orphan:
        now = clock.monotonic()
        if owner is OwnerState.ABSENT and look.finding is not Finding.UNKNOWN:
            first_seen = self._first_seen.setdefault(entry.name, now)
        else:
            # The grace period starts again, because this search did not confirm the orphan.
            first_seen = now
            self._first_seen.pop(entry.name, None)
        age_s = _age_s(entry) if entry.ephemeral else now - first_seen
        return Orphan(entry=entry, owner=owner, look=look, age_s=age_s)

    def _has_changed(self, entry: JournalEntry) -> bool:
        """Return whether an entry that was read earlier is outdated, or may be soon."""
        return self.journal.entries.get(entry.name) is not entry or self.is_active(entry)

    async def _owner_state(self, entry: JournalEntry) -> OwnerState:
        if self.is_owned(entry):
            return OwnerState.ALIVE
        owner = entry.owner
        try:
            uid = await self.read_owner(owner)
        except KubeError as error:
            self._log.info("owner could not be read", name=owner.name, error=str(error))
            return OwnerState.UNKNOWN
        except Exception as error:  # noqa: BLE001 - one entry must not end the search
            self._log.error("owner could not be read", name=owner.name, exc_info=error)
            return OwnerState.UNKNOWN
        if uid is None:
            return OwnerState.ABSENT
        return OwnerState.ALIVE if uid == owner.uid else OwnerState.CHANGED

    async def _look(self, entry: JournalEntry) -> CloudLook:
        try:
            look = await self.access(entry).look(entry)
            # A part has no parts of its own, so that its absence suffices.
            may_have_parts = entry.state is EntryState.DELETING and not entry.purpose
            if may_have_parts and look.finding is Finding.ABSENT:
                return CloudLook(finding=Finding.UNFINISHED)
            return look
        except CloudError as error:
            text = redact.mask_text(str(error))
        except Exception as error:  # noqa: BLE001 - one entry must not end the search
            self._log.error("resource could not be checked", name=entry.name, exc_info=error)
            text = f"unexpected {type(error).__name__}; see the log"
        return CloudLook(finding=Finding.UNKNOWN, text=text)

    async def _record_absence(self, entry: JournalEntry) -> None:
        """Record that the cloud does not have the resource; an intent is dropped."""
        try:
            if entry.state is EntryState.INTENT:
                await self.journal.put(drop=[entry.name])
            else:
                await self.journal.put(_with_state(entry, EntryState.REMOVED))
        except PersistenceError as error:
            # The next search finds the same, and writes it again.
            self._log.info("journal write failed", name=entry.name, error=str(error))

    async def _delete(self, orphan: Orphan) -> None:
        entry = orphan.entry
        # The search may have taken long, so read the owner again immediately before the deletion.
        if not entry.ephemeral and await self._owner_state(entry) is not OwnerState.ABSENT:
            return
        if self._has_changed(entry):
            return
        try:
            # The intent of the deletion is durable first, as for every deletion.
            await self.journal.put(replace(entry, state=EntryState.DELETING))
            await self.access(entry).delete(entry)
            await self.journal.put(_with_state(entry, EntryState.REMOVED))
        except RetryAfter as error:
            # The next search continues, until the call succeeds.
            self._log.info("orphan is being deleted", name=entry.name, error=str(error))
            return
        except Exception as error:  # noqa: BLE001 - as in `_look`
            self._log.warning("orphan not deleted", name=entry.name, error=str(error))
            return
        self._log.info("orphan deleted", name=entry.name, resource=describe(entry))
        text = f"Deleted {describe(entry)}, because its owner {describe_owner(entry)} is gone"
        self.record_event(names.NORMAL, names.REASON_ORPHAN_DELETED, text)

    def _report(self, orphans: Mapping[str, Orphan], *, is_blocked: bool) -> None:
        """Set the metric; report each orphan once, and again when its text changes."""
        ORPHANS.clear()
        for orphan in orphans.values():
            action = "report"
            if self.settings.deletes and orphan.lacks_owner:
                action = "blocked" if is_blocked else "delete"
            ORPHANS.labels(orphan.entry.resource, action).inc()
        if is_blocked:
            self._log.error("too many orphans, none is deleted", count=len(orphans))
        texts = {name: report_text(orphan) for name, orphan in orphans.items()}
        for name in sorted(texts):
            if self._reported.get(name) == texts[name]:
                continue
            self._log.warning("orphan found", name=name, resource=describe(orphans[name].entry))
            self.record_event(names.WARNING, names.REASON_ORPHANED_RESOURCE, texts[name])
        self._reported = texts


def _with_state(entry: JournalEntry, state: EntryState, **fields: str) -> JournalEntry:
    """Return an entry in another state, without error and failed attempts."""
    return replace(entry, state=state, attempts=0, last_error="", **fields)


def _age_s(entry: JournalEntry) -> float:
    """Return the seconds since the last change of an entry; 0 if its time is unreadable."""
    changed = parse_optional_time(entry.updated_at)
    return 0.0 if changed is None else (clock.now() - changed).total_seconds()


def describe(entry: JournalEntry) -> str:
    """Return kind, name and ID of an entry's resource for messages."""
    shown = " ".join(filter(None, (entry.resource, entry.intended_name)))
    return f"{shown} ({entry.resource_id})" if entry.resource_id else shown


def describe_owner(entry: JournalEntry) -> str:
    """Return kind and key of an entry's owner for messages."""
    owner = entry.owner
    return f"{owner.kind} {owner.namespace}/{owner.name}"


def report_text(orphan: Orphan) -> str:
    """Return the message about an orphan: what it is, and what to do."""
    entry, owner = orphan.entry, describe_owner(orphan.entry)
    drop = f"kube-ccm journal drop {entry.name}"
    if orphan.look.finding is Finding.UNKNOWN:
        return (
            f"The owner {owner} of {describe(entry)} {orphan.owner.value}, and the resource could "
            f"not be checked: {orphan.look.text}. If the resource no longer exists, drop its entry "
            f"with `{drop}`"
        )
    if orphan.look.finding is Finding.UNFINISHED:
        return (
            f"The owner {owner} of {describe(entry)} {orphan.owner.value}, and the deletion of the "
            "resource is not confirmed: parts of it, such as volumes, may be left in the cloud. "
            f"Delete them there, and drop the entry with `{drop}`"
        )
    adopt = ""
    if orphan.owner is OwnerState.CHANGED and orphan.look.can_transfer:
        arguments = f"{entry.name} service {entry.owner.namespace}/{entry.owner.name}"
        adopt = f"give it to that object with `kube-ccm journal adopt {arguments}`, or "
    return (
        f"The owner {owner} of {describe(entry)} {orphan.owner.value}. If the resource is not "
        f"needed, delete it in the cloud; to keep it, {adopt}drop its entry with `{drop}`"
    )
