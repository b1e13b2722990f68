"""What is said of a set, and what of a change concerns one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import structs

from ccm.base import redact
from ccm.machines import reasons
from ccm.machines.setbacks import Setbacks
from ccm.model.machines import (
    CREATING,
    WORKING,
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
"""Types of the conditions that this controller writes; it leaves alone all others."""

_CREATED = WORKING | {Phase.PENDING}
"""Phases after the cloud created a VM."""

_MOST_NAMES = 5
"""That an event tells."""


def joined(old: Machine | None, new: Machine | None) -> bool | None:
    """Return whether a machine that was created works now, False if it failed; None: no news.

    One that failed after it had worked says nothing about machines that are yet to be made.
    """
    if old is None or new is None or new.status.kind != OperationType.CREATE.value:
        return None
    before, after = old.phase, new.phase
    if before is not after and after is Phase.FAILED:
        return False
    return True if after in WORKING and before not in WORKING else None


def answer(old: Machine | None, new: Machine | None) -> tuple[str, str] | None:
    """Return how the cloud answers the creation of a machine now; None = no new answer.

    The answer is the code and the text of a refusal; both empty = the VM was created.
    """
    if old is None or new is None or new.is_deleting:
        return None
    before, after = old.status, new.status
    if after.kind != OperationType.CREATE.value:
        return None
    if after.phase is Phase.CRASH_LOOP:
        answers = [(one.code, one.description) for one in (before, after)]
        return answers[1] if answers[0] != answers[1] and after.code else None
    was_created = before.phase in CREATING and after.phase in _CREATED
    return ("", "") if was_created else None


def begins_unfreeze(old: MachineOwner | None, new: MachineOwner | None) -> bool:
    """Return whether a user has just set the annotation that ends the pause of a set."""
    return old is not None and new is not None and new.wants_unfreeze and not old.wants_unfreeze


def matters(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a set may have something to do because of a change of a machine."""
    return old is None or new is None or _seen(old) != _seen(new)


def set_matters(old: MachineSet | None, new: MachineSet) -> bool:
    """Whether a change of a set is more than one of its status."""
    if old is None:
        return True
    meta = [structs.replace(one.metadata, resource_version="") for one in (old, new)]
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
    # The message as it will be stored, or it would be found to differ each time.
    message = redact.public(text)
    return Condition(type=kind, status=STATUS_TRUE, reason=reason, message=message, since=now)


def failure(text: str, *, reason: str, now: datetime) -> Condition:
    """Return the condition that machines cannot be created or deleted."""
    return condition(reasons.CONDITION_REPLICA_FAILURE, reason, text, now)


def slowed(found: Setbacks, next_at: datetime, now: datetime) -> Condition:
    """Says that machines are made more slowly."""
    text = (
        f"{found.row} machines in a row failed before they worked; the next one is made after "
        f"{format_time(next_at)}. Correct the template, its class or its Secret. The last one: "
        f"{found.text}"
    )
    return condition(reasons.CONDITION_SLOWED, reasons.REASON_REPEATED_FAILURES, text, now)


def slowed_since(obj: MachineSet) -> bool:
    """Return whether a set says that it creates machines more slowly."""
    kind = (reasons.CONDITION_SLOWED, STATUS_TRUE)
    return any((one.type, one.status) == kind and one.since for one in obj.status.conditions)


def operation(
    kind: OperationType, machines: Sequence[str], error: object, now: datetime
) -> Operation:
    """Return the last operation of a set."""
    state = OperationState.SUCCESSFUL if error is None else OperationState.FAILED
    return Operation(
        description=told(kind, machines) if error is None else redact.public(str(error)),
        updated=now,
        state=state.value,
        kind=kind.value,
    )


def told(kind: OperationType, machines: Sequence[str]) -> str:
    """What was done, for people."""
    done = "Created" if kind is OperationType.CREATE else "Deleted"
    named = ", ".join(machines[:_MOST_NAMES])
    more = len(machines) - _MOST_NAMES
    return f"{done} machine{'s' if len(machines) > 1 else ''} {named}" + (
        f" and {more} more" if more > 0 else ""
    )


def is_awaited(before: SetStatus, after: SetStatus) -> bool:
    """Return whether a deployment may wait for a status: that the set knows its replicas, or that
    it is empty. All other counts the deployment makes itself.
    """
    return before.observed < after.observed or bool(before.replicas and not after.replicas)


def merged(before: Iterable[Condition], ours: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return all conditions: those of other writers as they are, and ours as they are to be."""
    known = {one.type: one for one in before}
    others = (machine for machine in known.values() if machine.type not in _OURS)
    return (*others, *(one.after(known.get(one.type)) for one in ours))
