"""Limit of replacements: decides which unhealthy machine may be marked Failed now. No I/O.

A machine that is marked Failed is replaced, and its Pods move. If all unhealthy machines failed at
once, a network outage would become an outage of the cluster. So a machine waits while another
machine of its group is under way, that is, being created, replaced or deleted. When most nodes are
unhealthy, the nodes are probably not the cause. Then a machine also waits for replacements of
unhealthy machines in all other groups, but not for other creations and deletions there.

A machine blocks others only until a time limit, because it may be stuck, for example on a quota.
The controller acquires a turn for a machine before it writes the phase Failed. A turn ends when the
cache shows the write, so that no two machines fail at the same time. After a restart, phases and
times on the objects show which machines block others. A machine that is then being created counts
as a replacement of an unhealthy machine, because it may be one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ccm.model.machines import Machine, OperationType, Phase
from ccm.model.times import parse_optional_time

MELTDOWN_SHARE = 0.55
"""Share of unhealthy nodes above which the nodes are probably not the cause
(kube-controller-manager, the default of --unhealthy-zone-threshold)."""

MELTDOWN_MIN_NODES = 3
"""Minimum number of unhealthy nodes for `MELTDOWN_SHARE` to apply (kube-controller-manager: more
than two)."""

_JOINING = frozenset({Phase.NEW, Phase.CRASH_LOOP, Phase.PENDING, Phase.AVAILABLE})
"""Phases of a machine that may be the replacement of another machine."""


class ReplacementState(Enum):
    """State of a machine with regard to replacements in its group."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """The node is unhealthy; the machine needs a turn before it may be marked Failed."""
    UNDER_WAY = "under way"
    """The machine is being created, replaced or deleted: other machines of the group wait."""
    PRESERVED = "preserved"
    """The machine failed and is preserved: no other machine waits for it."""


def replacement_state(machine: Machine) -> ReplacementState:
    """Return the state of a machine with regard to replacements in its group."""
    if machine.is_deleting or machine.phase is Phase.TERMINATING:
        return ReplacementState.UNDER_WAY
    if machine.phase is Phase.RUNNING:
        return ReplacementState.HEALTHY
    if machine.phase in (Phase.UNKNOWN, Phase.UPDATE_FAILED):
        # If failed updates counted as under way, two of them would wait for each other.
        return ReplacementState.UNHEALTHY
    return (
        ReplacementState.UNDER_WAY
        if machine.status.preserve_until is None
        else ReplacementState.PRESERVED
    )


def under_way_since(machine: Machine) -> datetime:
    """Return the time since which a machine has been under way, from timestamps on its object."""
    if deleted := parse_optional_time(machine.metadata.deletion_timestamp):
        return deleted
    if machine.phase in _JOINING or machine.status.since is None:
        return machine.created
    return machine.status.since


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Reason why a machine has to wait.

    Attributes:
        why: the reason, as one clause.
        wait_s: seconds after which the blocking machine no longer blocks.
    """

    why: str
    wait_s: float


@dataclass(slots=True, kw_only=True)
class _Group:
    """Machines of one group that block other machines; times are seconds of a monotonic clock.

    Attributes:
        replaced: key of an unhealthy machine that was marked Failed, or of a replacement -> start
            of the replacement.
        others: keys of machines that are under way for other reasons.
        others_since_s: time since which `others` has never been empty.
        last_failed_s: time at which an unhealthy machine was last marked Failed.
    """

    replaced: dict[str, float] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    others_since_s: float = 0.0
    last_failed_s: float = -math.inf


