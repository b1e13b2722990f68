"""What of a change concerns a deployment, and what is told of a pass. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ccm.machines import progress, reasons
from ccm.machines.rollout import Change, Revert
from ccm.machines.settings import Names
from ccm.model import Node
from ccm.model.machines import WORKING, DeploymentStatus, Machine, MachineDeployment, MachineSet
from ccm.model.names import NORMAL, WARNING
from ccm.model.node import condition_of


class Event(NamedTuple):
    """What is told of a deployment: `Normal` or `Warning`, in one word, for people."""

    kind: str
    reason: str
    message: str


def machine_matters(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a rollout may go on, or its status differs, because a machine changed."""
    return old is None or new is None or _seen(old) != _seen(new)


def only_arrived(old: Machine | None, new: Machine | None) -> bool:
    """Whether a machine works from now on, whatever else changed."""
    if old is None or new is None or old.is_deleting is not new.is_deleting:
        return False
    return new.phase in WORKING and old.phase not in WORKING


def node_matters(old: Node | None, new: Node, names: Names) -> bool:
    """Whether an update in place may go on because of a change of a node, or the autoscaler is kept
    off it by now, or not any more: the rollout for which that was done may have ended meanwhile.
    """
    return old is None or _told(old, names) != _told(new, names)


def _told(node: Node, names: Names) -> tuple[object, ...]:
    steps = (names.candidate, names.selected, names.update_result)
    labels = [node.labels.get(key) for key in steps]
    result = condition_of(node, names.update_condition)
    return (*labels, result and result.reason, names.hold_is_ours in node.annotations)


def set_matters(old: MachineSet | None, new: MachineSet | None) -> bool:
    """Return whether a change of a set is one; a resync is none."""
    return old is None or new is None or old.resource_version != new.resource_version


def _seen(machine: Machine) -> tuple[object, ...]:
    status = machine.status
    return (
        machine.uid,
        machine.is_deleting,
        machine.metadata.owner_references,
        machine.node_name,
        machine.was_moved,
        machine.priority,
        machine.marked,
        status.phase,
        status.since,
        status.preserve_until,
    )


def is_urgent(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    """Whether a status says more than other numbers, so that it is written at once."""
    known = [
        [(condition.type, condition.status, condition.reason) for condition in each.conditions]
        for each in (before, after)
    ]
    return before.observed != after.observed or known[0] != known[1]


def scaled(change: Change) -> Event | None:
    """What is told of a set that gets another size."""
    if change.replicas is None or change.replicas == change.set.replicas:
        return None
    way = "up" if change.replicas > change.set.replicas else "down"
    text = f"Scaled {way} machine set {change.set.name} to {change.replicas}"
    return Event(NORMAL, reasons.EVENT_SCALING, text)


def reverted(wish: Revert, obj: MachineDeployment) -> Event:
    """Return the event about the wish for an older template."""
    if wish.to is not None:
        text = f'Rolled back deployment "{obj.name}" to revision {wish.revision}'
        return Event(NORMAL, reasons.EVENT_ROLLBACK, text)
    reason = reasons.EVENT_SAME_TEMPLATE if wish.is_same else reasons.EVENT_NO_REVISION
    return Event(WARNING, reason, wish.why_not)


def refused(found: DeploymentStatus, *, selects_all: bool) -> Event | None:
    """Return the event about a deployment that cannot be used."""
    said = found.condition(progress.PROGRESSING)
    if said is None:
        return None
    return Event(WARNING, reasons.EVENT_SELECTING_ALL if selects_all else said.reason, said.message)
