"""Decisions about a node from its readiness and the existence and power of its instance. No I/O.

Only `decide` decides whether to delete a Node; every rule that protects nodes belongs there. An
answer of the cloud that the instance of a node does not exist is called a denial of the node. With
wrong credentials, or in an outage, a cloud denies existing instances. So a denial of one node
counts only if the answers about the other nodes are plausible. A ready node that is queried for
this check is called a witness. `NodeObservations` keeps the answers; its callers pass the time.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from ccm.cloud.lookup import NodeOwnership
from ccm.cloud.types import InstanceState, Power
from ccm.model import Node, Taint, names
from ccm.model.node import has_shutdown_taint, is_uninitialized, taints_value
from ccm.model.patches import Patch, version_precondition

SHUTDOWN_TAINT = Taint(key=names.TAINT_SHUTDOWN, effect=names.EFFECT_NO_SCHEDULE)

LIMIT_WINDOW_S = 600.0
"""Window of the deletion limit, in seconds.

If the cloud wrongly reports all instances missing, an administrator can notice after a few
deletions."""

MIN_LIMIT, LIMIT_SHARE = 10, 10
"""Default deletion limit: the larger of `MIN_LIMIT` and 1/`LIMIT_SHARE` of the managed nodes."""

MIN_AGE_INITIALISING_S = 300.0
"""Minimum age in seconds at which an uninitialised node with a provider ID may be deleted.

The cloud may not report a new instance yet."""

NEW_DENIED_S = 900.0
"""Seconds for which the cloud must report the instance missing before an uninitialised node without
a provider ID is deleted.

The cloud may not report the node's instance by name yet."""

MASS_DENIAL_MIN = 3
MASS_DENIAL_SHARE = 3
"""The cloud's answers are implausible if `NodeCounts.denied` exceeds both `MASS_DENIAL_MIN` and
1/`MASS_DENIAL_SHARE` of `NodeCounts.settled`."""

MASS_DENIAL_TRUST_S = 1800.0
"""Seconds for which the cloud must report an instance missing until `Reason.MASS_DENIAL` and
`Reason.UNWITNESSED` no longer block the deletion of its node.

The loss of many instances may be real, and must not block deletions forever."""

MAX_ANSWER_GAP_S = 60.0
"""Maximum seconds that a gap between two answers adds to the duration of a series. The maximum is
two periods if these are longer.

While the daemon pauses, the cloud may change its answer."""

