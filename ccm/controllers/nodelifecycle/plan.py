"""Readiness, existence and power of a node: what follows. Pure.

`judge` is the one place where the deletion of a Node is decided. Every rule that protects
nodes belongs there. A cloud is believed about one node only as far as its word about the others
allows: with wrong credentials, or in an outage, a cloud denies what is there. `Census` keeps its
answers and is told the time.
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

LONGEST_SILENCE_S = 60.0
"""The most that a silence between two answers counts for: our own pauses prove nothing."""

MOST_WITNESSES = 100
"""Most nodes beside the suspects that are asked about in one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """An unbroken row of equal answers about one instance of one Node object; times are monotonic.

    Another UID, provider ID, opening of the provider, readiness or answer begins a new row. An
    error is no answer: it breaks no row, as it takes nothing back, and it prolongs none, as
    nothing was said meanwhile.

    Attributes:
        exists: what each of them says.
        since: when the first came.
        heard: when the latest came; None = there was an error after it.
        lasted_s: how long it has been said, without errors and long silences.
        is_second: whether the latest was asked uncached, a period after the first had come.
    """

    exists: bool
    since: float
    heard: float | None
    lasted_s: float = 0.0
    is_second: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many nodes there are of some kinds.

    Attributes:
        ours: all that are not foreign.
        foreign_ids: those with another cloud's provider ID.
        foreign: these, and those outside of what was selected as ours.
        settled: those of ours by which the cloud's word is weighed.
        denied: of the settled, those denied now, or not ready and not asked about yet.
        ready_denied: of the settled, those denied now although they are ready.
        confirmed: of the settled, those confirmed now.
        unasked: of the settled, those of which the cloud has not said anything.
        new_denied: new ones that are denied now.
        doubted: those that are not ready and denied.
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

    ownership: NodeOwnership
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
    waits_with_id = bool(node.provider_id) and is_uninitialized(node)
    if facts.age_s < max(rules.least_age_s, INITIALISING_S if waits_with_id else 0.0):
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


def is_suspect(node: Node, ownership: NodeOwnership) -> bool:
    """Whether the node has to be looked at in every pass.

    A ready node is not, unless it still carries the shutdown taint; a foreign node never is.
    """
    if node.ready == names.STATUS_TRUE and not has_shutdown_taint(node):
        return False
    return not ownership.is_foreign(node)


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
        shutdown = (SHUTDOWN_TAINT.key, SHUTDOWN_TAINT.effect)
        taints = [taint for taint in node.taints if (taint.key, taint.effect) != shutdown]
    elif tainted or state is None or state.power is not Power.SHUTDOWN:
        return None
    else:
        taints = [*node.taints, SHUTDOWN_TAINT]
    # The list is written whole and must not undo another's change.
    return {"metadata": same_version(node), "spec": {"taints": taints_value(taints)}}


class Standing(Enum):
    """What a node counts as when the cloud's word is weighed."""

    FOREIGN_ID = "another cloud's"
    OUTSIDE = "not selected as ours"
    LEAVING = "ours, and being deleted"
    NEW = "ours if anybody's: waits for its cloud, and has no provider ID"
    UNCLAIMED = "without a provider ID, and nothing says that it is ours"
    SETTLED = "ours"


class _Kind(NamedTuple):
    standing: Standing
    is_ready: bool
    exists: bool | None


@dataclass(slots=True)
class _Entry:
    uid: str
    provider_id: str
    seen: float
    was_there: bool
    kind: _Kind
    evidence: Evidence | None = None
    witnessed: float = -math.inf


