"""What a deployment and the autoscaler tell each other. Pure.

The autoscaler says in an annotation which machines it wants to go, and then lowers the replicas:
those machines get the lowest priority. While machines are exchanged their nodes ask to be left
alone, and those that are to go ask for no more Pods than need be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ccm.machines.replicas import CALLED_PRIORITY, Member, PopulatedSet
from ccm.machines.settings import Names, Settings
from ccm.model import Node, Taint
from ccm.model import node as model
from ccm.model.machines import Phase
from ccm.model.patches import Patch
from ccm.model.times import format_time, moment

_PREFER_NO_SCHEDULE = "PreferNoSchedule"
_TRUE = "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A machine that the autoscaler wants to go.

    Attributes:
        piece: the machine.
        annotations: what it gets.
    """

    piece: Member
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """What is wanted of a node of a rollout; None = whatever is there.

    Attributes:
        node: the node.
        is_old: whether its machine is to be exchanged: it takes Pods last.
        is_held: whether the autoscaler is to leave it alone.
    """

    node: Node
    is_old: bool | None = None
    is_held: bool | None = None


def triggered(
    text: str, members: Sequence[Member], now: datetime, names: Names
) -> tuple[Sequence[Mark], str]:
    """Who is to get the lowest priority, and what is left of the wish.

    Machines that are gone, going or failed are none of it any more, nor is what makes no sense.
    A wish without a moment, as older autoscalers write it, is one of this moment.
    """
    by_name = {one.name: one for one in members}
    marks, left = list[Mark](), list[str]()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, tilde, when = entry.partition("~")
        piece = by_name.get(name)
        when = when if tilde else format_time(now)
        if piece is None or (called := moment(when)) is None:
            continue
        machine = piece.machine
        if machine.is_ending or machine.phase is Phase.FAILED:
            continue
        left.append(f"{name}~{when}")
        if (machine.priority, machine.marked) != (CALLED_PRIORITY, called):
            wanted = {names.priority: str(CALLED_PRIORITY), names.marked: when}
            marks.append(Mark(piece=piece, annotations=wanted))
    return marks, ",".join(left)


def node_marks(
    new: PopulatedSet | None,
    olds: Sequence[PopulatedSet],
    settings: Settings,
    *,
    rolls: bool,
    updates: bool,
) -> Iterator[NodeMark]:
    """What nodes lack, or have too much.

    Args:
        new: the set of the newest template.
        olds: the others.
        settings: of the front.
        rolls: whether machines are exchanged one by one now.
        updates: whether they are updated in place now; then others say which nodes are old.
    """
    holds = rolls or updates
    for one in olds:
        becomes_old = rolls and settings.names.old_taint not in one.annotations
        yield from _marks(one, settings, holds=holds, is_old=True if becomes_old else None)
    if new is not None:
        is_new_again = settings.names.old_taint in new.annotations
        yield from _marks(new, settings, holds=holds, is_old=False if is_new_again else None)


def hold_notes(names: Names) -> Mapping[str, str]:
    """Annotations of a node that the autoscaler leaves alone, and why."""
    return {names.hold: "true", names.hold_is_ours: "true"}


def set_mark(found: PopulatedSet, names: Names, *, rolls: bool, is_new: bool) -> dict[str, Any]:
    """The annotation by which a set remembers that its nodes were told."""
    if is_new:
        return {names.old_taint: None} if names.old_taint in found.annotations else {}
    return {} if not rolls or names.old_taint in found.annotations else {names.old_taint: _TRUE}


def node_patch(node: Node, mark: NodeMark, names: Names) -> Patch | None:
    """Return the patch that gives a node what a mark wants; None: it has it."""
    taints = None
    if mark.is_old is not None:
        others = [one for one in node.taints if one.key != names.old_taint]
        is_old = len(others) < len(node.taints)
        taint = Taint(key=names.old_taint, value=_TRUE, effect=_PREFER_NO_SCHEDULE)
        if is_old is not mark.is_old:
            taints = [*others, taint] if mark.is_old else others
    return model.node_patch(node, annotations=_hold_notes(node, mark.is_held, names), taints=taints)


def _marks(
    found: PopulatedSet, settings: Settings, *, holds: bool, is_old: bool | None
) -> Iterator[NodeMark]:
    for member in found.live:
        if member.node is None or member.node.is_deleting:
            continue
        held = _hold(member, settings, holds=holds)
        mark = NodeMark(node=member.node, is_old=is_old, is_held=held)
        if node_patch(member.node, mark, settings.names) is not None:
            yield mark


def _hold(member: Member, settings: Settings, *, holds: bool) -> bool | None:
    """Whether the autoscaler is to leave a node alone; that of a preserved machine stays so."""
    if holds:
        return True if settings.holds_nodes else None
    return None if member.kept_until is not None else False


def _hold_notes(node: Node, is_held: bool | None, names: Names) -> dict[str, str | None]:
    """Annotations to set or to remove; what a person wrote stays."""
    is_ours = names.hold_is_ours in node.annotations
    if is_held is None or is_held == is_ours or (is_held and names.hold in node.annotations):
        return {}
    notes = hold_notes(names)
    return {**notes} if is_held else dict.fromkeys(notes)
