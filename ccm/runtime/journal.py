"""Records of provider calls in the journal of cloud resources.

The intent is durable before a resource is created, and the ID follows within a second. A deletion
is recorded before it begins. The entry counts as removed, durably, once the provider confirms that
nothing is left, and before the owner loses its finalizer. So a resource costs two writes when it is
created and two when it is deleted. Updates and reads write nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from msgspec import json, structs

from ccm.base import log, redact
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient, Record, unrecorded
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

MAX_ANNOTATION_BYTES = 6000
"""Maximum bytes of the annotations of an entry in JSON; those that exceed it are omitted. A page of
the largest entries still fits into every store."""

REMOVAL_DELAY_S = 0.2
"""Seconds for which confirmed deletions wait for others, so that many are one write."""

CANCELLED = "the call was cancelled, or exceeded its deadline"

_ENSURE, _REMOVE = LoadBalancer.ensure_load_balancer, LoadBalancer.ensure_load_balancer_deleted
_CREATE, _DELETE = MachineDriver.create_machine, MachineDriver.delete_machine
_CREATIONS = {method.__name__ for method in (_ENSURE, _CREATE)}
_DELETIONS = {method.__name__ for method in (_REMOVE, _DELETE)}


class CallJournal:
    """Recorder of calls (`CallRecorder`) that writes to the journal.

    If the journal is unavailable, deletions proceed, and so do creations unless `blocks`. If
    another leader has written to the journal, neither proceeds.

    Args:
        journal: the journal; may be opened later.
        blocks: whether nothing is created without a durable record.
        cluster_of: returns `Owner.cluster` for the API version of a machine.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        blocks: bool = False,
        cluster_of: Callable[[str], str] = lambda _api_version: "",
    ) -> None:
        self.journal = journal
        self._blocks = blocks
        self._cluster_of = cluster_of
        self._active: Counter[str] = Counter()

    def is_active(self, entry: JournalEntry) -> bool:
        """Return whether a recorded call about the entry's owner is in progress."""
        return self._active[entry.owner.uid] > 0

    @asynccontextmanager
    async def recording(self, client: CloudClient, call: ProviderCall) -> AsyncIterator[Record]:
        """See `CallRecorder.recording`."""
        recording = self._recording_of(client, call)
        if recording is None:
            yield unrecorded
            return
        self._active[call.subject] += 1
        try:
            await recording.begin()
            try:
                yield recording.end
            except BaseException as error:
                fault = errors.normalize(error)
                mask_user_data(fault, call)
                # RetryAfter is no failure: the next reconcile continues the call.
                if not isinstance(fault, errors.RetryAfter):
                    is_cancelled = isinstance(error, asyncio.CancelledError)
                    await recording.fail(fault, CANCELLED if is_cancelled else str(fault))
                raise
        finally:
            self._active[call.subject] -= 1
            self._active += Counter()  # removes zeros

    async def store(self, *entries: JournalEntry, creates: str = "") -> None:
        """Write entries durably before a call.

        Args:
            entries: the entries.
            creates: the resource, for error messages; empty = the call creates none.

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
        """Change an entry, to be written soon; without an error, `attempts` becomes 0."""
        attempts = entry.attempts + 1 if last_error else 0
        self.journal.put_later(
            structs.replace(entry, attempts=attempts, last_error=last_error, **fields)
        )

    def _recording_of(
        self, client: CloudClient, call: ProviderCall
    ) -> _Creation | _Deletion | None:
        """Return the recording of a call; None = nothing is recorded."""
        arguments: Mapping[str, Any] = call.arguments
        request: MachineRequest | None = arguments.get("req")
        if call.verb in _DELETIONS:
            account, is_server = client.account_of(request), request is not None
            return _Deletion(self, call.subject, account, is_server=is_server)
        if call.verb not in _CREATIONS:
            return None
        if request is None:
            service: Service = arguments["service"]
            # A Service with an address in its status has a load balancer.
            creation = _Creation(self, balancer_entry(client, service), bool(service.ingress))
        elif (owner := request.owner) is None:
            return None  # no object of the cluster owns the VM
        else:
            account, cluster = client.account_of(request), self._cluster_of(owner.api_version)
            entry = server_entry(client.name, account, request, cluster=cluster)
            creation = _Creation(self, entry)
        PART_RECORDER.set(creation.part)  # for this call only: each call has a task of its own
        return creation


@dataclass(slots=True)
class _Deletion:
    """Recorded deletion of all resources of an owner.

    Attributes:
        uid: UID of the owner; a text that is no UID if the owner is unknown.
        account: account of the cloud in which the call deletes.
        is_server: whether the call deletes a VM.
    """

    calls: CallJournal
    uid: str
    account: str
    is_server: bool

    async def begin(self) -> None:
        entries = [structs.replace(entry, state=EntryState.DELETING) for entry in self._existing()]
        await self.calls.store(*entries)

    async def end(self, _answer: object) -> None:
        # A successful deletion call confirms the absence of all parts, too. Durable before the
        # owner is released: without an owner, an entry in the state `DELETING` is reported until a
        # user drops it.
        settled = {"state": EntryState.REMOVED, "attempts": 0, "last_error": ""}
        removed = [structs.replace(entry, **settled) for entry in self._existing()]
        with suppress(PersistenceError):
            await self.calls.journal.put(*removed, delay_s=REMOVAL_DELAY_S)

    async def fail(self, fault: errors.CloudError, text: str) -> None:
        if isinstance(fault, errors.NotFound) and self.is_server:
            await self.end(None)  # the absence is confirmed
            return
        for entry in self._existing():
            self.calls.change(entry, last_error=text)

    def _existing(self) -> list[JournalEntry]:
        return [
            entry
            for entry in self.calls.journal.by_owner(self.uid)
            # With credentials of another account, the provider finds nothing to delete.
            if entry.state is not EntryState.REMOVED and entry.may_be_in(self.account)
        ]


@dataclass(slots=True)
class _Creation:
    """Recorded creation of one resource; also records its parts (`PartRecorder`).

    Attributes:
        entry: the intent.
        exists: whether the resource is known to exist, even if the journal has no entry for it.
    """

    calls: CallJournal
    entry: JournalEntry
    exists: bool = False

    async def begin(self) -> None:
        entry, current = self.entry, self._current
        if current.state is EntryState.CREATED:
            return
        creates = f"{entry.resource} {entry.intended_name}"
        if current.state is EntryState.INTENT:
            creates = "" if self.exists else creates
            # The new intent replaces that of an earlier attempt, which may have another name.
            kept = {"attempts": current.attempts, "last_error": current.last_error}
            entry = structs.replace(entry, created_at=current.created_at, **kept)
        await self.calls.store(entry, creates=creates)

    def created(self, resource_id: str) -> None:
        """Record that the resource exists. Raises TypeError if the ID is no text."""
        if not isinstance(resource_id, str):
            # Once stored, it would make the whole page unreadable.
            raise TypeError(
                f"the ID of {self.entry.resource} {self.entry.intended_name} is {resource_id!r}; "
                "call created with text, such as str(key.id)"
            )
        self.calls.change(self._current, state=EntryState.CREATED, resource_id=resource_id)

    async def end(self, answer: object) -> None:
        wanted, entry = self.entry, self._current
        known = answer.provider_id if isinstance(answer, MachineInfo) else wanted.resource_id
        if entry.intended_name != wanted.intended_name:
            # With the former annotations, the provider would look for the former name.
            entry = structs.replace(
                entry, intended_name=wanted.intended_name, annotations=wanted.annotations
            )
        self.calls.change(entry, state=EntryState.CREATED, resource_id=known or entry.resource_id)

    async def fail(self, fault: errors.CloudError, text: str) -> None:
        if (entry := self._current).state is not EntryState.INTENT:
            return
        if isinstance(fault, errors.Unimplemented | errors.ImplementedElsewhere):
            self.calls.journal.put_later(drop=[entry.name])
        else:
            self.calls.change(entry, last_error=text)

    @asynccontextmanager
    async def part(self, kind: str, name: str, ephemeral: bool) -> AsyncIterator[JournalPart]:
        """See `PartJournal.part`."""
        named = {"resource": kind, "purpose": name, "intended_name": name, "annotations": {}}
        entry = structs.replace(
            self.entry,
            name=entry_name(kind, self.entry.owner.uid, name, self.entry.account),
            resource_id="",
            ephemeral=ephemeral,
            **named,
        )
        part = _Creation(self.calls, entry)
        await part.begin()
        yield part
        # Not reached after an error: then the part may exist.
        if part._current.state is EntryState.INTENT:
            self.calls.journal.put_later(drop=[entry.name])
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
    account = client.cloud.account
    return JournalEntry(
        name=entry_name(LOAD_BALANCER, service.uid, account=account),
        resource=LOAD_BALANCER,
        provider=client.name,
        account=account,
        owner=_owner(service.reference),
        state=EntryState.INTENT,
        intended_name=name,
        resource_id=name,
        annotations=_annotations(service, client),
    )


def server_entry(
    provider: str, account: str, request: MachineRequest, *, cluster: str = ""
) -> JournalEntry:
    """Return the intent to create the VM of a machine.

    Args:
        provider: name of the provider.
        account: see `JournalEntry`.
        request: request about the machine, with its owner.
        cluster: see `Owner`.
    """
    assert request.owner is not None
    return JournalEntry(
        name=entry_name(SERVER, request.owner.uid, account=account),
        resource=SERVER,
        provider=provider,
        account=account,
        owner=_owner(request.owner, cluster),
        state=EntryState.INTENT,
        machine_class=request.identity.pool,
        intended_name=request.identity.name,
        resource_id=request.provider_id,
    )


def _owner(reference: ObjectReference, cluster: str = "") -> Owner:
    names = ("api_version", "kind", "namespace", "name", "uid")
    return Owner(**{name: getattr(reference, name) for name in names}, cluster=cluster)


def _annotations(service: Service, client: CloudClient) -> dict[str, str]:
    """Return the annotations with the prefixes that the provider declares."""
    prefixes = tuple(client.cloud.service_annotations or ())
    kept, left_bytes = dict[str, str](), MAX_ANNOTATION_BYTES
    for key in sorted(filter(lambda key: key.startswith(prefixes), service.annotations)):
        value = redact.mask_text(service.annotations[key])
        if (size := len(json.encode((key, value)))) <= left_bytes:
            kept[key] = value
            left_bytes -= size
    return kept
