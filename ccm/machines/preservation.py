"""What keeps a machine from being replaced, for a time: by a wish of its own, or of its node. Pure.

A machine that has failed is kept for whoever wants to find out why; its Pods move, and nothing new
is scheduled on its node. The moment until which it is kept stands in its status, and goes there in
the very write that says that it has failed: there is no moment in which it could be replaced.

The annotation that keeps the autoscaler away is there as long as the node is preserved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

import msgspec

from ccm.machines.drain import DrainTask, drain_task
from ccm.machines.settings import Names, Settings
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
BY_US, NEVER = Preserve.AUTO.value, Preserve.NO.value
"""Wishes: at once; once it has failed; the same, by a machine set's doing; not."""

WISHES = frozenset({NOW, WHEN_FAILED, BY_US, NEVER})

DRAINED = "Preserved node drained successfully."
NOT_DRAINED = "Preserved node could not be drained."
"""What the message of the node's condition says of the drain (reference)."""


class Action(Enum):
    """What is to be done."""

    NOTHING = "nothing"
    PRESERVE = "preserve"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done about a machine.

    Attributes:
        action: what.
        wish: that counts.
        until: until when it is kept.
        forgets: whether the wish goes too: it was granted.
        node_wish: what its node wishes from now on; empty: nothing.
        by_node: whether the node has the say, so that the machine's own wish goes.
    """

    action: Action
    wish: str = ""
    until: datetime | None = None
    forgets: bool = False
    node_wish: str = ""
    by_node: bool = False


NOTHING = Decision(action=Action.NOTHING)


def decide(machine: Machine, node: Node | None, now: datetime, settings: Settings) -> Decision:
    """What is done about a machine; its node is None where it has none."""
    names, until = settings.names, machine.status.preserve_until
    if not names.preserve:
        return NOTHING
    own, last = machine.preserve, machine.preserve_of_node
    theirs = node.annotations.get(names.preserve, "") if node is not None else ""
    is_bound = until is not None or own or last or theirs
    if not is_bound or (theirs and theirs not in WISHES):
        return NOTHING
    own = own if own in WISHES else ""
    by_node = bool(theirs or last)
    wish = theirs if by_node else own
    if node is None:
        # What a node said that is gone by now was said of the machine.
        wish, by_node, theirs = last or own, bool(last), last
    action, forgets = _action(wish, machine.phase, is_over=until is not None and until <= now)
    if action is Action.PRESERVE and until is None:
        until = now + timedelta(seconds=settings.of(machine).preserve_timeout_s)
    return Decision(
        action=action,
        wish=wish,
        until=until,
        forgets=forgets,
        node_wish="" if forgets else theirs,
        by_node=by_node,
    )


def _action(wish: str, phase: Phase, *, is_over: bool) -> tuple[Action, bool]:
    """What is done, and whether the wish goes."""
    if wish in ("", NEVER):
        return Action.STOP, False
    if is_over:
        return Action.STOP, True
    if wish == NOW or phase is Phase.FAILED:
        return Action.PRESERVE, False
    return Action.STOP, wish == BY_US


def kept(
    machine: Machine, status: MachineStatus, node: Node | None, now: datetime, settings: Settings
) -> MachineStatus:
    """A status that is to be written, with the moment until which the machine is kept then.

    Where it is kept no longer, that is said only once nothing is left on the node.
    """
    found = decide(msgspec.structs.replace(machine, status=status), node, now, settings)
    if found.action is Action.PRESERVE:
        return replace(status, preserve_until=found.until)
    return status


def wants_drain(machine: Machine, node: Node, decision: Decision, settings: Settings) -> bool:
    """Whether a preserved node still has Pods that should move."""
    if decision.action is not Action.PRESERVE or machine.phase is not Phase.FAILED:
        return False
    condition = condition_of(node, settings.names.preserved_condition)
    return condition is None or DRAINED not in condition.message


def task(machine: Machine, node: Node, now: datetime, settings: Settings) -> DrainTask:
    """Return the task to drain a preserved node.

    The node stays: it is no other's business that its machine failed. The taint keeps Pods from
    it, and a cordon would be taken for a user's.
    """
    since, force = machine.status.since or now, machine.force_drain
    return drain_task(
        machine, node, since=since, now=now, settings=settings, force=force, cordon=False
    )


# --- what is written ------------------------------------------------------------------------------


def node_patch(
    machine: Machine, node: Node, decision: Decision, settings: Settings
) -> Patch | None:
    """Annotations and taint of the node; None: they are as they should be."""
    names = settings.names
    if decision.action is Action.NOTHING:
        return None
    is_kept, notes = decision.action is Action.PRESERVE, dict[str, str | None]()
    ends = decision.action is Action.STOP and decision.until is not None
    if is_kept and node.annotations.get(ANNOTATION_SCALE_DOWN_DISABLED) != "true":
        notes |= dict.fromkeys(_AUTOSCALER, "true")
    if ends and node.annotations.get(ANNOTATION_SCALE_DOWN_DISABLED_BY_US) == "true":
        notes |= dict.fromkeys(_AUTOSCALER)
    if decision.forgets:
        notes[names.preserve] = None
    taints, others = None, [one for one in node.taints if one.key != names.preserved_taint]
    is_tainted = len(others) < len(node.taints)
    if is_kept and machine.phase is Phase.FAILED and not is_tainted:
        taints = [*others, Taint(key=names.preserved_taint, effect=EFFECT_NO_SCHEDULE)]
    elif ends or (is_kept and machine.phase is Phase.RUNNING):
        taints = others
    return model.node_patch(node, annotations=notes, taints=taints)


def condition_patch(
    machine: Machine,
    node: Node,
    decision: Decision,
    now: datetime,
    settings: Settings,
    *,
    drained: bool | None,
) -> Patch | None:
    """The condition of the node; None: it is as it should be.

    Args:
        machine: the machine.
        node: the node.
        decision: what is done.
        now: the moment.
        settings: names.
        drained: how the drain ended that was due; None: none was, or it goes on.
    """
    names = settings.names
    if decision.until is None or decision.action is Action.NOTHING:
        return None
    before = condition_of(node, names.preserved_condition)
    said = status, _, _ = _wording(machine, before, decision, names, drained)
    if before is not None and (before.status, before.reason, before.message) == said:
        return None
    since = ""
    if before is not None and before.status == status:
        since = before.last_transition_time or ""
    return node_condition_patch(node, names.preserved_condition, said, now, since=since)


def machine_patch(obj: KubeObject, decision: Decision, settings: Settings) -> Patch | None:
    """Annotations of the object of the machine; None: they are as they should be."""
    names = settings.names
    if decision.action is Action.NOTHING:
        return None
    wanted: dict[str, str | None] = {}
    if decision.by_node or decision.forgets:
        wanted = {names.preserve: None, names.preserve_of_node: decision.node_wish or None}
    return annotations_patch(obj, wanted)


_AUTOSCALER = (ANNOTATION_SCALE_DOWN_DISABLED, ANNOTATION_SCALE_DOWN_DISABLED_BY_US)


def _wording(
    machine: Machine,
    before: NodeCondition | None,
    decision: Decision,
    names: Names,
    drained: bool | None,
) -> tuple[str, str, str]:
    """MachineStatus, reason and message of the condition."""
    if decision.action is Action.STOP:
        return STATUS_FALSE, names.preservation_stopped, ""
    assert decision.until is not None
    until = f"Machine preserved until {format_time(decision.until)}."
    reason = names.preserved_by_us if decision.wish == BY_US else names.preserved_by_user
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