MAX_WITNESSES = 100
"""Limit of witnesses per pass, because each of them costs a call to the cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSeries:
    """Consecutive equal answers about one instance of one Node object; times are monotonic.

    A change of UID, provider ID, provider session, readiness or answer starts a new series. An
    error does not count as an answer: it neither ends the series nor extends it.

    Attributes:
        exists: the answer: whether the instance exists.
        first_answer_at: time of the first answer.
        last_answer_at: time of the latest answer; None = an error followed it.
        lasted_s: duration of the series in seconds, without errors and long gaps.
        is_second: whether the latest answer came from a query that bypassed caches and listings, at
            least a period after the first answer.
    """

    exists: bool
    first_answer_at: float
    last_answer_at: float | None
    lasted_s: float = 0.0
    is_second: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """Number of nodes by `OwnershipStatus` and answer of the cloud.

    Attributes:
        ours: all nodes that are not foreign.
        foreign_ids: nodes with a provider ID of another cloud or manager.
        foreign: nodes with such a provider ID, and nodes that the node selector excludes.
        settled: nodes with status SETTLED; the next four fields count only these.
        denied: settled nodes whose instance does not exist according to the cloud, and settled
            nodes that are not ready and have no answer: their instances may be missing too.
        ready_denied: settled nodes that are ready, although their instance does not exist according
            to the cloud.
        confirmed: settled nodes whose instance exists according to the cloud.
        unasked: settled nodes without an answer.
        new_denied: nodes with status NEW whose instance does not exist according to the cloud.
        doubted: nodes of any status that are not ready and whose instance does not exist according
            to the cloud.
    """

    ours: int = 0
    foreign_ids: int = 0
    foreign: int = 0
    settled: int = 0
    denied: int = 0
    ready_denied: int = 0
    confirmed: int = 0
    unasked: int = 0
    new_denied: int = 0
    doubted: int = 0


class NodeAction(Enum):
    """Decision about a Node object."""

    DELETE = "delete"
    """Delete the node: its instance does not exist."""
    HOLD = "hold"
    """The instance seems gone, but a guard blocks the deletion, or the node is being deleted."""
    KEEP = "keep"
    """There is no reason to delete the node."""


class Reason(Enum):
    """Reason of a decision; the values appear in logs and events."""

    GONE = "its instance no longer exists"
    EXISTS = "its instance exists"
    READY = "the node is ready"
    FOREIGN = "it belongs to another cloud or manager"
    REPLACED = "the node was deleted or replaced during the query"
    DELETING = "it is being deleted already"
    UNCONFIRMED = "the cloud must report a second time that the instance is missing"
    YOUNG = "it is younger than the minimum age"
    BRAKED = "the deletion limit is reached (--node-deletion-limit)"
    UNRECORDED = "the deletion record cannot be read or written"
    NEW = "the cloud may not report its instance yet; the node is deleted after 15 minutes"
    MIXED = (
        "it may belong to another cloud, like other nodes of the cluster; select this daemon's "
        "nodes with --node-selector, or annotate it with kube-ccm/allow-deletion=true"
    )
    UNCLAIMED = (
        "it has no provider ID, and its cloud is unknown; select this daemon's nodes with "
        "--node-selector, or annotate it with kube-ccm/allow-deletion=true"
    )
    UNWITNESSED = "the cloud has not confirmed any instance of the cluster yet"
    MASS_DENIAL = (
        "the cloud reports the instances of more than a third of the nodes missing; the node is "
        "deleted if that lasts for 30 minutes. To delete it at once, annotate it with "
        "kube-ccm/allow-deletion=true"
    )
    ALL_DENIED = (
        "the cloud confirms no instance of the cluster; check that its credentials are for the "
        "right project. If the instances are gone, annotate the nodes with "
        "kube-ccm/allow-deletion=true, or set --allow-mass-deletion"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRules:
    """Settings of `decide`.

    Attributes:
        ownership: which nodes belong to this daemon.
        period_s: minimum seconds from the first answer that an instance does not exist to the
            second query.
        min_age_s: minimum age in seconds of a node to delete; 0 = any age.
        limit: maximum deletions in `LIMIT_WINDOW_S`; 0 = no limit, None = see `MIN_LIMIT`.
        allow_mass: trust the cloud regardless of the number of missing instances.
        reference: behave like the Go controller: one answer that the instance does not exist is
            enough, and nothing is blocked.
    """

    ownership: NodeOwnership
    period_s: float = 5.0
    min_age_s: float = 0.0
    limit: int | None = None
    allow_mass: bool = False
    reference: bool = False

    def limit_for(self, ours: int) -> int:
        """Return the deletion limit of a cluster with `ours` nodes; 0 = no limit."""
        if self.reference:
            return 0
        return max(MIN_LIMIT, ours // LIMIT_SHARE) if self.limit is None else self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts about a node that are not in the Node object.

    Attributes:
        evidence: the cloud's answers about the node's instance.
        age_s: age of the node in seconds.
        is_claimed: whether the node has no provider ID and the cloud has confirmed its instance in
            this provider session.
        tally: counts of all nodes and of the cloud's answers about them.
    """

    evidence: AnswerSeries
    age_s: float
    is_claimed: bool
    tally: NodeCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDecision:
    """Decision about a Node object, and its reason."""

    action: NodeAction
    reason: Reason

    @property
    def is_blocked(self) -> bool:
        """Whether a guard blocks the deletion of a node whose instance seems gone."""
        return self.action is NodeAction.HOLD and self.reason is not Reason.DELETING


def decide(
    queried: Node, current: Node | None, facts: NodeFacts, rules: DeletionRules
) -> NodeDecision:
    """Decide whether to delete a node, to block its deletion, or to keep it.

    Args:
        queried: the node at the time of the query.
        current: the node in the cache now; None if the node is gone.
        facts: the cloud's answers, and other facts.
        rules: settings.
    """
    if facts.evidence.exists:
        return NodeDecision(action=NodeAction.KEEP, reason=Reason.EXISTS)
    if current is None or current.uid != queried.uid or current.provider_id != queried.provider_id:
        return NodeDecision(action=NodeAction.KEEP, reason=Reason.REPLACED)
    if rules.ownership.is_foreign(current):
        return NodeDecision(action=NodeAction.KEEP, reason=Reason.FOREIGN)
    if current.ready == names.STATUS_TRUE:
        return NodeDecision(action=NodeAction.KEEP, reason=Reason.READY)
    if current.is_deleting:
        return NodeDecision(action=NodeAction.HOLD, reason=Reason.DELETING)
    held = None if rules.reference else _block_reason(current, facts, rules)
    if held is not None:
        return NodeDecision(action=NodeAction.HOLD, reason=held)
    return NodeDecision(action=NodeAction.DELETE, reason=Reason.GONE)


