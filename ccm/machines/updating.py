"""An update in place on the node: it is emptied, handed over, and says what came of it. Pure.

Labels of the node say what is wanted, by whoever orders the update, and how it went, by whoever
does it on the node. A condition of the node answers, step by step; nobody touches the node before
it says that it is ready. The machine says first that it is updated, and its node then: from the
moment on in which a node may vanish for its update, nobody judges its health.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from ccm.machines.drain import DrainTask
from ccm.machines.settings import Names, Settings
from ccm.model import Node, NodeCondition
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.names import STATUS_TRUE
from ccm.model.patches import Patch, same_object, same_version
from ccm.model.times import format_time, moment

UNDER_WAY = frozenset({Phase.UPDATING, Phase.UPDATE_FAILED})
"""Phases in which somebody on the node is at work, or was and failed."""

_BEGINS = frozenset({Phase.RUNNING, Phase.UNKNOWN})
"""Phases in which a node is emptied for its update; in others it is not there, or comes or goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done about a node.

    Attributes:
        says: the step that its condition should tell; empty: the one it tells.
        drains: whether it is emptied.
        begins: whether it is empty, so that its update may begin.
    """

    says: str = ""
    drains: bool = False
    begins: bool = False


NOTHING = Decision()


def decide(machine: Machine, node: Node, settings: Settings) -> Decision:
    """What is done about a machine's node."""
    names = settings.names
    if not names.candidate or names.candidate not in node.labels or node.is_deleting:
        return NOTHING
    step = _reason(node, names)
    if (says := _says(machine, node, step, names)) not in ("", step):
        return Decision(says=says)
    if names.selected not in node.labels:
        return NOTHING
    if step == names.update_selected:
        # Updating by now: whoever said so did not come to tell the node.
        return Decision(drains=machine.phase in _BEGINS or machine.phase is Phase.UPDATING)
    if step == names.update_drained:
        return Decision(begins=machine.phase in _BEGINS or machine.phase is Phase.UPDATING)
    is_told = step != names.update_ready or names.update_result in node.labels
    return Decision(begins=not is_told and machine.phase in _BEGINS)


def _says(machine: Machine, node: Node, step: str, names: Names) -> str:
    """The step that the condition should tell; empty: the one it tells."""
    is_selected, has_result = names.selected in node.labels, names.update_result in node.labels
    if not step or (step == names.update_succeeded and not has_result):
        return names.update_waiting
    if not is_selected and not has_result and machine.phase not in UNDER_WAY:
        # Chosen no longer; or what it tells is left from an update before.
        return names.update_waiting
    if is_selected and step in (names.update_waiting, names.update_selected):
        return names.update_selected
    went = result(node, names=names)
    return "" if went is None else names.update_succeeded if went else names.update_failed


def result(node: Node, *, names: Names) -> bool | None:
    """How the update of a node went; None: nobody said."""
    said = node.labels.get(names.update_result)
    known = {names.update_successful: True, names.update_unsuccessful: False}
    return known.get(said) if said is not None else None


def why_failed(node: Node | None, settings: Settings) -> str:
    """What whoever updated the node said of his failure; empty: nothing."""
    reason = settings.names.update_failed_reason
    return "" if node is None else node.annotations.get(reason, "")


def drain_task(machine: Machine, node: Node, now: datetime, settings: Settings) -> DrainTask:
    """What is asked for: by force once its time is up, or if a person wants."""
    own, found = machine.drain_timeout_s, _condition(node, settings.names)
    since = moment(found.last_transition_time) if found is not None else None
    limit = timedelta(seconds=settings.drain_timeout_s if own is None else own)
    deadline = (since or now) + limit
    return DrainTask(
        machine=machine,
        node_name=node.name,
        force=machine.force_drain or now > deadline,
        deadline=deadline,
        max_evict_retries=machine.max_evict_retries,
        # The node stays, and its machine with it.
        terminating=False,
    )


# --- what is written ------------------------------------------------------------------------------


def begun(machine: Machine, now: datetime) -> MachineStatus:
    """The status of a machine whose node is empty."""
    return replace(
        machine.status,
        phase=Phase.UPDATING,
        description=f"Machine {machine.name} is undergoing an in-place update",
        code="",
        state=OperationState.PROCESSING.value,
        kind=OperationType.IN_PLACE.value,
        timeout_active=True,
        since=now,
        updated=now,
    )


def undrained(machine: Machine, why: str, now: datetime) -> MachineStatus:
    """The status of a machine whose node could not be emptied (texts: reference)."""
    return replace(
        machine.status,
        description=f"Drain failed due to {why}. Will retry in next sync. Initiate node drain",
        code="",
        state=OperationState.PROCESSING.value,
        kind=OperationType.DRAIN.value,
        updated=now,
    )


def step_patch(machine: Machine, node: Node, now: datetime, settings: Settings) -> Patch | None:
    """The condition that tells the step of the node as it is; None: it does."""
    found = decide(machine, node, settings)
    if not found.says:
        return None
    failed = found.says == settings.names.update_failed
    message = why_failed(node, settings) if failed else ""
    return _told(node, settings.names, found.says, message, now)


def ready_patch(machine: Machine, node: Node, now: datetime, settings: Settings) -> Patch | None:
    """The condition that hands an empty node over; None: it does, or is not wanted any more."""
    names = settings.names
    wanted = msgspec.structs.replace(machine, status=replace(machine.status, phase=Phase.UPDATING))
    found = decide(wanted, node, settings)
    if not (found.drains or found.begins):
        return None
    return _told(node, names, names.update_ready, "", now)


def _told(node: Node, names: Names, reason: str, message: str, now: datetime) -> Patch:
    text = format_time(now)
    # All of its fields, for those that a patch leaves out stay as they are. Its status is the same
    # in each step: by its time of transition the time of the step is known.
    wanted = {
        "type": names.update_condition,
        "status": STATUS_TRUE,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": text,
        "lastTransitionTime": text,
    }
    metadata = same_object(node) | same_version(node)
    return {"metadata": metadata, "status": {"conditions": [wanted]}}


def _condition(node: Node, names: Names) -> NodeCondition | None:
    conditions = node.status.conditions or ()
    return next((one for one in conditions if one.type == names.update_condition), None)


def _reason(node: Node, names: Names) -> str:
    found = _condition(node, names)
    return "" if found is None else found.reason