class Census:
    """All nodes of the cache with the evidence about them; its sums are kept, never recounted.

    Args:
        ownership: which nodes are ours.
        is_claimed: whether the cloud has confirmed a node without provider ID.
        period_s: seconds between two passes.
    """

    def __init__(
        self, ownership: NodeOwnership, *, is_claimed: Callable[[Node], bool], period_s: float
    ) -> None:
        self._ownership = ownership
        self._is_claimed = is_claimed
        self._silence_s = max(LONGEST_SILENCE_S, 2 * period_s)
        self._entries: dict[str, _Entry] = {}
        self._counts: Counter[_Kind] = Counter()
        self._tally: Tally | None = None
        self._opening: int | None = None

    def saw(self, node: Node, now: float, *, initial: bool = False) -> None:
        """The node is in the cache, as it was or changed; `initial`: before we were."""
        entry = self._entries.get(node.name)
        if entry is not None and entry.uid != node.uid:
            self.lost(node.name)
            entry = None
        kind = _Kind(self._standing(node), node.ready == names.STATUS_TRUE, None)
        if entry is None:
            entry = _Entry(node.uid, node.provider_id, now, initial, kind)
            self._entries[node.name] = entry
            self._count(kind, 1)
            return
        if entry.provider_id != node.provider_id or entry.kind.is_ready != kind.is_ready:
            entry.provider_id, entry.evidence = node.provider_id, None
        exists = None if entry.evidence is None else entry.evidence.exists
        self._turn(entry, kind._replace(exists=exists))

    def lost(self, name: str) -> None:
        """The node is gone."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._count(entry.kind, -1)

    def use(self, opening: int) -> None:
        """Answers come from this opening of the provider; what another said is void."""
        if opening != self._opening:
            self._opening = opening
            for entry in self._entries.values():
                self._void(entry)

    def heard(self, asked: Node, now: float, *, exists: bool, is_second: bool = False) -> None:
        """The cloud answered about a node; nothing follows if it is another by now."""
        entry = self._entry(asked)
        if entry is None:
            return
        row = entry.evidence
        if row is None or row.exists is not exists:
            entry.evidence = Evidence(exists=exists, since=now, heard=now)
        else:
            gap_s = 0.0 if row.heard is None else min(now - row.heard, self._silence_s)
            entry.evidence = replace(
                row, heard=now, lasted_s=row.lasted_s + gap_s, is_second=is_second
            )
        standing = entry.kind.standing
        if standing is Standing.UNCLAIMED:
            standing = self._standing(asked)
        self._turn(entry, _Kind(standing, entry.kind.is_ready, exists))

    def failed(self, asked: Node) -> None:
        """The cloud did not answer about a node."""
        entry = self._entry(asked)
        if entry is not None and entry.evidence is not None:
            entry.evidence = replace(entry.evidence, heard=None)

    def evidence(self, node: Node) -> Evidence | None:
        """What the cloud says about the instance of a node; None = nothing."""
        entry = self._entry(node)
        return None if entry is None else entry.evidence

    def age_s(self, node: Node, now: float, by_wall_s: float | None) -> float:
        """Seconds since the node was created.

        A clock on the wall may be wrong, or be set: of a node that came while we watched, the
        time we have known it is sure; of the others, it is the least.
        """
        entry = self._entries.get(node.name)
        if entry is None:
            return 0.0
        known_s = now - entry.seen
        if not entry.was_there:
            return known_s
        return max(known_s, math.inf if by_wall_s is None else by_wall_s)

    def tally(self) -> Tally:
        """The sums as they are now."""
        if self._tally is None:
            sums = Counter[str]()
            for kind, count in self._counts.items():
                for name in _sums_of(kind):
                    sums[name] += count
            self._tally = Tally(**sums)
        return self._tally

    def witnesses(self, now: float) -> Sequence[str]:
        """Ready nodes to ask about too, because some other node is denied.

        A cloud that confirms one of them knows our cluster. The one that it confirmed is asked
        about again as long as it does; while it confirms none, it is asked about more and more.
        Without doubt about any node, what it said about ready ones is forgotten.
        """
        if not self.tally().doubted:
            if any(
                n and kind.is_ready and kind.exists is not None for kind, n in self._counts.items()
            ):
                for entry in self._entries.values():
                    if entry.kind.is_ready:
                        self._void(entry)
            return ()
        if self._counts[_Kind(Standing.SETTLED, is_ready=False, exists=True)]:
            return ()
        chosen = self._chosen()
        for name in chosen:
            self._entries[name].witnessed = now
        return chosen

    def _chosen(self) -> Sequence[str]:
        ready = {
            name: entry
            for name, entry in self._entries.items()
            if entry.kind.is_ready and entry.kind.standing is Standing.SETTLED
        }
        known = next((name for name, entry in ready.items() if entry.kind.exists), None)
        if known is not None:
            return (known,)
        count = min(1 + self.tally().ready_denied, MOST_WITNESSES)
        return heapq.nsmallest(count, ready, key=lambda name: ready[name].witnessed)

    def _entry(self, node: Node) -> _Entry | None:
        entry = self._entries.get(node.name)
        same = entry is not None and (entry.uid, entry.provider_id) == (node.uid, node.provider_id)
        return entry if same else None

    def _standing(self, node: Node) -> Standing:
        if self._ownership.has_foreign_id(node):
            return Standing.FOREIGN_ID
        if self._ownership.is_foreign(node):
            return Standing.OUTSIDE
        if node.is_deleting or any(
            taint.key == names.TAINT_AUTOSCALER_DELETION for taint in node.taints
        ):
            return Standing.LEAVING
        if node.provider_id:
            return Standing.SETTLED
        if is_uninitialized(node):
            return Standing.NEW
        claimed = self._ownership.is_explicit or self._is_claimed(node)
        return Standing.SETTLED if claimed else Standing.UNCLAIMED

    def _void(self, entry: _Entry) -> None:
        entry.evidence = None
        self._turn(entry, entry.kind._replace(exists=None))

    def _turn(self, entry: _Entry, kind: _Kind) -> None:
        if kind != entry.kind:
            self._count(entry.kind, -1)
            self._count(kind, 1)
            entry.kind = kind

    def _count(self, kind: _Kind, more: int) -> None:
        self._counts[kind] += more
        self._tally = None


def _sums_of(kind: _Kind) -> Iterator[str]:
    """The fields of a `Tally` in which nodes of this kind count."""
    standing, is_ready, exists = kind
    if standing in (Standing.FOREIGN_ID, Standing.OUTSIDE):
        yield "foreign"
    else:
        yield "ours"
    if standing is Standing.FOREIGN_ID:
        yield "foreign_ids"
    if exists is False and not is_ready:
        yield "doubted"
    if exists is False and standing is Standing.NEW:
        yield "new_denied"
    if standing is not Standing.SETTLED:
        return
    yield "settled"
    if exists is None:
        yield "unasked"
    if exists is True:
        yield "confirmed"
    elif exists is False or not is_ready:
        # One that is not ready and was not asked about may be denied next.
        yield "denied"
    if exists is False and is_ready:
        yield "ready_denied"
