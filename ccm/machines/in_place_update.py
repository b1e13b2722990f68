"""In-place updates: updated machines move from the old set to the new set. No I/O.

Labels of a node hold the state of its update: candidate, selected, and the result, which an updater
on the node writes. An updated machine is moved to the new set. After the move, the sizes of the
sets are derived from their machines, so that an interrupted pass loses nothing. During an update,
old sets create no machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

import msgspec

from ccm.machines.drain import DrainTask, drain_task
from ccm.machines.replicas import Member, PopulatedSet
from ccm.machines.scaling import Fleet, Sizes, old_sizes, shrunk_sizes
from ccm.machines.settings import MachineSettings, Names
from ccm.model import Node, Taint
from ccm.model import node as model
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.names import STATUS_TRUE
from ccm.model.node import condition_of, node_condition_patch
from ccm.model.patches import Patch, uid_precondition, version_precondition
from ccm.model.times import parse_optional_time

_TRUE = "true"
_TAINTED = "True"


class NodeStep(Enum):
    """Change of a node's labels and taints."""

    CANDIDATE = "candidate"
    SELECT = "select"
    RELEASE = "release"
    """Remove the update labels and the taint of old nodes: after a rollback, the node's set has the
    newest template, and its update has not begun."""
    FINISH = "finish"
    """Uncordon an updated node; a taint keeps Pods off until its critical components are ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMove:
    """Move of an updated machine to the new set.

    Attributes:
        piece: the machine.
        old: set that loses the machine.
        new: set that gets the machine.
    """

    piece: Member
    old: PopulatedSet
    new: PopulatedSet


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateActions:
    """Actions of a pass for in-place updates.

    Attributes:
        sizes: new replicas of sets, by UID.
        moves: machines to move to the new set.
        nodes: changes of nodes.
        moved_members: moved machines whose `update_result` label is removed, as the move is
            complete.
    """

    sizes: Sizes = field(default_factory=dict)
    moves: Sequence[MachineMove] = ()
    nodes: Sequence[tuple[Node, NodeStep]] = ()
    moved_members: Sequence[Member] = ()


NOTHING = UpdateActions()


def plan_update(
    new: PopulatedSet | None,
    olds: Sequence[PopulatedSet],
    fleet: Fleet,
    names: Names,
    *,
    surge: int,
    is_manual: bool,
) -> UpdateActions:
    """Return the next actions for in-place updates.

    A pass does one of these: change sizes, finish moves, start moves, or select nodes. In addition,
    each pass updates the candidate labels.

    Args:
        new: the set of the newest template.
        olds: the other sets.
        fleet: sizes of all sets.
        names: names of the API group.
        surge: maximum number of additional machines during an update.
        is_manual: whether users select the nodes.
    """
    if new is None:
        return NOTHING
    marks = tuple(_candidate_changes(new, olds, names))
    if not fleet.is_known:
        return UpdateActions(nodes=marks)
    actions = _completed_moves(new, olds, names) or _grow(new, olds, fleet, names, surge)
    if actions is None:
        actions = _select(new, olds, fleet, names, is_manual=is_manual)
    return UpdateActions(
        sizes=actions.sizes,
        moves=actions.moves,
        nodes=(*marks, *actions.nodes),
        moved_members=actions.moved_members,
    )


def stop_update(
    new: PopulatedSet | None, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names
) -> UpdateActions:
    """Return the actions for a deployment that is paused, or not updated in place.

    Completed moves still change the sizes of both sets. Otherwise the old set would create
    replacements for the moved machines, and the new set could never shrink.
    """
    marks = tuple(_released_candidates(new, names))
    settled = _completed_moves(new, olds, names) if fleet.is_known else None
    if settled is None:
        return UpdateActions(nodes=marks)
    return UpdateActions(
        sizes=settled.sizes, nodes=(*marks, *settled.nodes), moved_members=settled.moved_members
    )


def _candidate_changes(
    new: PopulatedSet, olds: Sequence[PopulatedSet], names: Names
) -> Iterator[tuple[Node, NodeStep]]:
    """Yield nodes of old sets that need the candidate label, and nodes that have to lose it."""
    for old in olds:
        for node in _nodes(old):
            if names.candidate not in node.labels:
                yield node, NodeStep.CANDIDATE
    yield from _released_candidates(new, names)


def _released_candidates(new: PopulatedSet | None, names: Names) -> Iterator[tuple[Node, NodeStep]]:
    """Yield candidates of the new set, which need no update, unless their update has begun."""
    for node in _nodes(new) if new is not None else ():
        is_under_way = names.selected in node.labels or names.update_result in node.labels
        if names.candidate in node.labels and not is_under_way:
            yield node, NodeStep.RELEASE


def _completed_moves(
    new: PopulatedSet | None, olds: Sequence[PopulatedSet], names: Names
) -> UpdateActions | None:
    """Return the actions that complete moves; None = all moves are complete."""
    sets = olds if new is None else [*olds, new]
    sizes = {
        machine_set.uid: size
        for machine_set in sets
        if (size := _corrected_replicas(machine_set, names)) != machine_set.replicas
    }
    if sizes:
        return UpdateActions(sizes=sizes)
    # The replicas include the moved machines now, so these machines are no surplus once they lose
    # the label that marks them as moved.
    moved = [piece for machine_set in sets for piece in machine_set.live if piece.machine.was_moved]
    # A result on another node of an old set belongs to an earlier update, and is ignored.
    came = (piece.node for piece in moved if piece.node is not None)
    arrived = [*(_nodes(new) if new is not None else ()), *came]
    done = {
        node.name: node
        for node in arrived
        if node.labels.get(names.update_result) == names.update_successful
    }
    if moved or done:
        return UpdateActions(
            moved_members=moved, nodes=[(node, NodeStep.FINISH) for node in done.values()]
        )
    return None


def _corrected_replicas(machine_set: PopulatedSet, names: Names) -> int:
    """Return the replicas of a set, corrected for machines that moved to or from the set."""
    moved = sum(piece.machine.was_moved for piece in machine_set.live)
    surplus = len(machine_set.live) - machine_set.replicas
    if min(moved, surplus) > 0:
        return machine_set.replicas + min(moved, surplus)
    # A set without the label `scale_up_disabled` creates its missing machines. In a set with the
    # label, missing machines have moved away. A set whose template became the newest again keeps
    # the label until its replicas are corrected, so that it does not replace the moved machines.
    has_label = names.scale_up_disabled in (machine_set.metadata.labels or {})
    shrinks = has_label and not machine_set.is_deleting
    return len(machine_set.live) if shrinks and surplus < 0 else machine_set.replicas


def _grow(
    new: PopulatedSet, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names, surge: int
) -> UpdateActions | None:
    """Return the actions that bring the new set to the deployment's replicas; None = no action.

    Missing machines are created first, then updated machines are moved, then surge machines are
    created.
    """
    if new.replicas == fleet.replicas:
        return None
    if new.replicas > fleet.replicas:
        return UpdateActions(sizes={new.uid: fleet.replicas})
    if sizes := shrunk_sizes(fleet, surge):
        return UpdateActions(sizes=sizes)
    # Surplus machines of old sets count against the surge until they are deleted.
    room = min(fleet.replicas + surge - fleet.present, fleet.replicas - new.replicas)
    missing = fleet.replicas - new.replicas - sum(old.replicas for old in olds)
    if (more := min(missing, room)) > 0:
        return UpdateActions(sizes={new.uid: new.replicas + more})
    moves = [
        MachineMove(piece=piece, old=old, new=new)
        for old in olds
        for piece in old.live
        if _is_updated(piece, names)
    ]
    if moves:
        return UpdateActions(moves=moves)
    return UpdateActions(sizes={new.uid: new.replicas + room}) if room > 0 else None


def _is_updated(piece: Member, names: Names) -> bool:
    node = piece.node
    if node is None or piece.machine.phase is Phase.UPDATING:
        return False
    condition = condition_of(node, names.update_condition)
    is_announced = condition is not None and condition.reason == names.update_succeeded
    return is_announced and node.labels.get(names.update_result) == names.update_successful


def _select(
    new: PopulatedSet, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names, *, is_manual: bool
) -> UpdateActions:
    """Return the candidates to select for their update.

    Once the new set has all replicas, return smaller sizes of old sets instead.
    """
    if new.replicas >= fleet.replicas and fleet.new is not None:
        # Old machines are surplus now, but are deleted only as new machines become available.
        sizes = old_sizes(fleet, fleet.new)
        less = [sized for sized in fleet.old_active if sizes[sized.uid] < sized.replicas]
        return UpdateActions(sizes={sized.uid: sizes[sized.uid] for sized in less})
    pieces = [piece for old in olds if not old.is_deleting for piece in old.live]
    nodes = [piece.node for piece in pieces if piece.node is not None]
    chosen = [
        piece for piece in pieces if piece.node is not None and names.selected in piece.node.labels
    ]
    undergoing = len(chosen)
    if is_manual or undergoing + new.replicas >= fleet.replicas:
        return NOTHING
    available = sum(machine_set.available_at(machine_set.replicas) for machine_set in fleet.sets)
    sized = fleet.new
    missing = new.replicas - (sized.available_at(new.replicas) if sized is not None else 0)
    if fleet.wanted - fleet.floor - missing - undergoing <= 0:
        return NOTHING
    # `available` excludes unavailable machines already: subtract only selected ready machines.
    leave = sum(piece.machine.counts_as_ready for piece in chosen)
    count = min(available - leave - fleet.floor, fleet.replicas - new.replicas)
    ready = [
        node
        for node in nodes
        if names.candidate in node.labels and names.selected not in node.labels
    ]
    return UpdateActions(nodes=[(node, NodeStep.SELECT) for node in ready[: max(0, count)]])


def _nodes(machine_set: PopulatedSet) -> Sequence[Node]:
    nodes = [piece.node for piece in machine_set.live]
    return [node for node in nodes if node is not None and not node.is_deleting]


# --- patches ----------------------------------------------------------------------------------


def set_labels(
    machine_set: PopulatedSet, names: Names, *, is_old: bool, is_known: bool
) -> Mapping[str, str | None]:
    """Return the label change that stops or allows creations in a set; empty = no change.

    Args:
        machine_set: the set.
        names: names of the API group.
        is_old: whether the set is old: then it must not create machines.
        is_known: whether every set has observed its replicas. Before that, a set that may create
            machines again would replace machines that moved away.
    """
    is_kept = names.scale_up_disabled in (machine_set.metadata.labels or {})
    if is_kept is is_old or not (is_old or is_known):
        return {}
    return {names.scale_up_disabled: _TRUE if is_old else None}


def node_patch(node: Node, step: NodeStep, names: Names) -> Patch | None:
    """Return the patch that applies the change `step` to a node; None = up to date."""
    labels: dict[str, str | None] = dict.fromkeys(
        (names.candidate, names.selected, names.update_result)
    )
    match step:
        case NodeStep.CANDIDATE:
            taint = Taint(key=names.old_taint, value=_TAINTED, effect="PreferNoSchedule")
            taints = _taints_with(node, taint, names)
            return model.node_patch(node, labels={names.candidate: _TRUE}, taints=taints)
        case NodeStep.SELECT:
            return model.node_patch(node, labels={names.selected: _TRUE})
        case NodeStep.RELEASE:
            return model.node_patch(node, labels=labels, taints=_taints_with(node, None, names))
    critical = Taint(key=names.critical_taint, effect="NoSchedule")
    return model.node_patch(
        node,
        labels=labels,
        annotations={names.update_failed_reason: None},
        taints=_taints_with(node, critical, names),
        spec={"unschedulable": None} if node.spec.unschedulable else None,
    )


def _taints_with(node: Node, wanted: Taint | None, names: Names) -> Sequence[Taint]:
    """Return the node's taints without the `old_taint`, and with `wanted` added or replaced."""
    key = None if wanted is None else wanted.key
    taints = [taint for taint in node.taints if taint.key not in (names.old_taint, key)]
    return taints if wanted is None else [*taints, wanted]


