"""Readiness, existence and power of a node: what follows. Pure.

`judge` is the one place where the deletion of a Node is decided. Every rule that protects
nodes belongs there. A cloud is believed about one node only as far as its word about the others
allows: with wrong credentials, or in an outage, a cloud denies what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ccm.cloud.lookup import Ownership
from ccm.cloud.types import InstanceState, Power
from ccm.controllers.nodelifecycle.evidence import Evidence, Tally
from ccm.model import Node, Taint, names
from ccm.model.node import has_shutdown_taint, is_uninitialized, taints_value
from ccm.model.patches import Patch, same_version

SHUTDOWN_TAINT = Taint(key=names.TAINT_SHUTDOWN, effect=names.EFFECT_NO_SCHEDULE)

BRAKE_WINDOW_S = 600.0
"""The time in which no more nodes are deleted than the limit says."""

LEAST_LIMIT, LIMIT_SHARE = 10, 10
"""The limit that nobody set: that many nodes, or one of so many where that is more."""

INITIALISING_S = 300.0
"""A node that has a provider ID and waits for its cloud is not deleted before that age."""

NEW_DENIED_S = 900.0
"""How long a cloud has to deny a node without provider ID that waits for its cloud."""

MOST_DENIED = 3
DENIED_SHARE = 3
"""A cloud that denies more nodes than that, and more than one of so many, is in doubt."""

DOUBT_S = 1800.0
"""How long a cloud in doubt has to go on denying a node until it is believed."""


class Action(Enum):
    """What happens to a Node object."""

    DELETE = "delete"
    """Its instance is gone for certain."""
    HOLD = "hold"
    """Its instance seems gone, but something forbids deleting now."""
    KEEP = "keep"
    """Nothing speaks for deleting it."""


class Reason(Enum):
    """Why a Node is deleted, held or kept; the words go into logs and events."""

    GONE = "its instance does not exist any more"
    EXISTS = "its instance exists"
    READY = "the node is ready"
    FOREIGN = "it belongs to another cloud or manager"
    REPLACED = "the node became another while the cloud was asked"
    DELETING = "it is being deleted already"
    UNCONFIRMED = "the cloud has to say a second time, a while later, that the instance is gone"
    YOUNG = "it is too young to be deleted"
    BRAKED = "as many nodes as may be were deleted lately (--node-deletion-limit)"
    UNRECORDED = "the record of deletions cannot be read or written"
    NEW = "its cloud may not know it yet; it is deleted after 15 minutes of denial"
    MIXED = (
        "it may be another cloud's, as other nodes of the cluster are; say which nodes are ours "
        "with --own-nodes, or annotate it with kube-ccm/allow-deletion=true"
    )
    UNCLAIMED = (
        "it has no provider ID, and nothing says that it is ours; say which nodes are with "
        "--own-nodes, or annotate it with kube-ccm/allow-deletion=true"
    )
    UNWITNESSED = "the cloud has not confirmed any instance of the cluster yet"
    MASS_DENIAL = (
        "the cloud denies more than a third of the nodes; it is believed after 30 minutes. To "
        "delete the node at once, annotate it with kube-ccm/allow-deletion=true"
    )
    ALL_DENIED = (
        "the cloud confirms no instance of the cluster: credentials of another project? If the "
        "instances are gone indeed, annotate the nodes with kube-ccm/allow-deletion=true, or set "
        "--allow-mass-deletion"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the judge goes by.

    Attributes:
        ownership: which nodes are ours.
        period_s: least time between two denials that prove an absence.
        least_age_s: younger nodes are not deleted; 0 = any may be.
        limit: nodes that may be deleted in `BRAKE_WINDOW_S`; 0 = any number, None = as the
            cluster's size says.
        allow_mass: believe the cloud however many nodes it denies.
        reference: do as the Go reference does: one answer is enough, and nothing is held.
    """

    ownership: Ownership
    period_s: float = 5.0
    least_age_s: float = 0.0
    limit: int | None = None
    allow_mass: bool = False
    reference: bool = False

    def limit_for(self, ours: int) -> int:
        """Nodes that may be deleted in a while by a cluster of so many; 0 = any number."""
        if self.reference:
            return 0
        return max(LEAST_LIMIT, ours // LIMIT_SHARE) if self.limit is None else self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known beside the node.

    Attributes:
        evidence: what the cloud says about its instance.
        age_s: its age.
        is_claimed: whether this opening of the provider has confirmed it.
        tally: what the cloud says about all nodes.
    """

    evidence: Evidence
    age_s: float
    is_claimed: bool
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happens to a Node object, and why."""

    action: Action
    reason: Reason

    @property
    def is_held_back(self) -> bool:
        """Whether a deletion that would be right by the cloud's word is not made."""
        return self.action is Action.HOLD and self.reason is not Reason.DELETING


def judge(asked: Node, current: Node | None, facts: Facts, rules: Rules) -> Verdict:
    """Say delete, hold or keep.

    Args:
        asked: the node as it was when the cloud was asked about it.
        current: the node as it is cached now; None when it is gone.
        facts: the cloud's word, and what it is worth.
        rules: what is set.
    """
    if facts.evidence.exists:
        return Verdict(action=Action.KEEP, reason=Reason.EXISTS)
    if current is None or current.uid != asked.uid or current.provider_id != asked.provider_id:
        return Verdict(action=Action.KEEP, reason=Reason.REPLACED)
    if rules.ownership.is_foreign(current):
        return Verdict(action=Action.KEEP, reason=Reason.FOREIGN)
    if current.ready == names.STATUS_TRUE:
        return Verdict(action=Action.KEEP, reason=Reason.READY)
    if current.is_deleting:
        return Verdict(action=Action.HOLD, reason=Reason.DELETING)
    held = None if rules.reference else _held(current, facts, rules)
    if held is not None:
        return Verdict(action=Action.HOLD, reason=held)
    return Verdict(action=Action.DELETE, reason=Reason.GONE)


def _held(node: Node, facts: Facts, rules: Rules) -> Reason | None:
    """Why a node is not deleted although the cloud denies it; None = it is."""
    if facts.age_s < max(rules.least_age_s, _least_age_s(node)):
        return Reason.YOUNG
    if not facts.evidence.is_second:
        return Reason.UNCONFIRMED
    if not node.provider_id and is_uninitialized(node) and facts.evidence.lasted_s < NEW_DENIED_S:
        return Reason.NEW
    if node.allows_deletion:
        return None
    if not node.provider_id and not rules.ownership.is_explicit:
        if is_uninitialized(node):
            if facts.tally.foreign_ids:
                return Reason.MIXED
        elif not facts.is_claimed:
            return Reason.UNCLAIMED
    return None if rules.allow_mass else _doubt(facts.evidence, facts.tally)


def _least_age_s(node: Node) -> float:
    return INITIALISING_S if node.provider_id and is_uninitialized(node) else 0.0


def _doubt(evidence: Evidence, tally: Tally) -> Reason | None:
    """What makes the cloud's word doubtful about any node; None = nothing."""
    is_patient = evidence.lasted_s >= DOUBT_S
    if tally.denied > MOST_DENIED and tally.denied * DENIED_SHARE > tally.settled:
        if not tally.confirmed:
            return Reason.ALL_DENIED
        return None if is_patient else Reason.MASS_DENIAL
    if tally.confirmed:
        return None
    # A ready node has an instance, so a cloud that denies it as well is not ours.
    if tally.ready_denied or tally.new_denied > MOST_DENIED:
        return Reason.ALL_DENIED
    return Reason.UNWITNESSED if tally.unasked and not is_patient else None


def is_suspect(node: Node, ownership: Ownership) -> bool:
    """Whether the node has to be looked at in every pass.

    A ready node is not, unless it still carries the shutdown taint; a foreign node never is.
    """
    if node.ready == names.STATUS_TRUE and not has_shutdown_taint(node):
        return False
    return not ownership.is_foreign(node)


def may_touch(node: Node, rules: Rules, *, is_claimed: bool) -> bool:
    """Whether a node that is not foreign may be changed before the cloud was asked about it."""
    return rules.reference or rules.ownership.may_touch(node, is_claimed=is_claimed)


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


def counts_alike(old: Node, new: Node) -> bool:
    """Whether nothing changed by which a node counts among the others."""
    return (
        old.ready == new.ready
        and old.uid == new.uid
        and old.provider_id == new.provider_id
        and old.is_deleting == new.is_deleting
        and old.taints == new.taints
        and old.labels == new.labels
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
