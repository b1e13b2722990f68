"""Preservation: a user or a set keeps a machine from being replaced for a time. No I/O.

A failed machine is kept so that a user can find the cause. Its Pods move to other nodes, and no new
Pods are scheduled on its node. The write that marks the machine Failed also stores the end of the
preservation, so that the machine set cannot replace the machine before that end is stored.

While a machine is preserved, an annotation keeps the autoscaler from deleting its node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from ccm.machines.drain import DrainTask, drain_task
from ccm.machines.settings import MachineSettings, Names
from ccm.model import Node, NodeCondition, Taint
from ccm.model import node as model
from ccm.model.machines import Machine, MachineStatus, Phase, Preserve
from ccm.model.meta import KubeObject
from ccm.model.names import (
    ANNOTATION_SCALE_DOWN_DISABLED,
    ANNOTATION_SCALE_DOWN_DISABLED_BY_US,
    EFFECT_NO_SCHEDULE,
    STATUS_FALSE,
    STATUS_TRUE,
)
from ccm.model.node import condition_of, node_condition_patch
from ccm.model.patches import Patch, annotations_patch
from ccm.model.times import format_time

NOW, WHEN_FAILED = Preserve.NOW.value, Preserve.WHEN_FAILED.value
WHEN_FAILED_BY_SET, NEVER = Preserve.AUTO.value, Preserve.NO.value
"""Values of the annotation `preserve`: preserve now; preserve when failed; preserve when failed
(written by a machine set); never preserve."""

VALUES = frozenset({NOW, WHEN_FAILED, WHEN_FAILED_BY_SET, NEVER})

DRAINED = "Preserved node drained successfully."
NOT_DRAINED = "Preserved node could not be drained."
"""Texts about the drain in the message of the condition `Preserved` (Gardener's MCM)."""


class PreservationAction(Enum):
    """Action on the preservation of a machine."""

    NOTHING = "nothing"
    PRESERVE = "preserve"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreservationDecision:
    """Decision about the preservation of a machine.

    Attributes:
        action: the action.
        value: value of the `preserve` annotation that applies, of the node or of the machine.
        until: end of the preservation; None = no end is planned or stored.
        removes_annotation: whether to remove the annotation, because the preservation has ended.
        node_value: value of the node's annotation to record on the machine; empty = none.
        by_node: whether the node's annotation applies, so that the machine's own annotation is
            removed.
    """

    action: PreservationAction
    value: str = ""
    until: datetime | None = None
    removes_annotation: bool = False
    node_value: str = ""
    by_node: bool = False


NOTHING = PreservationDecision(action=PreservationAction.NOTHING)


def decide(
    machine: Machine, node: Node | None, now: datetime, settings: MachineSettings
) -> PreservationDecision:
    """Decide about the preservation of a machine; `node` None = the machine has no node."""
    names, until = settings.names, machine.status.preserve_until
    if not names.preserve:
        return NOTHING
    own, last = machine.preserve, machine.preserve_of_node
    of_node = node.annotations.get(names.preserve, "") if node is not None else ""
    is_bound = until is not None or own or last or of_node
    if not is_bound or (of_node and of_node not in VALUES):
        return NOTHING
    own = own if own in VALUES else ""
    by_node = bool(of_node or last)
    requested = of_node if by_node else own
    if node is None:
        # The recorded annotation of a node that no longer exists still applies to its machine.
        requested, by_node, of_node = last or own, bool(last), last
    action, forgets = _action(requested, machine.phase, is_over=until is not None and until <= now)
    if action is PreservationAction.PRESERVE and until is None:
        until = now + timedelta(seconds=settings.of(machine).preserve_timeout_s)
    return PreservationDecision(
        action=action,
        value=requested,
        until=until,
        removes_annotation=forgets,
        node_value="" if forgets else of_node,
        by_node=by_node,
    )


def _action(requested: str, phase: Phase, *, is_over: bool) -> tuple[PreservationAction, bool]:
    """Return the action, and whether the annotation has to be removed."""
    if requested in ("", NEVER):
        return PreservationAction.STOP, False
    if is_over:
        return PreservationAction.STOP, True
    if requested == NOW or phase is Phase.FAILED:
        return PreservationAction.PRESERVE, False
    return PreservationAction.STOP, requested == WHEN_FAILED_BY_SET


def with_preservation(
    machine: Machine,
    status: MachineStatus,
    node: Node | None,
    now: datetime,
    settings: MachineSettings,
) -> MachineStatus:
    """Return the status to write: `status`, with the end of a preservation if `status` starts one.

    The end is removed from the status later, once the node is cleaned up.
    """
    decision = decide(msgspec.structs.replace(machine, status=status), node, now, settings)
    if decision.action is PreservationAction.PRESERVE:
        return replace(status, preserve_until=decision.until)
    return status


def wants_drain(
    machine: Machine, node: Node, decision: PreservationDecision, settings: MachineSettings
) -> bool:
    """Return whether the node of a failed, preserved machine has not been drained yet."""
    if decision.action is not PreservationAction.PRESERVE or machine.phase is not Phase.FAILED:
        return False
    condition = condition_of(node, settings.names.preserved_condition)
    return condition is None or DRAINED not in condition.message


def task(machine: Machine, node: Node, now: datetime, settings: MachineSettings) -> DrainTask:
    """Return the task to drain a preserved node.

    The node stays, so the Terminating condition is not set. A taint keeps new Pods from the node,
    because a cordon would look like a user's cordon.
    """
    since, force = machine.status.since or now, machine.force_drain
    return drain_task(
        machine, node, since=since, now=now, settings=settings, force=force, cordon=False
    )


# --- patches --------------------------------------------------------------------------------------


def node_patch(
    machine: Machine, node: Node, decision: PreservationDecision, settings: MachineSettings
) -> Patch | None:
    """Return the patch of the node's annotations and taints; None = up to date."""
    names = settings.names
    if decision.action is PreservationAction.NOTHING:
        return None
    is_kept, annotations = decision.action is PreservationAction.PRESERVE, dict[str, str | None]()
    ends = decision.action is PreservationAction.STOP and decision.until is not None
    if is_kept and node.annotations.get(ANNOTATION_SCALE_DOWN_DISABLED) != "true":
        annotations |= dict.fromkeys(_AUTOSCALER, "true")
    if ends and node.annotations.get(ANNOTATION_SCALE_DOWN_DISABLED_BY_US) == "true":
        annotations |= dict.fromkeys(_AUTOSCALER)
    if decision.removes_annotation:
        annotations[names.preserve] = None
    taints, others = None, [taint for taint in node.taints if taint.key != names.preserved_taint]
    is_tainted = len(others) < len(node.taints)
    if is_kept and machine.phase is Phase.FAILED and not is_tainted:
        taints = [*others, Taint(key=names.preserved_taint, effect=EFFECT_NO_SCHEDULE)]
    elif ends or (is_kept and machine.phase is Phase.RUNNING):
        taints = others
    return model.node_patch(node, annotations=annotations, taints=taints)


def condition_patch(
    machine: Machine,
    node: Node,
    decision: PreservationDecision,
    now: datetime,
    settings: MachineSettings,
    *,
    drained: bool | None,
) -> Patch | None:
    """Return the patch of the node's condition `Preserved`; None = up to date.

    Args:
        machine: the machine.
        node: the node.
        decision: the decision about the machine.
        now: the time.
        settings: names and settings.
        drained: whether the drain succeeded; None = there was no drain, or the drain is running.
    """
    names = settings.names
    if decision.until is None or decision.action is PreservationAction.NOTHING:
        return None
    before = condition_of(node, names.preserved_condition)
    values = status, _, _ = _condition_values(machine, before, decision, names, drained)
    if before is not None and (before.status, before.reason, before.message) == values:
        return None
    since = ""
    if before is not None and before.status == status:
        since = before.last_transition_time or ""
    return node_condition_patch(node, names.preserved_condition, values, now, since=since)


def machine_patch(
    obj: KubeObject, decision: PreservationDecision, settings: MachineSettings
) -> Patch | None:
    """Return the patch of the preservation annotations of a machine; None = up to date."""
    names = settings.names
    if decision.action is PreservationAction.NOTHING:
        return None
    wanted: dict[str, str | None] = {}
    if decision.by_node or decision.removes_annotation:
        wanted = {names.preserve: None, names.preserve_of_node: decision.node_value or None}
    return annotations_patch(obj, wanted)


_AUTOSCALER = (ANNOTATION_SCALE_DOWN_DISABLED, ANNOTATION_SCALE_DOWN_DISABLED_BY_US)


def _condition_values(
    machine: Machine,
    before: NodeCondition | None,
    decision: PreservationDecision,
    names: Names,
    drained: bool | None,
) -> tuple[str, str, str]:
    """Return status, reason and message of the condition."""
    if decision.action is PreservationAction.STOP:
        return STATUS_FALSE, names.preservation_stopped, ""
    assert decision.until is not None
    until = f"Machine preserved until {format_time(decision.until)}."
    reason = (
        names.preserved_by_us if decision.value == WHEN_FAILED_BY_SET else names.preserved_by_user
    )
    if machine.phase is not Phase.FAILED:
        return STATUS_TRUE, reason, until
    if (
        drained is None
        and before is not None
        and (DRAINED in before.message or NOT_DRAINED in before.message)
    ):
        drained = DRAINED in before.message
    if drained is False:
        return STATUS_FALSE, reason, f"{NOT_DRAINED} {until}"
    return STATUS_TRUE, reason, f"{DRAINED} {until}" if drained else until
