"""What is said of a set, and what of a change concerns one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from ccm.base import redact
from ccm.gardener import names
from ccm.gardener.sets import (
    MachineDeployment,
    MachineSet,
    MachineSetStatus,
    MachineSummary,
    wants_unfreeze,
)
from ccm.gardener.types import LastOperation, ObjectCondition
from ccm.machines.replicas import Counts
from ccm.machines.setbacks import Setbacks
from ccm.model import Node
from ccm.model.machines import CREATING, WORKING, Kind, Machine, Phase, State
from ccm.model.names import STATUS_TRUE
from ccm.model.owners import controller_of
from ccm.model.patches import Patch, same_version
from ccm.model.times import format_time, moment

KIND = "MachineSet"

_OURS = frozenset({names.CONDITION_REPLICA_FAILURE, names.CONDITION_SLOWED})
"""Types of the conditions that this controller writes; it leaves alone all others."""

_CREATED = WORKING | {Phase.PENDING}
"""Phases after the cloud created a VM."""

_MOST_NAMES = 5
"""That an event tells."""


class Outcome(Enum):
    """What became of a machine that was made."""

    JOINED = "joined"
    FAILED = "failed"


def outcome(old: Machine | None, new: Machine | None) -> Outcome | None:
    """What a change says about the making of a machine; None: nothing, or not for the first time.

    One that failed after it had worked says nothing about machines that are yet to be made.
    """
    if old is None or new is None or new.status.kind != Kind.CREATE.value:
        return None
    before, after = old.phase, new.phase
    if before is after:
        return None
    if after is Phase.FAILED:
        return Outcome.FAILED
    return Outcome.JOINED if after in WORKING and before not in WORKING else None


def answer(old: Machine | None, new: Machine | None) -> tuple[str, str] | None:
    """Return how the cloud answers the creation of a machine now; None = no new answer.

    The answer is the code and the text of a refusal; both empty = the VM was created.
    """
    if old is None or new is None or new.is_deleting:
        return None
    before, after = old.status, new.status
    if after.kind != Kind.CREATE.value:
        return None
    if after.phase is Phase.CRASH_LOOP:
        answers = [(one.code, one.description) for one in (before, after)]
        return answers[1] if answers[0] != answers[1] and after.code else None
    was_created = before.phase in CREATING and after.phase in _CREATED
    return ("", "") if was_created else None


def begins_unfreeze(
    old: MachineSet | MachineDeployment | None, new: MachineSet | MachineDeployment | None
) -> bool:
    """Return whether a user has just set the annotation that ends the pause of a set."""
    return old is not None and new is not None and wants_unfreeze(new) and not wants_unfreeze(old)


def owner_key(machine: Machine) -> str:
    """Key of the set that controls a machine; empty: none does."""
    found = controller_of(machine)
    return "" if found is None or found.kind != KIND else f"{machine.namespace}/{found.name}"


def matters(old: Machine | None, new: Machine | None) -> bool:
    """Whether a set may have something to do because of a change of a machine."""
    if old is None or new is None:
        return True
    return _seen(old) != _seen(new)


def set_matters(old: MachineSet | None, new: MachineSet) -> bool:
    """Whether a change of a set is more than one of its status."""
    if old is None:
        return True
    meta = [replace(one.metadata, resource_version="") for one in (old, new)]
    return meta[0] != meta[1] or old.spec != new.spec


def node_matters(old: Node | None, new: Node | None) -> bool:
    """Whether a set may have something to do because of a change of a node."""
    said = [
        None if one is None else one.annotations.get(names.ANNOTATION_PRESERVE)
        for one in (old, new)
    ]
    return said[0] != said[1]


def _seen(machine: Machine) -> tuple[object, ...]:
    status, metadata = machine.status, machine.metadata
    failed = status.state == State.FAILED.value
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


def failure(error: Exception, *, reason: str, now: datetime) -> ObjectCondition:
    """Says that machines cannot be made or deleted."""
    return ObjectCondition(
        type=names.CONDITION_REPLICA_FAILURE,
        status=STATUS_TRUE,
        reason=reason,
        # As it will be stored, or it would be found to differ each time.
        message=redact.public(str(error)),
        last_transition_time=format_time(now),
    )


def refusal(faults: Iterable[str], now: datetime) -> ObjectCondition:
    """Says that nothing can be done with a set as it is."""
    return failure(ValueError("; ".join(faults)), reason=names.REASON_INVALID, now=now)


def slowed(found: Setbacks, next_at: datetime, now: datetime) -> ObjectCondition:
    """Says that machines are made more slowly."""
    text = (
        f"{found.row} machines in a row failed before they worked; the next one is made after "
        f"{format_time(next_at)}. Correct the template, its class or its Secret. The last one: "
        f"{found.text}"
    )
    return ObjectCondition(
        type=names.CONDITION_SLOWED,
        status=STATUS_TRUE,
        reason=names.REASON_REPEATED_FAILURES,
        message=redact.public(text),
        last_transition_time=format_time(now),
    )


def slowed_since(obj: MachineSet) -> datetime | None:
    """Since when a set says that it makes machines more slowly; None: it does not."""
    for one in obj.status.conditions or ():
        if one.type == names.CONDITION_SLOWED and one.status == STATUS_TRUE:
            return moment(one.last_transition_time)
    return None


def operation(kind: Kind, machines: Sequence[str], error: object, now: datetime) -> LastOperation:
    """What a set did last."""
    return LastOperation(
        description=told(kind, machines) if error is None else redact.public(str(error)),
        last_update_time=format_time(now),
        state=(State.SUCCESSFUL if error is None else State.FAILED).value,
        type=kind.value,
    )


def told(kind: Kind, machines: Sequence[str]) -> str:
    """What was done, for people."""
    done = "Created" if kind is Kind.CREATE else "Deleted"
    named = ", ".join(machines[:_MOST_NAMES])
    more = len(machines) - _MOST_NAMES
    return f"{done} machine{'s' if len(machines) > 1 else ''} {named}" + (
        f" and {more} more" if more > 0 else ""
    )


def summaries(
    owner: MachineSet, failed: Iterable[str], machines: Mapping[str, Machine]
) -> Sequence[MachineSummary]:
    """What a set says of its machines that failed."""
    return [
        MachineSummary(
            name=one.name,
            provider_id=one.provider_id,
            last_operation=one.source.status.last_operation,
            owner_ref=owner.name,
        )
        for one in (machines[key] for key in failed)
    ]


def status_patch(
    obj: MachineSet,
    *,
    observed: int,
    counts: Counts,
    failed: Sequence[MachineSummary],
    conditions: Sequence[ObjectCondition],
    last: LastOperation | None,
) -> Patch | None:
    """The patch of the status; None where it says all that.

    Args:
        obj: the set as it is.
        observed: the generation that was acted upon.
        counts: of its machines.
        failed: those that failed.
        conditions: of the types that this controller writes; one that is missing is removed.
        last: what was done last; None = as it was.
    """
    before = obj.status
    after = MachineSetStatus(
        replicas=counts.replicas,
        fully_labeled_replicas=counts.labeled,
        ready_replicas=counts.ready,
        available_replicas=counts.available,
        preserved_failed_replicas=counts.preserved,
        observed_generation=max(observed, before.observed_generation),
        conditions=merged(before.conditions, conditions) or None,
        last_operation=before.last_operation if last is None else last,
        failed_machines=list(failed) or None,
        auto_preserve_failed_machine_count=counts.preserved_by_us,
    )
    if after == replace(
        before,
        conditions=before.conditions or None,
        failed_machines=before.failed_machines or None,
    ):
        return None
    return {"metadata": same_version(obj), "status": written(after)}


def is_awaited(before: MachineSetStatus, observed: int, counts: Counts) -> bool:
    """Whether a deployment may wait for what is said now: that the set knows how many are wanted,
    or that it is empty. All other counts the deployment makes itself.
    """
    return before.observed_generation < observed or bool(before.replicas and not counts.replicas)


def condition_patch(obj: MachineSet, observed: int, condition: ObjectCondition) -> Patch | None:
    """The patch that says one thing, and nothing about machines; None where it stands."""
    before = obj.status
    after = merged(before.conditions, [condition])
    if after == (before.conditions or []) and before.observed_generation >= observed:
        return None
    plain = [msgspec.to_builtins(one) for one in after]
    status = {"machineSetCondition": plain, "observedGeneration": observed}
    return {"metadata": same_version(obj), "status": status}


def merged(
    before: Sequence[ObjectCondition] | None, ours: Iterable[ObjectCondition]
) -> list[ObjectCondition]:
    """All conditions of a set: those of others as they are, and ours as they are to be."""
    known = {one.type: one for one in before or ()}
    found = [one for one in before or () if one.type not in _OURS]
    for one in ours:
        old = known.get(one.type)
        since = old is not None and old.status == one.status
        at = old.last_transition_time if old is not None and since else one.last_transition_time
        found.append(replace(one, last_transition_time=at))
    return found


def written(status: MachineSetStatus) -> Mapping[str, Any]:
    """A status as a merge patch: what is 0 or empty now has to be said too."""
    found = _whole(status)
    last = status.last_operation
    found["lastOperation"] = None if last == LastOperation() else _whole(last)
    return found


def _whole(found: msgspec.Struct) -> dict[str, Any]:
    """All fields; null for those that are empty."""
    zero = {
        one.encode_name: one.default if isinstance(one.default, int) else None
        for one in msgspec.structs.fields(found)
    }
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return zero | plain
