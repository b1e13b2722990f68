"""Machines that are updated where they are: they change hands, from the old set to the new. Pure.

An update passes through states that labels of the nodes tell: candidate, selected, and the result,
which somebody on the node writes. A machine that was updated is moved to the new set; what the
sets want follows from what they have then, so that nothing is lost where a pass ends halfway. Old
sets make no machines meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ccm.machines.replicas import Member, PopulatedSet
from ccm.machines.scaling import Fleet, Sizes, down, lessened
from ccm.machines.settings import Names
from ccm.model import Node, Taint
from ccm.model.machines import Phase
from ccm.model.node import taints_value
from ccm.model.patches import Patch, same_object, same_version

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
    said = [
        one.reason for one in node.status.conditions or () if one.type == names.update_condition
    ]
    return (
        node.labels.get(names.update_result) == names.update_successful
        and names.update_succeeded in said
    )


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
    wanted = sum(one.replicas for one in fleet.sets if not one.is_deleting)
    available = sum(one.available_at(one.replicas) for one in fleet.sets)
    sized = fleet.new
    missing = new.replicas - (sized.available_at(new.replicas) if sized is not None else 0)
    if wanted - fleet.floor - missing - undergoing <= 0:
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
    """What is written on a node; None where it stands."""
    labels, notes, spec = _wanted(node, step, names)
    metadata: dict[str, Any] = same_object(node) | same_version(node)
    for key, values, there in (
        ("labels", labels, node.labels),
        ("annotations", notes, node.annotations),
    ):
        changed = {name: value for name, value in values.items() if there.get(name) != value}
        if changed:
            metadata[key] = changed
    if not (spec or "labels" in metadata or "annotations" in metadata):
        return None
    return {"metadata": metadata} | ({"spec": spec} if spec else {})


def _wanted(
    node: Node, step: NodeStep, names: Names
) -> tuple[Mapping[str, str | None], Mapping[str, str | None], dict[str, Any]]:
    """Labels, annotations and fields of the spec."""
    if step is NodeStep.CANDIDATE:
        taint = Taint(key=names.old_taint, value=_TAINTED, effect="PreferNoSchedule")
        return {names.candidate: _TRUE}, {}, _tainted(node, taint, names)
    if step is NodeStep.SELECT:
        return {names.selected: _TRUE}, {}, {}
    labels = dict.fromkeys((names.candidate, names.selected, names.update_result))
    if step is NodeStep.RELEASE:
        return labels, {}, _tainted(node, None, names)
    critical = Taint(key=names.critical_taint, effect="NoSchedule")
    spec = _tainted(node, critical, names)
    return (
        labels,
        {names.update_failed_reason: None},
        spec | ({"unschedulable": None} if node.spec.unschedulable else {}),
    )


def _tainted(node: Node, wanted: Taint | None, names: Names) -> dict[str, Any]:
    """The taints without that of an old machine, and with another one."""
    key = None if wanted is None else wanted.key
    taints = [one for one in node.taints if one.key not in (names.old_taint, key)]
    taints += [wanted] if wanted is not None else []
    return {} if taints == list(node.taints) else {"taints": taints_value(taints)}
