"""Records of provider calls in the journal of cloud resources.

The intent is durable before a resource is created, and the ID follows within a second. A deletion
is recorded before it begins, and the entry counts as removed once the provider confirms that
nothing is left. So a resource costs two writes when it is created and two when it is deleted.
Updates and reads write nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from msgspec import json, structs

from ccm.base import log, redact
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.calls.inflight import mask_user_data
from ccm.cloud.interface import LoadBalancer
from ccm.cloud.journal import PART_RECORDER, JournalPart
from ccm.cloud.machines import MachineDriver, MachineInfo, MachineRequest
from ccm.cloud.operation import ProviderCall
from ccm.model import ObjectReference, Service
from ccm.persistence.errors import Fenced, PersistenceError
from ccm.persistence.journal import EntryState, Journal, JournalEntry, Owner, entry_name

LOAD_BALANCER, SERVER = "loadbalancer", "server"
"""Values of `JournalEntry.resource`; the other values are kinds of parts."""

MAX_ANNOTATIONS, MAX_ANNOTATION = 20, 256
"""Maximum annotations of an entry, and maximum bytes of each value in JSON; others are omitted. A
page of the largest entries still fits into every store."""

CANCELLED = "the call was cancelled, or exceeded its deadline"

_CREATIONS = (LoadBalancer.ensure_load_balancer.__name__, MachineDriver.create_machine.__name__)
_DELETIONS = (
    LoadBalancer.ensure_load_balancer_deleted.__name__,
    MachineDriver.delete_machine.__name__,
)


class CallJournal:
    """Recorder of calls (`CallRecorder`) that writes to the journal.

    If the journal is unavailable, deletions proceed, and so do creations unless `blocks`. If
    another leader has written to the journal, neither proceeds.

    Args:
        journal: the journal; may be opened later.
        blocks: whether nothing is created without a durable record.
    """

    def __init__(self, journal: Journal, *, blocks: bool = False) -> None:
        self.journal = journal
        self._blocks = blocks
        self._active: Counter[str] = Counter()

    def is_active(self, entry: JournalEntry) -> bool:
        """Return whether a recorded call about the entry's owner is in progress."""
        return self._active[entry.owner.uid] > 0

    @asynccontextmanager
    async def recording(
        self, client: CloudClient, call: ProviderCall
    ) -> AsyncIterator[Callable[[object], None]]:
        """See `CallRecorder.recording`."""
        recording: _Creation | _Deletion
        if call.verb in _CREATIONS and (entry := _new_entry(client, call)) is not None:
            recording = _Creation(self, entry)
            PART_RECORDER.set(recording.part)  # each call has a task of its own
            uid = entry.owner.uid
        elif call.verb in _DELETIONS:
            uid = _deleted_uid(call)
            is_server = call.verb == MachineDriver.delete_machine.__name__
            recording = _Deletion(self, uid, is_server=is_server)
        else:
            yield lambda _answer: None
            return
        self._active[uid] += 1
        try:
            await recording.begin()
            try:
                yield recording.end
            except BaseException as error:
                fault = errors.normalize(error)
                mask_user_data(fault, call)
                recording.fail(fault, is_cancelled=isinstance(error, asyncio.CancelledError))
                raise
        finally:
            self._active[uid] -= 1
            self._active += Counter()  # removes zeros

    async def store(self, *entries: JournalEntry, creates: str = "") -> None:
        """Write entries durably before a call.

        Args:
            entries: the entries.
            creates: resource that the call creates; empty = it deletes.

        Raises:
            Unavailable: the call must not be made.
        """
        try:
            await self.journal.put(*entries)
        except Fenced as error:
            raise errors.Unavailable(f"nothing was changed: {error}") from error
        except PersistenceError as error:
            if creates and self._blocks:
                raise errors.Unavailable(
                    f"{creates} was not created, because the journal is unavailable: {error}; "
                    "restore the store, or set when_unavailable: degrade to create without a record"
                ) from error
            log.logger("journal").debug("journal entry not durable", error=str(error))

    def change(self, entry: JournalEntry, *, last_error: str = "", **fields: Any) -> None:
        """Write changes of an entry soon; without an error, the number of attempts is reset."""
        attempts = entry.attempts + 1 if last_error else 0
        self.journal.put_later(
            structs.replace(entry, attempts=attempts, last_error=last_error, **fields)
        )


@dataclass(slots=True)
class _Deletion:
    """Recorded deletion of all resources of an owner."""

    calls: CallJournal
    uid: str
    is_server: bool

    async def begin(self) -> None:
        entries = [structs.replace(entry, state=EntryState.DELETING) for entry in self._existing()]
        await self.calls.store(*entries)

    def end(self, _answer: object = None) -> None:
        # The provider confirms that all parts are gone, too.
        for entry in self._existing():
            self.calls.change(entry, state=EntryState.REMOVED)

    def fail(self, fault: errors.CloudError, *, is_cancelled: bool) -> None:
        for entry in self._existing():
            if isinstance(fault, errors.NotFound) and self.is_server:
                self.calls.change(entry, state=EntryState.REMOVED)  # the absence is confirmed
            elif not isinstance(fault, errors.RetryAfter):
                self.calls.change(entry, last_error=CANCELLED if is_cancelled else str(fault))

    def _existing(self) -> list[JournalEntry]:
        entries = self.calls.journal.by_owner(self.uid) if self.uid else ()
        return [entry for entry in entries if entry.state is not EntryState.REMOVED]


