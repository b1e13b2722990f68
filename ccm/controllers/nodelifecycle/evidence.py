"""What the cloud has said about each node, and about all of them together. Pure: told the time.

Evidence is an unbroken row of equal answers about one instance of one Node object. Another UID,
provider ID, opening of the provider, readiness or answer begins a new row. An error is no answer:
it breaks no row, as it takes nothing back, and it prolongs none, as nothing was said meanwhile.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from ccm.cloud.lookup import Ownership
from ccm.model import Node, names
from ccm.model.node import is_uninitialized

LONGEST_SILENCE_S = 60.0
"""What a silence between two answers counts for at most: our own pauses prove nothing."""

MOST_WITNESSES = 100
"""Most nodes beside the suspects that are asked about in one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A row of answers; times are monotonic.

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

    def goes_on(self, now: float, *, is_second: bool, silence_s: float) -> Evidence:
        """The row with one more answer; a silence before it counts as `silence_s` at most."""
        gap_s = 0.0 if self.heard is None else min(now - self.heard, silence_s)
        return replace(self, heard=now, lasted_s=self.lasted_s + gap_s, is_second=is_second)


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
        has_doubt: whether the cloud denies any node that is not ready.
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
    has_doubt: bool = False


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
        self, ownership: Ownership, *, is_claimed: Callable[[Node], bool], period_s: float
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
            silence_s = self._silence_s
            entry.evidence = row.goes_on(now, is_second=is_second, silence_s=silence_s)
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
            self._tally = Tally(
                ours=self._sum(lambda kind: kind.standing not in _FOREIGN),
                foreign_ids=self._sum(lambda kind: kind.standing is Standing.FOREIGN_ID),
                foreign=self._sum(lambda kind: kind.standing in _FOREIGN),
                settled=self._settled(lambda _: True),
                denied=self._settled(_is_denied),
                ready_denied=self._settled(lambda kind: kind.exists is False and kind.is_ready),
                confirmed=self._settled(lambda kind: kind.exists is True),
                unasked=self._settled(lambda kind: kind.exists is None),
                new_denied=self._sum(_is_new_denied),
                has_doubt=self._sum(_is_doubtful) > 0,
            )
        return self._tally

    def witnesses(self, now: float) -> Sequence[str]:
        """Ready nodes to ask about too, because some other node is denied.

        A cloud that confirms one of them knows our cluster. The one that it confirmed is asked
        about again as long as it does; while it confirms none, it is asked about more and more.
        Without doubt about any node, what it said about ready ones is forgotten.
        """
        if not self.tally().has_doubt:
            if self._sum(lambda kind: kind.exists is not None and kind.is_ready):
                for entry in self._entries.values():
                    if entry.kind.is_ready:
                        self._void(entry)
            return ()
        if self._settled(lambda kind: kind.exists is True and not kind.is_ready):
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
        denied = self._settled(lambda kind: kind.is_ready and kind.exists is False)
        count = min(1 + denied, MOST_WITNESSES)
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

    def _sum(self, wanted: Callable[[_Kind], bool]) -> int:
        return sum(count for kind, count in self._counts.items() if wanted(kind))

    def _settled(self, wanted: Callable[[_Kind], bool]) -> int:
        return self._sum(lambda kind: kind.standing is Standing.SETTLED and wanted(kind))


_FOREIGN = (Standing.FOREIGN_ID, Standing.OUTSIDE)


def _is_denied(kind: _Kind) -> bool:
    """Who is not ready and was not asked about may be denied next."""
    return kind.exists is False or (kind.exists is None and not kind.is_ready)


def _is_doubtful(kind: _Kind) -> bool:
    return kind.exists is False and not kind.is_ready


def _is_new_denied(kind: _Kind) -> bool:
    return kind.exists is False and kind.standing is Standing.NEW