# --- steps of a node ------------------------------------------------------------------------------
#
# Labels of the node request the update and contain its result. A condition of the node reports each
# step; the updater starts only once the condition has the reason `ReadyForUpdate`. The phase
# InPlaceUpdating is written before that reason: during the update the node may disappear, and its
# health is ignored.

UNDER_WAY = frozenset({Phase.UPDATING, Phase.UPDATE_FAILED})
"""Phases of a machine whose update is not complete: it runs, or has failed."""

_DRAINABLE = frozenset({Phase.RUNNING, Phase.UNKNOWN})
"""Phases in which a node is drained for its update. In other phases, the machine is joining, has
failed, is being deleted, or is already in an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDecision:
    """Next action for the in-place update of a node.

    Attributes:
        step: step to write as reason of the node's condition; empty = unchanged.
        drains: whether to drain the node.
        begins: whether the update may begin, because the node is drained.
    """

    step: str = ""
    drains: bool = False
    begins: bool = False


REST = UpdateDecision()


def decide(machine: Machine, node: Node, settings: MachineSettings) -> UpdateDecision:
    """Return the next action for the in-place update of a machine's node."""
    names = settings.names
    if not names.candidate or names.candidate not in node.labels or node.is_deleting:
        return REST
    step = _reason(node, names)
    if (says := _step_to_report(machine, node, step, names)) not in ("", step):
        return UpdateDecision(step=says)
    if names.selected not in node.labels:
        return REST
    if step == names.update_selected:
        # In the phase InPlaceUpdating, an interrupted pass wrote the phase but not the condition.
        return UpdateDecision(drains=machine.phase in _DRAINABLE or machine.phase is Phase.UPDATING)
    if step == names.update_drained:
        return UpdateDecision(begins=machine.phase in _DRAINABLE or machine.phase is Phase.UPDATING)
    is_settled = step != names.update_ready or names.update_result in node.labels
    return UpdateDecision(begins=not is_settled and machine.phase in _DRAINABLE)


