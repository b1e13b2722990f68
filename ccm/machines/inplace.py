"""Machines that are updated where they are: they change hands, from the old set to the new. Pure.

An update passes through states that labels of the nodes tell: candidate, selected, and the result,
which somebody on the node writes. A machine that was updated is moved to the new set; what the
sets want follows from what they have then, so that nothing is lost where a pass ends halfway. Old
sets make no machines meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

import msgspec

from ccm.machines.drain import DrainTask, drain_task
from ccm.machines.replicas import Member, PopulatedSet
from ccm.machines.scaling import Fleet, Sizes, down, lessened
from ccm.machines.settings import Names, Settings
from ccm.model import Node, Taint
from ccm.model import node as model
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.names import STATUS_TRUE
from ccm.model.node import condition_of, node_condition_patch
from ccm.model.patches import Patch, same_object, same_version
from ccm.model.times import moment

_TRUE = "true"
_TAINTED = "True"


class NodeStep(Enum):
    """What becomes of a node."""

    CANDIDATE = "candidate"
    SELECT = "select"
    RELEASE = "release"
    """It is no candidate any more: its set is the new one again."""
    FINISH = "finish"
    """It was updated, and is in use again once its critical components are ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A machine that changes hands.

    Attributes:
        piece: the machine.
        old: the set that it leaves.
        new: the set that it comes to.
    """

    piece: Member
    old: PopulatedSet
    new: PopulatedSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What is done about machines that are updated in place.

    Attributes:
        sizes: of sets, by UID, that change.
        moves: machines that change hands.
        nodes: what becomes of nodes.
        arrived: machines of the new set that lose the mark of their move.
    """

    sizes: Sizes = field(default_factory=dict)
    moves: Sequence[Move] = ()
    nodes: Sequence[tuple[Node, NodeStep]] = ()
    arrived: Sequence[Member] = ()


NOTHING = Update()


def update(
    new: PopulatedSet | None,
    olds: Sequence[PopulatedSet],
    fleet: Fleet,
    names: Names,
    *,
    surge: int,
    is_manual: bool,
) -> Update:
    """What is done now; one thing after the other.

    Args:
        new: the set of the newest template.
        olds: the others.
        fleet: both, as far as their sizes are concerned.
        names: names of the API group.
        surge: most further machines while machines are updated.
        is_manual: somebody else selects the nodes.
    """
    if new is None:
        return NOTHING
    marks = tuple(_marks(new, olds, names))
    if not fleet.is_known:
        return Update(nodes=marks)
    found = _settled(new, olds, names) or _grown(new, olds, fleet, names, surge)
    if found is None:
        found = _chosen(new, olds, fleet, names, is_manual=is_manual)
    return Update(
        sizes=found.sizes,
        moves=found.moves,
        nodes=(*marks, *found.nodes),
        arrived=found.arrived,
    )


def ended(
    new: PopulatedSet | None, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names
) -> Update:
    """What is done about an update that goes no further: it is paused, or machines are exchanged in
    another way. Who changed hands is counted where it is: otherwise what it left would make another
    one, and what it came to could never shrink.
    """
    marks = tuple(_released(new, names))
    found = _settled(new, olds, names) if fleet.is_known else None
    if found is None:
        return Update(nodes=marks)
    return Update(sizes=found.sizes, nodes=(*marks, *found.nodes), arrived=found.arrived)


def _marks(
    new: PopulatedSet, olds: Sequence[PopulatedSet], names: Names
) -> Iterator[tuple[Node, NodeStep]]:
    """Candidates that are none yet, and those that are none any more."""
    for one in olds:
        for node in _nodes(one):
            if names.candidate not in node.labels:
                yield node, NodeStep.CANDIDATE
    yield from _released(new, names)


def _released(new: PopulatedSet | None, names: Names) -> Iterator[tuple[Node, NodeStep]]:
    """Candidates of the new set: nothing is to be updated any more."""
    for node in _nodes(new) if new is not None else ():
        is_under_way = names.selected in node.labels or names.update_result in node.labels
        if names.candidate in node.labels and not is_under_way:
            yield node, NodeStep.RELEASE