@dataclass(slots=True)
class _Creation:
    """Recorded creation of one resource; also records its parts (`PartRecorder`)."""

    calls: CallJournal
    entry: JournalEntry

    async def begin(self) -> None:
        entry = self._current
        if entry.state in (EntryState.DELETING, EntryState.REMOVED):
            entry = self.entry
        if entry.state is EntryState.INTENT:
            await self.calls.store(entry, creates=f"{entry.resource} {entry.intended_name}")

    def created(self, resource_id: str) -> None:
        """Record that the resource exists."""
        self.calls.change(self._current, state=EntryState.CREATED, resource_id=resource_id)

    def end(self, answer: object) -> None:
        known = answer.provider_id if isinstance(answer, MachineInfo) else self.entry.intended_name
        entry = self._current
        if entry.intended_name != self.entry.intended_name:
            # With the former annotations, the provider would look for the former name.
            entry = structs.replace(
                entry,
                intended_name=self.entry.intended_name,
                annotations=self.entry.annotations,
            )
        self.calls.change(entry, state=EntryState.CREATED, resource_id=known)

    def fail(self, fault: errors.CloudError, *, is_cancelled: bool) -> None:
        if (entry := self._current).state is not EntryState.INTENT:
            return
        if isinstance(fault, errors.Unimplemented | errors.ImplementedElsewhere):
            self.calls.journal.forget(entry.name)
        elif not isinstance(fault, errors.RetryAfter):
            self.calls.change(entry, last_error=CANCELLED if is_cancelled else str(fault))

    @asynccontextmanager
    async def part(self, kind: str, name: str, ephemeral: bool) -> AsyncIterator[JournalPart]:
        """See `PartJournal.part`."""
        named = {"resource": kind, "purpose": name, "intended_name": name, "annotations": {}}
        entry = structs.replace(
            self.entry,
            name=entry_name(kind, self.entry.owner.uid, name),
            ephemeral=ephemeral,
            **named,
        )
        part = _Creation(self.calls, entry)
        await part.begin()
        yield part
        # Not reached after an error: then the part may exist.
        if part._current.state is EntryState.INTENT:
            self.calls.journal.forget(entry.name)
        elif ephemeral:
            self.calls.change(part._current, state=EntryState.REMOVED)

    @property
    def _current(self) -> JournalEntry:
        return self.calls.journal.entries.get(self.entry.name, self.entry)


def balancer_entry(client: CloudClient, service: Service) -> JournalEntry:
    """Return the intent to create the load balancer of a Service."""
    try:
        name = client.compute(LoadBalancer.get_load_balancer_name, client.cluster_name, service)
    except errors.CloudError:
        name = ""  # the call itself will report the error
    annotations = _annotations(service, client)
    return _intent(client.name, LOAD_BALANCER, service.reference, name, annotations=annotations)


def server_entry(provider: str, owner: ObjectReference, name: str, pool: str) -> JournalEntry:
    """Return the intent to create the VM of a machine, with the name of its MachineClass."""
    return _intent(provider, SERVER, owner, name, machine_class=pool)


def _intent(
    provider: str, resource: str, owner: ObjectReference, name: str, **fields: Any
) -> JournalEntry:
    return JournalEntry(
        name=entry_name(resource, owner.uid),
        resource=resource,
        provider=provider,
        owner=Owner(**{name: getattr(owner, name) for name in Owner.__struct_fields__}),
        state=EntryState.INTENT,
        intended_name=name,
        **fields,
    )


def _new_entry(client: CloudClient, call: ProviderCall) -> JournalEntry | None:
    """Return the intent of a creation; None if no object of the cluster owns the resource."""
    service = call.arguments.get("service")
    if isinstance(service, Service):
        return balancer_entry(client, service)
    request = cast("MachineRequest", call.arguments["req"])
    identity = request.identity
    if request.owner is None:
        return None
    return server_entry(client.name, request.owner, identity.name, identity.pool)


def _annotations(service: Service, client: CloudClient) -> dict[str, str]:
    """Return the annotations with the prefixes that the provider declares."""
    prefixes = tuple(client.cloud.service_annotations or ())
    read = (
        (key, value)
        for key, value in sorted(service.annotations.items())
        if key.startswith(prefixes) and len(json.encode(redact.mask_text(value))) <= MAX_ANNOTATION
    )
    return dict(islice(read, MAX_ANNOTATIONS))


def _deleted_uid(call: ProviderCall) -> str:
    """Return the UID of the object whose resources a call deletes; empty = unknown."""
    service = call.arguments.get("service")
    if isinstance(service, Service):
        return service.uid
    return cast("MachineRequest", call.arguments["req"]).identity.uid
