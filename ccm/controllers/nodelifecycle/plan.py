"""Readiness, existence and power of a node: what follows. Pure.

`judge` is the one place where the deletion of a Node is decided. Every rule that protects
nodes belongs there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from ccm.cloud.provider_id import is_foreign
from ccm.cloud.types import InstanceState, Power
from ccm.model import Node, Taint, names
from ccm.model.node import has_shutdown_taint, taints_value
from ccm.model.patches import Patch, same_version

SHUTDOWN_TAINT = Taint(key=names.TAINT_SHUTDOWN, effect=names.EFFECT_NO_SCHEDULE)


class Action(Enum):
    """What happens to a Node object."""

    DELETE = "delete"
    """Its instance is gone for certain."""
    HOLD = "hold"
    """Its instance seems gone, but something forbids deleting now."""
    KEEP = "keep"
    """Nothing speaks for deleting it."""


class Reason(Enum):
    """Why a Node is deleted, held or kept; the words go into logs."""

    GONE = "its instance does not exist any more"
    EXISTS = "its instance exists"
    READY = "the node is ready"
    FOREIGN = "its provider ID belongs to another cloud"
    REPLACED = "the node became another while the cloud was asked"
    DELETING = "it is being deleted already"
    UNCONFIRMED = "the cloud has to say a second time that the instance is gone"
    YOUNG = "it is too young to be deleted"
    BRAKED = "as many nodes as may be were deleted lately"
    CONTRADICTED = "the cloud said gone, and not gone when asked again"


BRAKE_WINDOW_S = 600.0
"""The time in which so many nodes may be deleted as `Protection.most_deletions` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What forbids deleting, whatever the cloud says; by default nothing.

    Attributes:
        least_age_s: younger nodes are not deleted; 0 = any may be.
        most_deletions: nodes that may be deleted in `BRAKE_WINDOW_S`; 0 = any number.
    """

    least_age_s: float = 0.0
    most_deletions: int = 0

    def forbids(self, *, age_s: float, deleted_lately: int) -> Reason | None:
        """Why a node of that age is not deleted after so many others; None = it may be."""
        if self.least_age_s and age_s < self.least_age_s:
            return Reason.YOUNG
        if self.most_deletions and deleted_lately >= self.most_deletions:
            return Reason.BRAKED
        return None


NO_PROTECTION = Protection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happens to a Node object, and why."""

    action: Action
    reason: Reason


def judge(
    asked: Node,
    current: Node | None,
    state: InstanceState,
    *,
    confirmed_gone: bool | None,
    schemes: Collection[str],
    forbidden: Reason | None = None,
) -> Verdict:
    """Say delete, hold or keep.

    Args:
        asked: the node as it was when the cloud was asked about it.
        current: the node as it is cached now; None when it is gone.
        state: the cloud's first answer.
        confirmed_gone: its second, uncached answer: True = gone; None = not asked yet.
        schemes: the provider-ID schemes of our cloud.
        forbidden: what `Protection` says.
    """
    if state.exists:
        return Verdict(action=Action.KEEP, reason=Reason.EXISTS)
    if current is None or current.uid != asked.uid or current.provider_id != asked.provider_id:
        return Verdict(action=Action.KEEP, reason=Reason.REPLACED)
    if is_foreign(current.provider_id, schemes):
        return Verdict(action=Action.KEEP, reason=Reason.FOREIGN)
    if current.ready == names.STATUS_TRUE:
        return Verdict(action=Action.KEEP, reason=Reason.READY)
    if current.is_deleting:
        return Verdict(action=Action.HOLD, reason=Reason.DELETING)
    if forbidden is not None:
        return Verdict(action=Action.HOLD, reason=forbidden)
    if confirmed_gone is None:
        return Verdict(action=Action.HOLD, reason=Reason.UNCONFIRMED)
    if not confirmed_gone:
        return Verdict(action=Action.HOLD, reason=Reason.CONTRADICTED)
    return Verdict(action=Action.DELETE, reason=Reason.GONE)


def is_suspect(node: Node, schemes: Collection[str]) -> bool:
    """Whether the node has to be looked at in every pass.

    A ready node is not, unless it still carries the shutdown taint; a node of another cloud
    never is.
    """
    if is_foreign(node.provider_id, schemes):
        return False
    return node.ready != names.STATUS_TRUE or has_shutdown_taint(node)


def changed_state(old: Node | None, new: Node) -> bool:
    """Whether a change is worth looking at the node before its next pass.

    The shutdown taint counts where it may be wrong: on a ready node, or off one that is not;
    our own write, which put it right, does not make us ask the cloud again.
    """
    ready, tainted = new.ready == names.STATUS_TRUE, has_shutdown_taint(new)
    return (
        old is None
        or old.uid != new.uid
        or (old.ready == names.STATUS_TRUE) != ready
        or (has_shutdown_taint(old) != tainted and tainted == ready)
    )


def taint_patch(node: Node, state: InstanceState | None) -> Patch | None:
    """The patch that puts the shutdown taint on or takes it off; None when it is right.

    Args:
        node: the node as it is.
        state: what the cloud says; None for a ready node, which loses the taint whatever
            the cloud would say. A node that is not ready keeps the taint even when its
            instance runs again, until its kubelet reports.
    """
    tainted = has_shutdown_taint(node)
    if node.ready == names.STATUS_TRUE:
        if not tainted:
            return None
        kept = [taint for taint in node.taints if not _is_shutdown(taint)]
        return _taints(node, kept)
    if tainted or state is None or state.power is not Power.SHUTDOWN:
        return None
    return _taints(node, [*node.taints, SHUTDOWN_TAINT])


def _taints(node: Node, taints: list[Taint]) -> Patch:
    # The list is written whole and must not undo another's change.
    return {"metadata": same_version(node), "spec": {"taints": taints_value(taints)}}


def _is_shutdown(taint: Taint) -> bool:
    return taint.key == SHUTDOWN_TAINT.key and taint.effect == SHUTDOWN_TAINT.effect