def _settled(new: PopulatedSet | None, olds: Sequence[PopulatedSet], names: Names) -> Update | None:
    """What the sets want follows from what moved; None: it does."""
    sets = olds if new is None else [*olds, new]
    sizes = {one.uid: size for one in sets if (size := _size(one, names)) != one.replicas}
    if sizes:
        return Update(sizes=sizes)
    # The sets want them by now, so that none is one too many without its mark.
    moved = [piece for one in sets for piece in one.live if piece.machine.was_moved]
    # What an old set was updated to before counts for nothing any more.
    came = (piece.node for piece in moved if piece.node is not None)
    arrived = [*(_nodes(new) if new is not None else ()), *came]
    done = {
        one.name: one
        for one in arrived
        if one.labels.get(names.update_result) == names.update_successful
    }
    if moved or done:
        return Update(arrived=moved, nodes=[(one, NodeStep.FINISH) for one in done.values()])
    return None


def _size(one: PopulatedSet, names: Names) -> int:
    """What a set wants once it wants what moved to it, and not what moved away."""
    moved = sum(piece.machine.was_moved for piece in one.live)
    surplus = len(one.live) - one.replicas
    if min(moved, surplus) > 0:
        return one.replicas + min(moved, surplus)
    # Without the label the set would make the machine that it lacks. One that is the new set again
    # bears it still: what moved away is where it is wanted, and is not made once more.
    has_label = names.scale_up_disabled in (one.metadata.labels or {})
    shrinks = has_label and not one.is_deleting
    return len(one.live) if shrinks and surplus < 0 else one.replicas


def _grown(
    new: PopulatedSet, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names, surge: int
) -> Update | None:
    """The new set gets machines: those that were updated, or further ones; None: it has all."""
    if new.replicas == fleet.replicas:
        return None
    if new.replicas > fleet.replicas:
        return Update(sizes={new.uid: fleet.replicas})
    if sizes := lessened(fleet, surge):
        return Update(sizes=sizes)
    # Machines of old sets that are to go, and are there, leave no room.
    room = min(fleet.replicas + surge - fleet.present, fleet.replicas - new.replicas)
    missing = fleet.replicas - new.replicas - sum(one.replicas for one in olds)
    if (more := min(missing, room)) > 0:
        return Update(sizes={new.uid: new.replicas + more})
    moves = [
        Move(piece=piece, old=one, new=new)
        for one in olds
        for piece in one.live
        if _is_updated(piece, names)
    ]
    if moves:
        return Update(moves=moves)
    return Update(sizes={new.uid: new.replicas + room}) if room > 0 else None


def _is_updated(piece: Member, names: Names) -> bool:
    node = piece.node
    if node is None or piece.machine.phase is Phase.UPDATING:
        return False
    found = condition_of(node, names.update_condition)
    is_told = found is not None and found.reason == names.update_succeeded
    return is_told and node.labels.get(names.update_result) == names.update_successful


def _chosen(
    new: PopulatedSet, olds: Sequence[PopulatedSet], fleet: Fleet, names: Names, *, is_manual: bool
) -> Update:
    """Candidates that are updated next; once the new set is full the old ones are not needed."""
    if new.replicas >= fleet.replicas and fleet.new is not None:
        # The old machines are one too many each, but not before the new ones are available.
        sizes = down(fleet, fleet.new)
        less = [one for one in fleet.old_active if sizes[one.uid] < one.replicas]
        return Update(sizes={one.uid: sizes[one.uid] for one in less})
    pieces = [piece for one in olds if not one.is_deleting for piece in one.live]
    nodes = [piece.node for piece in pieces if piece.node is not None]
    chosen = [one for one in pieces if one.node is not None and names.selected in one.node.labels]
    undergoing = len(chosen)
    if is_manual or undergoing + new.replicas >= fleet.replicas:
        return NOTHING
    available = sum(one.available_at(one.replicas) for one in fleet.sets)
    sized = fleet.new
    missing = new.replicas - (sized.available_at(new.replicas) if sized is not None else 0)
    if fleet.wanted - fleet.floor - missing - undergoing <= 0:
        return NOTHING
    # Of those that undergo it some are not available by now: they are missing once, not twice.
    leave = sum(one.machine.works for one in chosen)
    count = min(available - leave - fleet.floor, fleet.replicas - new.replicas)
    ready = [
        node
        for node in nodes
        if names.candidate in node.labels and names.selected not in node.labels
    ]
    return Update(nodes=[(node, NodeStep.SELECT) for node in ready[: max(0, count)]])