class FailureBudget:
    """Limit of machines that are marked Failed at the same time.

    A turn is the permission to mark a machine Failed. The caller reports every change of a machine
    to `note`, acquires a turn before it marks a machine Failed, and releases an unused turn. A used
    turn ends when `note` gets the machine with the phase Failed.

    Args:
        limit_s: seconds after which a machine under way no longer blocks others.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._groups: dict[str, _Group] = {}
        self._known: dict[str, tuple[str, ReplacementState]] = {}
        self._count = dict.fromkeys(ReplacementState, 0)
        self._turns: dict[str, str] = {}
        self.waiting: set[str] = set()
        """Keys of machines that have to wait for a turn."""

    @property
    def is_meltdown(self) -> bool:
        """Whether so many nodes are unhealthy that the nodes are probably not the cause."""
        unhealthy = self._count[ReplacementState.UNHEALTHY]
        known = unhealthy + self._count[ReplacementState.HEALTHY]
        return unhealthy >= MELTDOWN_MIN_NODES and unhealthy > MELTDOWN_SHARE * known

    def note(
        self, key: str, machine: Machine | None, now_s: float, *, age_s: float | None = None
    ) -> Collection[str]:
        """Record a change of a machine; return the keys of machines that may get a turn now.

        Args:
            key: key of the machine.
            machine: the machine as it is now; None = it was deleted.
            now_s: the time, in seconds of a monotonic clock.
            age_s: seconds since `under_way_since`, if the machine existed before this process;
                else None.
        """
        was_meltdown = self.is_meltdown
        before = self._known.pop(key, None)
        was_blocking = (
            before is not None and before[1] is ReplacementState.UNDER_WAY
        ) or key in self._turns
        after = None if machine is None else (machine.group, replacement_state(machine))
        state = None if after is None else after[1]
        if state is not ReplacementState.UNHEALTHY:
            # The cache shows the written phase, or the machine has recovered.
            self._end_turn(key)
            self.waiting.discard(key)
        if before is not None:
            self._count[before[1]] -= 1
        if after is not None:
            self._known[key] = after
            self._count[after[1]] += 1
        if before != after and before is not None and before[1] is ReplacementState.UNDER_WAY:
            self._drop(key, before[0])
        if before != after and machine is not None and state is ReplacementState.UNDER_WAY:
            before_state = before[1] if before is not None else None
            self._add(key, machine, before=before_state, now_s=now_s, age_s=age_s)
        holds = state is ReplacementState.UNDER_WAY or key in self._turns
        freed = (was_blocking and not holds) or (was_meltdown and not self.is_meltdown)
        return self._take_waiting() if freed else ()

    def acquire(self, machine: Machine, now_s: float) -> Blocker | None:
        """Acquire a turn for a machine; return the reason to wait, or None = acquired."""
        key = machine.key
        for other, since_s in self._blocking(machine.group):
            wait_s = since_s + self._limit_s - now_s
            if other != key and wait_s > 0:
                self.waiting.add(key)
                reason = "most nodes are unhealthy, so machines are replaced one at a time: "
                prefix = reason if self.is_meltdown else ""
                text = f"{prefix}{other} is being created, replaced or deleted"
                return Blocker(why=text, wait_s=wait_s)
        self.waiting.discard(key)
        self._turns[key] = machine.group
        began_s = self._group(machine.group).replaced
        # A repeated call, as after a rejected write, does not extend the turn.
        if now_s - began_s.get(key, -math.inf) >= self._limit_s:
            began_s[key] = now_s
        return None

    def release(self, machine: Machine) -> Collection[str]:
        """Release a machine's turn; return the keys of machines that may get a turn now."""
        self.waiting.discard(machine.key)
        return self._take_waiting() if self._end_turn(machine.key) else ()

    def _blocking(self, group: str) -> Iterator[tuple[str, float]]:
        """Yield the keys of machines that block a group, each with the start of its time limit."""
        own = self._groups.get(group) if group else None
        for blocking in self._groups.values() if self.is_meltdown else filter(None, [own]):
            yield from blocking.replaced.items()
        if own is not None and own.others:
            yield next(iter(own.others)), own.others_since_s

    def _take_waiting(self) -> Collection[str]:
        woken, self.waiting = self.waiting, set()
        return woken

    def _end_turn(self, key: str) -> bool:
        """End a machine's turn; return whether the machine had one."""
        group = self._turns.pop(key, None)
        if group is None:
            return False
        self._drop(key, group)
        return True

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _add(
        self,
        key: str,
        machine: Machine,
        *,
        before: ReplacementState | None,
        now_s: float,
        age_s: float | None,
    ) -> None:
        """Add a machine whose state has just become `UNDER_WAY`."""
        group = self._group(machine.group)
        at_s = now_s - (age_s or 0.0)
        if _is_health_replacement(machine, before, is_initial=age_s is not None):
            group.replaced[key] = at_s
            group.last_failed_s = max(at_s, group.last_failed_s)
        elif (
            before is None
            and machine.phase in _JOINING
            and now_s - group.last_failed_s < self._limit_s
        ):
            # The time limit counts from the last failure: otherwise a replacement that cannot be
            # created would renew the limit for ever.
            group.replaced[key] = group.last_failed_s
        else:
            group.others_since_s = min(at_s, group.others_since_s) if group.others else at_s
            group.others[key] = None

    def _drop(self, key: str, name: str) -> None:
        group = self._group(name)
        group.replaced.pop(key, None)
        group.others.pop(key, None)
        if group == _Group():
            del self._groups[name]


def _is_health_replacement(
    machine: Machine, before: ReplacementState | None, *, is_initial: bool
) -> bool:
    """Return whether a machine under way belongs to the replacement of an unhealthy machine.

    After a restart, True also if the machine only may belong to such a replacement.
    """
    is_ending = machine.is_deleting or machine.phase is Phase.TERMINATING
    if before in (ReplacementState.UNHEALTHY, ReplacementState.PRESERVED):
        return is_ending or machine.phase is Phase.FAILED
    if machine.phase is Phase.FAILED and not is_ending:
        return machine.status.kind != OperationType.CREATE.value
    # After a restart, the object does not tell why the machine is being created or deleted.
    return is_initial and (is_ending or machine.phase in _JOINING)
