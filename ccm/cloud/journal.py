"""The journal for provider authors: parts that a load balancer or VM needs besides itself.

The daemon records every load balancer and VM before it is created, so that the resource is found
even if its owner disappears. A provider that creates further resources, such as SSH keys, ports or
floating IPs, announces each of them:

    async with context.journal.part("sshkey", name) as part:
        key = await api.create_key(name)
        part.created(str(key.id))

The entry is stored durably before the block runs. If the daemon is killed inside the block, the
next leader looks for the part (`JournalParts`). Without a journal, the block simply runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ccm.cloud.errors import InvalidArgument
from ccm.cloud.machines import CHANGE_S, Credentials, Identity, MachineRequest
from ccm.cloud.operation import operation


class JournalPart(Protocol):
    """Record of a part, yielded by `PartJournal.part`."""

    def created(self, resource_id: str) -> None:
        """Record that the part exists.

        Args:
            resource_id: ID of the part in the cloud; empty = unknown.
        """


MAX_PART_NAME_BYTES = 1020
"""Maximum bytes of the name of a part, enough for 255 characters, which is the limit of many
clouds; the journal stores the names of many parts in one object."""

PartRecorder = Callable[[str, str, bool], AbstractAsyncContextManager[JournalPart]]
"""Function that records a part, given its kind, name and whether it is ephemeral."""

PART_RECORDER: ContextVar[PartRecorder | None] = ContextVar("part_recorder", default=None)
"""Recorder of the parts of the call in progress; None = nothing is recorded."""


class _Unrecorded:
    def created(self, resource_id: str) -> None:
        """Do nothing."""


class PartJournal:
    """Recorder of parts for providers (`Context.journal`). It has no state: all are equivalent."""

    @asynccontextmanager
    async def part(
        self, kind: str, name: str, *, ephemeral: bool = False
    ) -> AsyncIterator[JournalPart]:
        """Record a part that the block creates for the object of the current call.

        Use it inside `create_machine` and `ensure_load_balancer`, around the one request that
        creates the part; elsewhere nothing is recorded. Call `created` inside the block, also if
        the part exists already. If the block ends without that call, nothing counts as created.
        If the block raises an error, the part may exist, and its entry is kept.

        `delete_machine` and `ensure_load_balancer_deleted` must delete the part: after their
        success, it counts as removed.

        Args:
            kind: type of the part, in lower-case letters, such as `sshkey`.
            name: name of the part, unique among the parts of one kind and owner, with which
                `JournalParts.find_part` finds it. At most `MAX_PART_NAME_BYTES`.
            ephemeral: whether the block also deletes the part at its end. If the daemon is killed
                before, the part becomes an orphan, even if its owner exists.

        Raises:
            ValueError: `kind` contains other characters than lower-case letters.
            InvalidArgument: `name` is too long.
            Unavailable: the part cannot be recorded, and the daemon creates nothing without a
                record.
        """
        if not (kind.isascii() and kind.isalpha() and kind.islower()):
            raise ValueError(f"kind of a part is {kind!r}; use lower-case letters, as in sshkey")
        if (size := len(name.encode())) > MAX_PART_NAME_BYTES:
            raise InvalidArgument(
                f"name of the {kind} {name[:40]!r}... has {size} bytes; a part's name has at most "
                f"{MAX_PART_NAME_BYTES}"
            )
        recorder = PART_RECORDER.get()
        recording = recorder(kind, name, ephemeral) if recorder else nullcontext(_Unrecorded())
        async with recording as part:
            yield part


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRequest:
    """Request about one part of a machine.

    Attributes:
        kind: type of the part.
        name: name of the part.
        resource_id: ID of the part in the cloud; empty = unknown.
        identity: identity of the machine for which the part was created.
        provider_spec: provider spec of the machine's class.
        credentials: credentials for the cloud.
    """

    kind: str
    name: str
    resource_id: str = ""
    identity: Identity
    provider_spec: Mapping[str, Any] = field(repr=False)
    credentials: Credentials


@runtime_checkable
class MachineAccounts(Protocol):
    """Optional interface of the `MachineDriver` object: accounts that depend on the request."""

    def machine_account(self, req: MachineRequest) -> str:
        """Return the account of the cloud in which a machine's VM is; see `Cloud.account`. No I/O.

        Raises:
            CloudError: credentials and provider spec do not tell.
        """


@runtime_checkable
class JournalParts(Protocol):
    """Optional interface of the `MachineDriver` object: lookup of parts whose owner may be gone."""

    @operation()
    async def find_part(self, req: PartRequest) -> str | None:
        """Return the ID of a part; None if the cloud confirms that there is none.

        Return None also for a resource of that name whose labels or tags show another owner, and
        for a part that other machines use by now.
        """

    @operation(deadline_s=CHANGE_S, change=True)
    async def delete_part(self, req: PartRequest) -> None:
        """Delete the part that `find_part` returns for this request; succeed if there is none."""
