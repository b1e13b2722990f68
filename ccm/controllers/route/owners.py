"""Which routes stay although no node wants them: too many of their nodes are missing. Pure.

The node of such a route was not seen to be deleted: it is merely not there any more, or has no
Pod ranges any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from ccm.controllers.route.plan import (
    Deletion,
    DeletionReason,
    Plan,
    Wanted,
    has_no_pod_cidrs,
)
from ccm.model import Node, ObjectReference

REASON = "nodes_missing"
"""Why they stay, as metrics name it."""


def strays(found: Plan) -> set[Wanted]:
    """The routes that shall go because no node wants them."""
    return {_wanted(each) for each in found.deletions if each.reason is DeletionReason.STRAY}


def unexplained(
    found: Plan, node_of: Callable[[str], Node | None], released: Collection[Wanted]
) -> list[Deletion]:
    """Those of them that rest on the absence of a node, or of all its ranges, alone.

    Args:
        found: what follows from a listing.
        node_of: the node of that name, if there is one.
        released: nodes that were seen to be deleted, with their ranges.
    """

    def is_unexplained(each: Deletion) -> bool:
        if each.reason is not DeletionReason.STRAY or _wanted(each) in released:
            return False
        node = node_of(each.route.target_node)
        return node is None or has_no_pod_cidrs(node)

    return [each for each in found.deletions if is_unexplained(each)]


def settled(found: Plan) -> int:
    """How many routes do what a node wants, or did so until now."""
    return found.kept + len(strays(found))


def without(found: Plan, held: Collection[Deletion]) -> Plan:
    """The plan without some deletions, and without what they were to make room for."""
    if not held:
        return found
    staying = {id(each) for each in held}
    targets = {each.route.target_node for each in held}
    going = [place for place, each in enumerate(found.deletions) if id(each) not in staying]
    moved = {before: after for after, before in enumerate(going)}
    return replace(
        found,
        deletions=[found.deletions[place] for place in going],
        creations=[
            replace(each, after=[moved[place] for place in each.after])
            for each in found.creations
            if all(place in moved for place in each.after)
        ],
        cut_off=[name for name in found.cut_off if name not in targets],
    )


def reference(held: Deletion) -> ObjectReference:
    """The node of a route, for events, where nothing more is known of it."""
    return ObjectReference(kind="Node", api_version="v1", name=held.route.target_node)


def message(missing: int, among: int, *, allow: str) -> str:
    """What people are told; `allow`: how they say that all may go."""
    return (
        f"{missing} of {among} routes lead to nodes that are gone, or have no Pod ranges any more, "
        "though nobody saw the nodes deleted. The routes stay until the nodes are back; to delete "
        f"them all the same, {allow}, or set --allow-mass-deletion"
    )


def _wanted(each: Deletion) -> Wanted:
    return (each.route.target_node, each.network)