def _nodes(one: PopulatedSet) -> Sequence[Node]:
    found = [piece.node for piece in one.live]
    return [node for node in found if node is not None and not node.is_deleting]


# --- what is written --------------------------------------------------------------------------


def set_labels(
    found: PopulatedSet, names: Names, *, is_old: bool, is_known: bool
) -> Mapping[str, str | None]:
    """What keeps an old set from making machines, and only an old one; empty where it is so.

    Args:
        found: the set.
        names: names of the API group.
        is_old: whether it is to make none.
        is_known: whether sizes follow from what moved; before, one that may make machines again
            would make what moved away.
    """
    is_kept = names.scale_up_disabled in (found.metadata.labels or {})
    if is_kept is is_old or not (is_old or is_known):
        return {}
    return {names.scale_up_disabled: _TRUE if is_old else None}


def node_patch(node: Node, step: NodeStep, names: Names) -> Patch | None:
    """Return the patch of a step; None: it is done."""
    labels: dict[str, str | None] = dict.fromkeys(
        (names.candidate, names.selected, names.update_result)
    )
    match step:
        case NodeStep.CANDIDATE:
            taint = Taint(key=names.old_taint, value=_TAINTED, effect="PreferNoSchedule")
            taints = _tainted(node, taint, names)
            return model.node_patch(node, labels={names.candidate: _TRUE}, taints=taints)
        case NodeStep.SELECT:
            return model.node_patch(node, labels={names.selected: _TRUE})
        case NodeStep.RELEASE:
            return model.node_patch(node, labels=labels, taints=_tainted(node, None, names))
    critical = Taint(key=names.critical_taint, effect="NoSchedule")
    return model.node_patch(
        node,
        labels=labels,
        annotations={names.update_failed_reason: None},
        taints=_tainted(node, critical, names),
        spec={"unschedulable": None} if node.spec.unschedulable else None,
    )


def _tainted(node: Node, wanted: Taint | None, names: Names) -> Sequence[Taint]:
    """Return the taints without that of an old machine, and with another one."""
    key = None if wanted is None else wanted.key
    taints = [one for one in node.taints if one.key not in (names.old_taint, key)]
    return taints if wanted is None else [*taints, wanted]


# --- on the node ----------------------------------------------------------------------------------
#
# Labels of the node say what is wanted, and how the update went. A condition of the node answers,
# step by step; the node is touched by its updater only once the condition says that it is ready.
# The machine says first that it is updated, and its node then: from that moment on the node may
# vanish, and its health is not judged.

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


REST = Decision()


def decide(machine: Machine, node: Node, settings: Settings) -> Decision:
    """What is done about a machine's node."""
    names = settings.names
    if not names.candidate or names.candidate not in node.labels or node.is_deleting:
        return REST
    step = _reason(node, names)
    if (says := _says(machine, node, step, names)) not in ("", step):
        return Decision(says=says)
    if names.selected not in node.labels:
        return REST
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


def task(machine: Machine, node: Node, now: datetime, settings: Settings) -> DrainTask:
    """Return the task to drain a node that stays, as its machine does."""
    found = condition_of(node, settings.names.update_condition)
    since = moment(found.last_transition_time) if found is not None else None
    force = machine.force_drain
    return drain_task(machine, node, since=since or now, now=now, settings=settings, force=force)


# --- what is written ------------------------------------------------------------------------------


def begun(machine: Machine, now: datetime) -> MachineStatus:
    """The status of a machine whose node is empty."""
    text = f"Machine {machine.name} is undergoing an in-place update"
    state, kind = OperationState.PROCESSING, OperationType.IN_PLACE
    return machine.status.entered(Phase.UPDATING, text, state, kind, now, timeout_active=True)


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
    # Its status is the same in each step: its time of transition is the time of the step.
    said = (STATUS_TRUE, reason, message)
    found = node_condition_patch(node, names.update_condition, said, now)
    return {**found, "metadata": same_object(node) | same_version(node)}


def _reason(node: Node, names: Names) -> str:
    found = condition_of(node, names.update_condition)
    return "" if found is None else found.reason