def _step_to_report(machine: Machine, node: Node, step: str, names: Names) -> str:
    """Return the step that the node's condition has to report; empty = unchanged."""
    is_selected, has_result = names.selected in node.labels, names.update_result in node.labels
    if not step or (step == names.update_succeeded and not has_result):
        return names.update_waiting
    if not is_selected and not has_result and machine.phase not in UNDER_WAY:
        # The node was deselected, or the condition is left from an earlier update.
        return names.update_waiting
    if is_selected and step in (names.update_waiting, names.update_selected):
        return names.update_selected
    succeeded = update_succeeded(node, names=names)
    return "" if succeeded is None else names.update_succeeded if succeeded else names.update_failed


def update_succeeded(node: Node, *, names: Names) -> bool | None:
    """Return whether the update of a node succeeded; None = no result yet."""
    label = node.labels.get(names.update_result)
    results = {names.update_successful: True, names.update_unsuccessful: False}
    return results.get(label) if label is not None else None


def failure_reason(node: Node | None, settings: MachineSettings) -> str:
    """Return the updater's reason for a failed update, from the node; empty = none."""
    reason = settings.names.update_failed_reason
    return "" if node is None else node.annotations.get(reason, "")


def task(machine: Machine, node: Node, now: datetime, settings: MachineSettings) -> DrainTask:
    """Return the task to drain a node before its update; node and machine are kept."""
    condition = condition_of(node, settings.names.update_condition)
    since = parse_optional_time(condition.last_transition_time) if condition is not None else None
    force = machine.force_drain
    return drain_task(machine, node, since=since or now, now=now, settings=settings, force=force)


