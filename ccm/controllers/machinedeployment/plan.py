"""Filters for changes that may affect a deployment, and the events of a pass. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from ccm.machines import progress, reasons
from ccm.machines.rollout import Rollback, SetChange
from ccm.machines.settings import Names
from ccm.model import Node
from ccm.model.machines import (
    READY_PHASES,
    DeploymentStatus,
    Machine,
    MachineDeployment,
    MachineSet,
)
from ccm.model.names import NORMAL, WARNING
from ccm.model.node import condition_of
from ccm.model.patches import Patch


class DeploymentEvent(NamedTuple):
    """Event on a deployment."""

    kind: str
    reason: str
    message: str


def machine_matters(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a change of a machine may affect the rollout or its status."""
    return old is None or new is None or _seen(old) != _seen(new)


def has_started_working(old: Machine | None, new: Machine | None) -> bool:
    """Return whether a machine has just become ready."""
    if old is None or new is None or old.is_deleting is not new.is_deleting:
        return False
    return new.phase in READY_PHASES and old.phase not in READY_PHASES


def node_matters(old: Node | None, new: Node, names: Names) -> bool:
    """Return whether a change of a node may affect the rollout.

    Two things count: the steps of an in-place update, and our annotation that keeps the autoscaler
    from scaling down the node. The annotation counts because it must be removed if the rollout that
    set it has ended.
    """
    return old is None or _relevant_node_fields(old, names) != _relevant_node_fields(new, names)


def _relevant_node_fields(node: Node, names: Names) -> tuple[object, ...]:
    steps = (names.candidate, names.selected, names.update_result)
    labels = [node.labels.get(key) for key in steps]
    result = condition_of(node, names.update_condition)
    return (*labels, result and result.reason, names.hold_is_ours in node.annotations)


def set_matters(old: MachineSet | None, new: MachineSet | None) -> bool:
    """Return whether a set changed; a resync is no change."""
    return old is None or new is None or old.resource_version != new.resource_version


def has_become_current(old: MachineSet | None, new: MachineSet | None) -> bool:
    """Return whether the status has just caught up with the spec, for which `scaling` waits."""
    if old is None or new is None or old.uid != new.uid:
        return False
    return new.is_status_current and not old.is_status_current


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


def is_urgent(before: DeploymentStatus, after: DeploymentStatus, patch: Patch) -> bool:
    """Return whether a status must be written at once because more changed than its counts.

    `patch` is the patch that writes the status; it has no conditions if the API group has none.
    """
    known = [
        [(condition.type, condition.status, condition.reason) for condition in status.conditions]
        for status in (before, after)
    ]
    has_other_conditions = "conditions" in patch["status"] and known[0] != known[1]
    return before.observed != after.observed or has_other_conditions


def scaling_event(change: SetChange) -> DeploymentEvent | None:
    """Return the event about a set that gets another size; None = its size does not change."""
    if change.replicas is None or change.replicas == change.set.replicas:
        return None
    way = "up" if change.replicas > change.set.replicas else "down"
    text = f"Scaled {way} machine set {change.set.name} to {change.replicas}"
    return DeploymentEvent(NORMAL, reasons.EVENT_SCALING, text)


def rollback_event(rollback: Rollback, obj: MachineDeployment) -> DeploymentEvent:
    """Return the event about the result of a rollback request."""
    if rollback.to is not None:
        text = f'Rolled back deployment "{obj.name}" to revision {rollback.revision}'
        return DeploymentEvent(NORMAL, reasons.EVENT_ROLLBACK, text)
    reason = reasons.EVENT_SAME_TEMPLATE if rollback.is_same else reasons.EVENT_NO_REVISION
    return DeploymentEvent(WARNING, reason, rollback.error)


def invalid_event(status: DeploymentStatus, *, selects_all: bool) -> DeploymentEvent | None:
    """Return the event about an invalid deployment; None = no condition Progressing in the status.

    Args:
        status: status whose condition Progressing has the reason and message of the event.
        selects_all: whether the selector of the deployment is empty.
    """
    condition = status.condition(progress.PROGRESSING)
    if condition is None:
        return None
    return DeploymentEvent(
        WARNING, reasons.EVENT_SELECTING_ALL if selects_all else condition.reason, condition.message
    )