def _block_reason(node: Node, facts: NodeFacts, rules: DeletionRules) -> Reason | None:
    """Return why the deletion of a node without an instance is blocked; None = it is not."""
    waits_with_id = bool(node.provider_id) and is_uninitialized(node)
    if facts.age_s < max(rules.min_age_s, MIN_AGE_INITIALISING_S if waits_with_id else 0.0):
        return Reason.YOUNG
    if not facts.evidence.is_second:
        return Reason.UNCONFIRMED
    if not node.provider_id and is_uninitialized(node) and facts.evidence.lasted_s < NEW_DENIED_S:
        return Reason.NEW
    if node.allows_deletion:
        return None
    if not node.provider_id and not rules.ownership.has_selector:
        if is_uninitialized(node):
            if facts.tally.foreign_ids:
                return Reason.MIXED
        elif not facts.is_claimed:
            return Reason.UNCLAIMED
    return None if rules.allow_mass else _distrust_reason(facts.evidence, facts.tally)


def _distrust_reason(evidence: AnswerSeries, tally: NodeCounts) -> Reason | None:
    """Return why the cloud's answers are implausible; None = they are plausible."""
    is_patient = evidence.lasted_s >= MASS_DENIAL_TRUST_S
    if tally.denied > MASS_DENIAL_MIN and tally.denied * MASS_DENIAL_SHARE > tally.settled:
        if not tally.confirmed:
            return Reason.ALL_DENIED
        return None if is_patient else Reason.MASS_DENIAL
    if tally.confirmed:
        return None
    # A ready node has an instance, so a cloud that denies the node does not know this cluster.
    if tally.ready_denied or tally.new_denied > MASS_DENIAL_MIN:
        return Reason.ALL_DENIED
    return Reason.UNWITNESSED if tally.unasked and not is_patient else None


def is_suspect(node: Node, ownership: NodeOwnership) -> bool:
    """Return whether the node has to be checked in every pass.

    True for a node that is not ready or has the shutdown taint, unless the node is foreign.
    """
    if node.ready == names.STATUS_TRUE and not has_shutdown_taint(node):
        return False
    return not ownership.is_foreign(node)


def needs_check(old: Node | None, new: Node) -> bool:
    """Return whether a change requires a check before the next pass.

    A changed shutdown taint counts only if another client set it on a ready node, or removed it
    from a node that is not ready. The controller's own writes cause no further query.
    """
    ready, tainted = new.ready == names.STATUS_TRUE, has_shutdown_taint(new)
    return (
        old is None
        or old.uid != new.uid
        or (old.ready == names.STATUS_TRUE) != ready
        or (has_shutdown_taint(old) != tainted and tainted == ready)
    )


def is_same_observation(old: Node, new: Node) -> bool:
    """Return whether all fields that `NodeObservations` uses are equal in both nodes."""
    return (
        old.ready == new.ready
        and old.uid == new.uid
        and old.provider_id == new.provider_id
        and old.is_deleting == new.is_deleting
        and old.taints == new.taints
        and old.labels == new.labels
    )


def taint_patch(node: Node, state: InstanceState | None) -> Patch | None:
    """Return the patch that sets or removes the shutdown taint; None if no change is needed.

    A ready node loses the taint. A node that is not ready gets the taint when its instance is shut
    down, and keeps it until the node is ready, even if the instance runs again.

    Args:
        node: current node.
        state: answer of the cloud; None if not queried, for a ready node.
    """
    tainted = has_shutdown_taint(node)
    if node.ready == names.STATUS_TRUE:
        if not tainted:
            return None
        shutdown = (SHUTDOWN_TAINT.key, SHUTDOWN_TAINT.effect)
        taints = [taint for taint in node.taints if (taint.key, taint.effect) != shutdown]
    elif tainted or state is None or state.power is not Power.SHUTDOWN:
        return None
    else:
        taints = [*node.taints, SHUTDOWN_TAINT]
    # The patch replaces the list of taints. The precondition protects other clients' changes.
    return {"metadata": version_precondition(node), "spec": {"taints": taints_value(taints)}}


class OwnershipStatus(Enum):
    """Relation of a node to this daemon; only SETTLED nodes can be witnesses."""

    FOREIGN_ID = "of another cloud"
    OUTSIDE = "not selected"
    LEAVING = "managed, and being deleted"
    NEW = "uninitialised, without a provider ID"
    UNCLAIMED = "initialised, without a provider ID; its cloud is unknown"
    SETTLED = "managed"