# --- statuses and conditions ----------------------------------------------------------------------


def updating_status(machine: Machine, now: datetime) -> MachineStatus:
    """Return the status of a machine whose drained node may now be updated."""
    text = f"Machine {machine.name} is undergoing an in-place update"
    state, kind = OperationState.PROCESSING, OperationType.IN_PLACE
    return machine.status.entered(Phase.UPDATING, text, state, kind, now, timeout_active=True)


def drain_failed_status(machine: Machine, why: str, now: datetime) -> MachineStatus:
    """Return the status of a machine whose node could not be drained.

    The text is that of Gardener's machine-controller-manager.
    """
    return replace(
        machine.status,
        description=f"Drain failed due to {why}. Will retry in next sync. Initiate node drain",
        code="",
        state=OperationState.PROCESSING.value,
        kind=OperationType.DRAIN.value,
        updated=now,
    )


def step_patch(
    machine: Machine, node: Node, now: datetime, settings: MachineSettings
) -> Patch | None:
    """Return the patch of the condition that reports the node's step; None = up to date."""
    decision = decide(machine, node, settings)
    if not decision.step:
        return None
    failed = decision.step == settings.names.update_failed
    message = failure_reason(node, settings) if failed else ""
    return _condition_patch(node, settings.names, decision.step, message, now)


def ready_patch(
    machine: Machine, node: Node, now: datetime, settings: MachineSettings
) -> Patch | None:
    """Return the patch of the condition that lets the updater begin; None = no change."""
    names = settings.names
    wanted = msgspec.structs.replace(machine, status=replace(machine.status, phase=Phase.UPDATING))
    decision = decide(wanted, node, settings)
    if not (decision.drains or decision.begins):
        return None
    return _condition_patch(node, names, names.update_ready, "", now)


def _condition_patch(node: Node, names: Names, reason: str, message: str, now: datetime) -> Patch:
    # `since` is not passed, so that the transition time of the condition is the time of the step.
    values = (STATUS_TRUE, reason, message)
    patch = node_condition_patch(node, names.update_condition, values, now)
    return {**patch, "metadata": uid_precondition(node) | version_precondition(node)}


def _reason(node: Node, names: Names) -> str:
    condition = condition_of(node, names.update_condition)
    return "" if condition is None else condition.reason
