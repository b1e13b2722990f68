"""Interaction of a deployment and the cluster autoscaler. No I/O.

In an annotation of the deployment, the autoscaler lists the machines to delete. Then it lowers the
replicas. The listed machines get the lowest priority. During a rollout, annotations keep the
autoscaler from scaling down the nodes, and a `PreferNoSchedule` taint keeps Pods off old nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ccm.machines.replicas import AUTOSCALER_PRIORITY, Member, PopulatedSet
from ccm.machines.settings import MachineSettings, Names
from ccm.model import Node, Taint
from ccm.model import node as model
from ccm.model.machines import Phase
from ccm.model.patches import Patch
from ccm.model.times import format_time, parse_optional_time

_PREFER_NO_SCHEDULE = "PreferNoSchedule"
_TRUE = "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionMark:
    """Machine that the autoscaler chose for deletion.

    Attributes:
        piece: the machine.
        annotations: annotations to set on the machine.
    """

    piece: Member
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """Desired taint and annotations of a node in a rollout; None = unchanged.

    Attributes:
        node: the node.
        is_old: whether the node has the taint for old nodes, so that Pods prefer other nodes.
        disables_scale_down: whether annotations keep the autoscaler from scaling down the node.
    """

    node: Node
    is_old: bool | None = None
    disables_scale_down: bool | None = None


def parse_trigger(
    text: str, members: Sequence[Member], now: datetime, names: Names
) -> tuple[Sequence[DeletionMark], str]:
    """Parse the autoscaler's `trigger` annotation.

    Malformed entries are dropped, and so are entries of machines that are missing, failed or being
    deleted. An entry without a time, as older autoscalers write it, counts as written now.

    Args:
        text: value of the annotation.
        members: machines of the deployment.
        now: the time.
        names: names of the API group.

    Returns:
        The listed machines whose own annotations do not show the autoscaler's choice yet; and the
        `trigger` annotation without the dropped entries.
    """
    by_name = {member.name: member for member in members}
    marks, remaining = list[DeletionMark](), list[str]()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, tilde, when = entry.partition("~")
        marked_member = by_name.get(name)
        when = when if tilde else format_time(now)
        if marked_member is None or (called := parse_optional_time(when)) is None:
            continue
        machine = marked_member.machine
        if machine.is_terminating or machine.phase is Phase.FAILED:
            continue
        remaining.append(f"{name}~{when}")
        if (machine.priority, machine.marked) != (AUTOSCALER_PRIORITY, called):
            wanted = {names.priority: str(AUTOSCALER_PRIORITY), names.marked: when}
            marks.append(DeletionMark(piece=marked_member, annotations=wanted))
    return marks, ",".join(remaining)


def node_marks(
    new: PopulatedSet | None,
    olds: Sequence[PopulatedSet],
    settings: MachineSettings,
    *,
    is_rolling: bool,
    updates: bool,
) -> Iterator[NodeMark]:
    """Yield the desired taint and annotations of each node that has to change.

    Args:
        new: the set of the newest template.
        olds: the other sets.
        settings: names and settings.
        is_rolling: whether a rolling update is running.
        updates: whether an in-place update is running; then `in_place_update` taints old nodes.
    """
    holds = is_rolling or updates
    for old in olds:
        taint = settings.names.old_taint
        becomes_old = is_rolling and bool(taint) and taint not in old.annotations
        yield from _marks(old, settings, holds=holds, is_old=True if becomes_old else None)
    if new is not None:
        is_new_again = settings.names.old_taint in new.annotations
        yield from _marks(new, settings, holds=holds, is_old=False if is_new_again else None)


def scale_down_annotations(names: Names) -> Mapping[str, str]:
    """Return annotations that keep the autoscaler from scaling down a node.

    `names.hold_is_ours` records that a machine controller, and not a user, set `names.hold`.
    """
    return {names.hold: "true", names.hold_is_ours: "true"}


def old_set_annotation(
    machine_set: PopulatedSet, names: Names, *, rolls: bool, is_new: bool
) -> dict[str, Any]:
    """Return the change of the annotation which records that a set's nodes have the old taint.

    Value None = remove the annotation; an empty mapping = no change.
    """
    if not names.old_taint:
        return {}
    if is_new:
        return {names.old_taint: None} if names.old_taint in machine_set.annotations else {}
    return (
        {} if not rolls or names.old_taint in machine_set.annotations else {names.old_taint: _TRUE}
    )


def node_patch(node: Node, mark: NodeMark, names: Names) -> Patch | None:
    """Return the patch that sets taint and annotations of a node; None = nothing changes."""
    taints = None
    if mark.is_old is not None:
        others = [taint for taint in node.taints if taint.key != names.old_taint]
        is_old = len(others) < len(node.taints)
        taint = Taint(key=names.old_taint, value=_TRUE, effect=_PREFER_NO_SCHEDULE)
        if is_old is not mark.is_old:
            taints = [*others, taint] if mark.is_old else others
    return model.node_patch(
        node, annotations=_scale_down_changes(node, mark.disables_scale_down, names), taints=taints
    )


def _marks(
    machine_set: PopulatedSet, settings: MachineSettings, *, holds: bool, is_old: bool | None
) -> Iterator[NodeMark]:
    for member in machine_set.live:
        if member.node is None or member.node.is_deleting:
            continue
        is_held = _disables_scale_down(member, settings, holds=holds)
        mark = NodeMark(node=member.node, is_old=is_old, disables_scale_down=is_held)
        if node_patch(member.node, mark, settings.names) is not None:
            yield mark


def _disables_scale_down(member: Member, settings: MachineSettings, *, holds: bool) -> bool | None:
    """Return `NodeMark.disables_scale_down` for a machine's node.

    After a rollout, the node of a preserved machine stays unchanged.
    """
    if holds:
        return True if settings.holds_nodes else None
    return None if member.preserved_until is not None else False


def _scale_down_changes(node: Node, is_held: bool | None, names: Names) -> dict[str, str | None]:
    """Return the annotations to set or remove; a user's annotation is kept."""
    is_ours = names.hold_is_ours in node.annotations
    if is_held is None or is_held == is_ours or (is_held and names.hold in node.annotations):
        return {}
    hold = scale_down_annotations(names)
    return {**hold} if is_held else dict.fromkeys(hold)