class _NodeClass(NamedTuple):
    standing: OwnershipStatus
    is_ready: bool
    exists: bool | None


@dataclass(slots=True)
class _ObservedNode:
    uid: str
    provider_id: str
    seen: float
    was_there: bool
    kind: _NodeClass
    evidence: AnswerSeries | None = None
    witnessed: float = -math.inf


class NodeObservations:
    """The cloud's answers about each node of the cache, and the counts of nodes.

    Args:
        ownership: which nodes belong to this daemon.
        is_claimed: whether the cloud has confirmed the instance of a node without provider ID.
        period_s: seconds between two passes.
    """

    def __init__(
        self, ownership: NodeOwnership, *, is_claimed: Callable[[Node], bool], period_s: float
    ) -> None:
        self._ownership = ownership
        self._is_claimed = is_claimed
        self._silence_s = max(MAX_ANSWER_GAP_S, 2 * period_s)
        self._entries: dict[str, _ObservedNode] = {}
        self._counts: Counter[_NodeClass] = Counter()
        self._tally: NodeCounts | None = None
        self._provider_session: int | None = None

    def node_seen(self, node: Node, now: float, *, initial: bool = False) -> None:
        """Record a new or changed node; `initial`: the node existed before the watch began."""
        entry = self._entries.get(node.name)
        if entry is not None and entry.uid != node.uid:
            self.node_deleted(node.name)
            entry = None
        kind = _NodeClass(self._ownership_status(node), node.ready == names.STATUS_TRUE, None)
        if entry is None:
            entry = _ObservedNode(node.uid, node.provider_id, now, initial, kind)
            self._entries[node.name] = entry
            self._count(kind, 1)
            return
        if entry.provider_id != node.provider_id or entry.kind.is_ready != kind.is_ready:
            entry.provider_id, entry.evidence = node.provider_id, None
        exists = None if entry.evidence is None else entry.evidence.exists
        self._reclassify(entry, kind._replace(exists=exists))

    def node_deleted(self, name: str) -> None:
        """Remove a deleted node."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._count(entry.kind, -1)

    def use_session(self, provider_session: int) -> None:
        """Drop all answers if they are from another provider session."""
        if provider_session != self._provider_session:
            self._provider_session = provider_session
            for entry in self._entries.values():
                self._void(entry)

    def record_answer(
        self, queried: Node, now: float, *, exists: bool, is_second: bool = False
    ) -> None:
        """Record an answer, unless the node was deleted or replaced since the query.

        Args:
            queried: the node at the time of the query.
            now: monotonic time of the answer.
            exists: the answer: whether the instance exists.
            is_second: see `AnswerSeries`.
        """
        entry = self._entry(queried)
        if entry is None:
            return
        series = entry.evidence
        if series is None or series.exists is not exists:
            entry.evidence = AnswerSeries(exists=exists, first_answer_at=now, last_answer_at=now)
        else:
            gap_s = (
                0.0
                if series.last_answer_at is None
                else min(now - series.last_answer_at, self._silence_s)
            )
            entry.evidence = replace(
                series, last_answer_at=now, lasted_s=series.lasted_s + gap_s, is_second=is_second
            )
        standing = entry.kind.standing
        if standing is OwnershipStatus.UNCLAIMED:
            standing = self._ownership_status(queried)
        self._reclassify(entry, _NodeClass(standing, entry.kind.is_ready, exists))

    def record_error(self, asked: Node) -> None:
        """Record an error of the cloud about a node."""
        entry = self._entry(asked)
        if entry is not None and entry.evidence is not None:
            entry.evidence = replace(entry.evidence, last_answer_at=None)

    def answers(self, node: Node) -> AnswerSeries | None:
        """Return the current series of answers about a node; None = there is no answer."""
        entry = self._entry(node)
        return None if entry is None else entry.evidence

    def age_s(self, node: Node, now: float, by_wall_s: float | None) -> float:
        """Return the seconds since the node was created; 0 for an unknown node.

        The wall clock may be wrong or change. So the age of a node that was created during the
        watch is the monotonic time since this process first saw it. The age of a node that existed
        before is `by_wall_s`, but at least the monotonic time since it was first seen.

        Args:
            node: the node.
            now: monotonic time.
            by_wall_s: age by the wall clock; None = unknown, which counts as infinite.
        """
        entry = self._entries.get(node.name)
        if entry is None:
            return 0.0
        known_s = now - entry.seen
        if not entry.was_there:
            return known_s
        return max(known_s, math.inf if by_wall_s is None else by_wall_s)

    def counts(self) -> NodeCounts:
        """Return the current counts of nodes."""
        if self._tally is None:
            sums = Counter[str]()
            for kind, count in self._counts.items():
                for name in _count_fields(kind):
                    sums[name] += count
            self._tally = NodeCounts(**sums)
        return self._tally

    def witnesses(self, now: float) -> Sequence[str]:
        """Return the names of the witnesses for this pass; empty if `NodeCounts.doubted` is 0.

        A witness is a settled ready node, queried to check whether the cloud knows this cluster. A
        ready node whose instance exists according to the cloud is the only witness. If there is
        none, the number of witnesses is `NodeCounts.ready_denied` + 1, at most `MAX_WITNESSES`. No
        witness is needed if the instance of a settled node that is not ready exists. When `doubted`
        is 0 again, the answers about ready nodes are dropped.
        """
        if not self.counts().doubted:
            if any(
                n and kind.is_ready and kind.exists is not None for kind, n in self._counts.items()
            ):
                for entry in self._entries.values():
                    if entry.kind.is_ready:
                        self._void(entry)
            return ()
        # A confirmed suspect shows that the cloud knows this cluster.
        if self._counts[_NodeClass(OwnershipStatus.SETTLED, is_ready=False, exists=True)]:
            return ()
        chosen = self._chosen()
        for name in chosen:
            self._entries[name].witnessed = now
        return chosen

    def _chosen(self) -> Sequence[str]:
        ready = {
            name: entry
            for name, entry in self._entries.items()
            if entry.kind.is_ready and entry.kind.standing is OwnershipStatus.SETTLED
        }
        known = next((name for name, entry in ready.items() if entry.kind.exists), None)
        if known is not None:
            return (known,)
        count = min(1 + self.counts().ready_denied, MAX_WITNESSES)
        # Nodes that were witnesses never or longest ago come first.
        return heapq.nsmallest(count, ready, key=lambda name: ready[name].witnessed)

    def _entry(self, node: Node) -> _ObservedNode | None:
        entry = self._entries.get(node.name)
        same = entry is not None and (entry.uid, entry.provider_id) == (node.uid, node.provider_id)
        return entry if same else None

    def _ownership_status(self, node: Node) -> OwnershipStatus:
        if self._ownership.has_foreign_id(node):
            return OwnershipStatus.FOREIGN_ID
        if self._ownership.is_foreign(node):
            return OwnershipStatus.OUTSIDE
        if node.is_deleting or any(
            taint.key == names.TAINT_AUTOSCALER_DELETION for taint in node.taints
        ):
            return OwnershipStatus.LEAVING
        if node.provider_id:
            return OwnershipStatus.SETTLED
        if is_uninitialized(node):
            return OwnershipStatus.NEW
        claimed = self._ownership.has_selector or self._is_claimed(node)
        return OwnershipStatus.SETTLED if claimed else OwnershipStatus.UNCLAIMED

    def _void(self, entry: _ObservedNode) -> None:
        entry.evidence = None
        self._reclassify(entry, entry.kind._replace(exists=None))

    def _reclassify(self, entry: _ObservedNode, kind: _NodeClass) -> None:
        if kind != entry.kind:
            self._count(entry.kind, -1)
            self._count(kind, 1)
            entry.kind = kind

    def _count(self, kind: _NodeClass, more: int) -> None:
        self._counts[kind] += more
        self._tally = None


def _count_fields(kind: _NodeClass) -> Iterator[str]:
    """Yield the names of the `NodeCounts` fields that count nodes of this class."""
    standing, is_ready, exists = kind
    if standing in (OwnershipStatus.FOREIGN_ID, OwnershipStatus.OUTSIDE):
        yield "foreign"
    else:
        yield "ours"
    if standing is OwnershipStatus.FOREIGN_ID:
        yield "foreign_ids"
    if exists is False and not is_ready:
        yield "doubted"
    if exists is False and standing is OwnershipStatus.NEW:
        yield "new_denied"
    if standing is not OwnershipStatus.SETTLED:
        return
    yield "settled"
    if exists is None:
        yield "unasked"
    if exists is True:
        yield "confirmed"
    elif exists is False or not is_ready:
        # A node that is not ready and has no answer may be denied next.
        yield "denied"
    if exists is False and is_ready:
        yield "ready_denied"
