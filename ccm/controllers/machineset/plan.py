"""Status texts of a set, and filters for changes that may affect a set. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import structs

from ccm.base import redact
from ccm.machines import reasons
from ccm.machines.failure_backoff import FailureBackoff
from ccm.model.machines import (
    CREATION_PHASES,
    READY_PHASES,
    Condition,
    Machine,
    MachineOwner,
    MachineSet,
    Operation,
    OperationState,
    OperationType,
    Phase,
    SetStatus,
)
from ccm.model.names import STATUS_TRUE
from ccm.model.times import format_time

_OURS = frozenset({reasons.CONDITION_REPLICA_FAILURE, reasons.CONDITION_SLOWED})
"""Condition types that this controller writes; all others are kept."""

_CREATED = READY_PHASES | {Phase.PENDING}
"""Phases after the cloud created a VM."""

_MOST_NAMES = 5
"""Maximum number of machine names in an event."""


def creation_succeeded(old: Machine | None, new: Machine | None) -> bool | None:
    """Return whether a new machine has just become ready (True) or failed (False).

    None = neither. A machine that fails after it was ready predicts nothing about new machines, so
    this failure does not count.
    """
    if old is None or new is None or new.status.kind != OperationType.CREATE.value:
        return None
    before, after = old.phase, new.phase
    if before is not after and after is Phase.FAILED:
        return False
    return True if after in READY_PHASES and before not in READY_PHASES else None


def creation_result(old: Machine | None, new: Machine | None) -> tuple[str, str] | None:
    """Return the cloud's new result for the creation of a machine's VM; None = no new result.

    The result is code and text of an error; both empty = the cloud created the VM.
    """
    if old is None or new is None or new.is_deleting:
        return None
    before, after = old.status, new.status
    if after.kind != OperationType.CREATE.value:
        return None
    if after.phase is Phase.CRASH_LOOP:
        results = [(status.code, status.description) for status in (before, after)]
        return results[1] if results[0] != results[1] and after.code else None
    was_created = before.phase in CREATION_PHASES and after.phase in _CREATED
    return ("", "") if was_created else None


def begins_unfreeze(old: MachineOwner | None, new: MachineOwner | None) -> bool:
    """Return whether a user has just set the annotation that unfreezes a set or deployment.

    The annotation also ends the back-off of a set.
    """
    return old is not None and new is not None and new.wants_unfreeze and not old.wants_unfreeze


def matters(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a change of a machine may affect its set."""
    return old is None or new is None or _seen(old) != _seen(new)


def set_matters(old: MachineSet | None, new: MachineSet) -> bool:
    """Return whether a change of a set affects more than its status."""
    if old is None:
        return True
    meta = [structs.replace(version.metadata, resource_version="") for version in (old, new)]
    return meta[0] != meta[1] or old.source.spec != new.source.spec


def _seen(machine: Machine) -> tuple[object, ...]:
    status, metadata = machine.status, machine.metadata
    failed = status.state == OperationState.FAILED.value
    return (
        machine.uid,
        machine.is_deleting,
        metadata.labels,
        metadata.annotations,
        metadata.owner_references,
        machine.spec,
        (status.phase, status.timeout_active, status.since, status.preserve_until),
        (status.kind, status.code, status.description, status.updated) if failed else None,
    )


def condition(kind: str, reason: str, text: str, now: datetime) -> Condition:
    # Redacted already, because the next pass compares the message with the stored message.
    message = redact.mask_for_api(text)
    return Condition(type=kind, status=STATUS_TRUE, reason=reason, message=message, since=now)


def failure_condition(text: str, *, reason: str, now: datetime) -> Condition:
    """Return the condition which says that machines cannot be created or deleted."""
    return condition(reasons.CONDITION_REPLICA_FAILURE, reason, text, now)


def slowed_condition(backoff: FailureBackoff, next_at: datetime, now: datetime) -> Condition:
    """Return the condition which says that creations are delayed until `next_at`."""
    text = (
        f"{backoff.failures} machines in a row could not be created or did not join; the next one "
        f"is created after {format_time(next_at)}. Correct the template, its class or its Secret. "
        f"Last error: {backoff.error}"
    )
    return condition(reasons.CONDITION_SLOWED, reasons.REASON_REPEATED_FAILURES, text, now)


def is_slowed(obj: MachineSet) -> bool:
    """Return whether the status of a set says that its creations are delayed."""
    kind = (reasons.CONDITION_SLOWED, STATUS_TRUE)
    return any(
        (present.type, present.status) == kind and present.since
        for present in obj.status.conditions
    )


def last_operation(
    kind: OperationType, machines: Sequence[str], error: object, now: datetime
) -> Operation:
    """Return the last operation for the status of a set; `error` None = it succeeded."""
    state = OperationState.SUCCESSFUL if error is None else OperationState.FAILED
    return Operation(
        description=operation_text(kind, machines)
        if error is None
        else redact.mask_for_api(str(error)),
        updated=now,
        state=state.value,
        kind=kind.value,
    )


def operation_text(kind: OperationType, machines: Sequence[str]) -> str:
    """Return the text about created or deleted machines, with up to 5 of their names."""
    done = "Created" if kind is OperationType.CREATE else "Deleted"
    named = ", ".join(machines[:_MOST_NAMES])
    more = len(machines) - _MOST_NAMES
    return f"{done} machine{'s' if len(machines) > 1 else ''} {named}" + (
        f" and {more} more" if more > 0 else ""
    )


def is_awaited(before: SetStatus, after: SetStatus) -> bool:
    """Return whether a deployment may be waiting for this change of its set's status.

    A deployment waits for two changes only: the status is about a newer spec, or the set becomes
    empty. The deployment controller computes all other counts itself.
    """
    return before.observed < after.observed or bool(before.replicas and not after.replicas)


def merged(before: Iterable[Condition], ours: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return conditions of other writers unchanged, and `ours` instead of our former conditions."""
    known = {existing.type: existing for existing in before}
    others = (other for other in known.values() if other.type not in _OURS)
    return (*others, *(own.after(known.get(own.type)) for own in ours))
