"""What keeps a machine from being replaced, for a time: by a wish of its own, or of its node. Pure.

A machine that has failed is kept for whoever wants to find out why; its Pods move, and nothing new
is scheduled on its node. The moment until which it is kept stands in its status, and goes there in
the very write that says that it has failed: there is no moment in which it could be replaced.

The annotation that keeps the autoscaler away is there as long as the node is preserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from ccm.machines.drain import DrainTask
from ccm.machines.settings import Names, Settings, effective
from ccm.model import Node, NodeCondition, Taint
from ccm.model.machines import Machine, MachineStatus, Phase, Preserve
from ccm.model.meta import KubeObject
from ccm.model.names import (
    ANNOTATION_SCALE_DOWN_DISABLED,
    ANNOTATION_SCALE_DOWN_DISABLED_BY_US,
    EFFECT_NO_SCHEDULE,
    STATUS_FALSE,
    STATUS_TRUE,
)
from ccm.model.node import taints_value
from ccm.model.patches import Patch, same_object, same_version
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
        until = now + timedelta(seconds=effective(machine, settings).preserve_timeout_s)
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
    condition = _condition(node, settings.names)
    return condition is None or DRAINED not in condition.message


def drain_task(machine: Machine, node: Node, now: datetime, settings: Settings) -> DrainTask:
    """What is asked for of a preserved node: by force once its time is up, or if a person wants."""
    own, since = machine.drain_timeout_s, machine.status.since or now
    limit = timedelta(seconds=settings.drain_timeout_s if own is None else own)
    return DrainTask(
        machine=machine,
        node_name=node.name,
        force=machine.force_drain or now > since + limit,
        deadline=since + limit,
        max_evict_retries=machine.max_evict_retries,
        # The node stays: it is no other's business that its machine failed.
        terminating=False,
        # The taint keeps Pods from it, and a cordon would be taken for a person's.
        cordon=False,
        left_s=(since + limit - now).total_seconds(),
    )


# --- what is written ------------------------------------------------------------------------------


def node_patch(
    machine: Machine, node: Node, decision: Decision, settings: Settings
) -> Patch | None:
    """Annotations and taint of the node; None: they are as they should be."""
    names, metadata = settings.names, same_object(node)
    if decision.action is Action.NOTHING:
        return None
    is_kept, notes = decision.action is Action.PRESERVE, dict[str, str | None]()
    ends = decision.action is Action.STOP and decision.until is not None
    if is_kept and ANNOTATION_SCALE_DOWN_DISABLED not in _true(node):
        notes |= dict.fromkeys(_AUTOSCALER, "true")
    if ends and ANNOTATION_SCALE_DOWN_DISABLED_BY_US in _true(node):
        notes |= dict.fromkeys(_AUTOSCALER)
    if decision.forgets and names.preserve in node.annotations:
        notes[names.preserve] = None
    found: dict[str, Any] = {}
    tainted = any(one.key == names.preserved_taint for one in node.taints)
    if is_kept and machine.phase is Phase.FAILED and not tainted:
        taint = Taint(key=names.preserved_taint, effect=EFFECT_NO_SCHEDULE)
        found["spec"] = {"taints": taints_value([*node.taints, taint])}
    elif tainted and (ends or (is_kept and machine.phase is Phase.RUNNING)):
        others = [one for one in node.taints if one.key != names.preserved_taint]
        found["spec"] = {"taints": taints_value(others)}
    if not notes and not found:
        return None
    metadata |= same_version(node) | ({"annotations": notes} if notes else {})
    return {**found, "metadata": metadata}


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
    before = _condition(node, names)
    status, reason, message = _wording(machine, before, decision, names, drained)
    if before is not None and (before.status, before.reason, before.message) == (
        status,
        reason,
        message,
    ):
        return None
    moment = since = format_time(now)
    if before is not None and before.status == status and before.last_transition_time:
        since = before.last_transition_time
    # All of its fields, for those that a patch leaves out stay as they are.
    wanted = {
        "type": names.preserved_condition,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": since,
    }
    return {"metadata": same_object(node), "status": {"conditions": [wanted]}}


def machine_patch(obj: KubeObject, decision: Decision, settings: Settings) -> Patch | None:
    """Annotations of the object of the machine; None: they are as they should be."""
    names = settings.names
    if decision.action is Action.NOTHING:
        return None
    wanted: dict[str, str | None] = {}
    if decision.by_node or decision.forgets:
        wanted = {names.preserve: None, names.preserve_of_node: decision.node_wish or None}
    notes = {key: text for key, text in wanted.items() if obj.annotations.get(key) != text}
    if not notes:
        return None
    return {"metadata": same_object(obj) | same_version(obj) | {"annotations": notes}}


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


def _condition(node: Node, names: Names) -> NodeCondition | None:
    conditions = node.status.conditions or ()
    return next((one for one in conditions if one.type == names.preserved_condition), None)


def _true(node: Node) -> Mapping[str, str]:
    """Those of the autoscaler's annotations that say yes."""
    return {
        key: text for key, text in node.annotations.items() if key in _AUTOSCALER and text == "true"
    }
