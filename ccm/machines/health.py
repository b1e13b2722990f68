"""Whether a machine's node is healthy, and which phase follows from that: a table. Pure.

What is seen of a node is a cause, or nothing; a cause leads from the phase the machine is in to
another one by `TABLE`, and nowhere where that has no edge. How long a machine is in a phase is
told by a clock that does not jump: what this process saw itself, and what had passed by the clock
on the wall when it saw the machine for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ccm.base.parsing import format_duration
from ccm.machines import inplace
from ccm.machines.creation import Outcome
from ccm.machines.settings import Names, Settings
from ccm.model import Node, NodeCondition
from ccm.model.machines import Machine, OperationState, OperationType, Phase
from ccm.model.names import CONDITION_READY, STATUS_FALSE, STATUS_TRUE

CONFIRM_S = 60.0
"""A timeout ends nothing that this process has not watched for so long. After an outage nodes are
told to be sick which only could not report, and a process that begins then knows nothing of it."""

STEADY_S = 30.0
"""A node that fell sick again soon after it had recovered is well after so long without a break."""

RELAPSE_S = 600.0
"""So soon."""

COPY_S = 30.0
"""Conditions that change nothing else are written on the machine at most once in that time."""

_COPIED = frozenset({Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED, *inplace.UNDER_WAY})
"""Phases in which they are. Not while it joins: the write that says so brings them."""

_SICK = frozenset({Phase.UNKNOWN, Phase.FAILED})
"""Phases from which a node recovers."""


class Cause(Enum):
    """What leads from one phase to another."""

    HEALTHY = "healthy"
    """The node is healthy and fit for work."""
    SICK = "sick"
    GONE = "gone"
    """The machine had a node."""
    LATE = "late"
    """The phase has lasted for as long as it may, and the node is still not what it should be."""
    UPDATED = "updated"
    NOT_UPDATED = "not updated"
    """So says whoever updated the node in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A way from one phase to another.

    Attributes:
        after: where it leads.
        state: how the operation has gone then.
        kind: what it was for; None = as it was.
        timeout_active: whether a timeout runs there.
    """

    after: Phase
    state: OperationState
    kind: OperationType | None = None
    timeout_active: bool = False


_RUNS = Edge(after=Phase.RUNNING, state=OperationState.SUCCESSFUL, kind=OperationType.HEALTH_CHECK)
_DOUBT = Edge(
    after=Phase.UNKNOWN,
    state=OperationState.PROCESSING,
    kind=OperationType.HEALTH_CHECK,
    timeout_active=True,
)
_FAILS = Edge(after=Phase.FAILED, state=OperationState.FAILED)
_UPDATED = Edge(after=Phase.UPDATED, state=OperationState.SUCCESSFUL, kind=OperationType.IN_PLACE)
_NOT_UPDATED = Edge(
    after=Phase.UPDATE_FAILED,
    state=OperationState.FAILED,
    kind=OperationType.IN_PLACE,
    timeout_active=True,
)

TABLE: Mapping[tuple[Phase, Cause], Edge] = {
    (Phase.PENDING, Cause.HEALTHY): _RUNS,
    (Phase.AVAILABLE, Cause.HEALTHY): _RUNS,
    (Phase.UNKNOWN, Cause.HEALTHY): _RUNS,
    (Phase.FAILED, Cause.HEALTHY): _RUNS,
    (Phase.TERMINATING, Cause.HEALTHY): _RUNS,
    (Phase.UPDATED, Cause.HEALTHY): _RUNS,
    # It would stay so for ever otherwise, and nobody would replace it.
    (Phase.UPDATED, Cause.SICK): _DOUBT,
    (Phase.UPDATED, Cause.GONE): _DOUBT,
    (Phase.RUNNING, Cause.SICK): _DOUBT,
    (Phase.RUNNING, Cause.GONE): _DOUBT,
    (Phase.PENDING, Cause.LATE): _FAILS,
    (Phase.UNKNOWN, Cause.LATE): _FAILS,
    (Phase.UPDATING, Cause.UPDATED): _UPDATED,
    (Phase.UPDATING, Cause.NOT_UPDATED): _NOT_UPDATED,
    (Phase.UPDATING, Cause.LATE): _NOT_UPDATED,
    (Phase.UPDATE_FAILED, Cause.UPDATED): _UPDATED,
    (Phase.UPDATE_FAILED, Cause.LATE): _FAILS,
}
"""Where a cause leads; a pair that is not here leads nowhere. A phase that is being left in other
ways (creation, deletion) has no edge, and the health of a node that is updated in place counts for
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """How long a phase may last.

    Attributes:
        limit_s: of a machine's settings, how long; None = for ever.
        since_creation: whether it counts from the creation of the machine, not of the phase.
        in_turn: whether machines of one group leave the phase by it one at a time.
    """

    limit_s: Callable[[Settings], float | None]
    since_creation: bool = False
    in_turn: bool = False


TIMEOUTS: Mapping[Phase, Timeout] = {
    Phase.PENDING: Timeout(limit_s=lambda own: own.creation_timeout_s, since_creation=True),
    Phase.UNKNOWN: Timeout(limit_s=lambda own: own.health_timeout_s, in_turn=True),
    Phase.UPDATING: Timeout(limit_s=lambda own: own.update_timeout_s),
    Phase.UPDATE_FAILED: Timeout(limit_s=lambda own: own.health_timeout_s, in_turn=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment by two clocks.

    Attributes:
        wall: the one that others write by; it may jump.
        steady_s: seconds by one that never jumps; it means something in this process only.
    """

    wall: datetime
    steady_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A phase of a machine as this process has seen it; seconds by the steady clock.

    Attributes:
        uid: of the machine.
        phase: the phase.
        since: when it was written that it began.
        known_s: since when this process knows the machine.
        age_s: how old the machine was by then.
        began_s: since when this process has seen it in this phase.
        carried_s: how long it was in it by then.
        recovered_s: when its node had recovered last; not when somebody else said so.
        relapsed: whether it fell sick again soon after that.
        healthy_s: since when its node is healthy without a break; None: it is not.
        copied_s: when conditions that change nothing else were written last.
    """

    uid: str
    phase: Phase
    since: datetime | None
    known_s: float
    age_s: float
    began_s: float
    carried_s: float = 0.0
    recovered_s: float | None = None
    relapsed: bool = False
    healthy_s: float | None = None
    copied_s: float | None = None

    def lasted_s(self, timeout: Timeout, now: Moment) -> float:
        """How much of a timeout is over."""
        if timeout.since_creation:
            return self.age_s + now.steady_s - self.known_s
        return self.carried_s + now.steady_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a look at a node gave.

    Attributes:
        cause: what follows; None: nothing.
        spell: the phase as it is seen now.
        after_s: when to look again though nothing changes; None = never.
    """

    cause: Cause | None
    spell: Spell
    after_s: float | None = None


# --- health -------------------------------------------------------------------------------------


def ailments(node: Node, unhealthy_conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the reasons why a node is unhealthy, `type=status` each."""
    conditions = {one.type: one.status for one in node.status.conditions or ()}
    ready = conditions.get(CONDITION_READY, "")
    found = [] if ready == STATUS_TRUE else [f"{CONDITION_READY}={ready or 'missing'}"]
    for kind, status in conditions.items():
        if kind in unhealthy_conditions and status != STATUS_FALSE:
            found.append(f"{kind}={status}")
    return tuple(found)


def is_critical(node: Node, settings: Settings) -> bool:
    """Return whether the node still waits for components without which nothing may run on it."""
    return any(taint.key == settings.names.critical_taint for taint in node.taints)


# --- how long -----------------------------------------------------------------------------------


def spell(machine: Machine, before: Spell | None, now: Moment) -> Spell:
    """The phase of a machine, after what was seen of the machine before."""
    status = machine.status
    if before is None or before.uid != machine.uid:
        return Spell(
            uid=machine.uid,
            phase=status.phase,
            since=status.since,
            known_s=now.steady_s,
            age_s=_since_s(machine.created, now),
            began_s=now.steady_s,
            carried_s=_since_s(status.since, now) if status.since else 0.0,
        )
    if (before.phase, before.since) == (status.phase, status.since):
        return before
    recovered_s, relapsed = before.recovered_s, before.relapsed
    if before.phase in _SICK and status.phase is Phase.RUNNING and before.healthy_s is not None:
        recovered_s = now.steady_s
    if status.phase is Phase.UNKNOWN:
        relapsed = recovered_s is not None and now.steady_s - recovered_s < RELAPSE_S
    return replace(
        before,
        phase=status.phase,
        since=status.since,
        began_s=now.steady_s,
        carried_s=0.0,
        recovered_s=recovered_s,
        relapsed=relapsed,
        healthy_s=None,
    )


def restarted(before: Spell, at_s: float) -> Spell:
    """The spell after a time in which no node could be seen: nothing before its end counts."""
    return replace(before, known_s=at_s, age_s=0.0, began_s=at_s, carried_s=0.0)


# --- what follows ---------------------------------------------------------------------------------


def look(
    machine: Machine, node: Node | None, seen: Spell, now: Moment, settings: Settings
) -> Finding:
    """What follows from a machine's node; None where it has none.

    Args:
        machine: the machine.
        node: its node.
        seen: the phase, see `spell`.
        now: the moment.
        settings: names and settings.
    """
    own = settings.of(machine)
    if machine.phase in inplace.UNDER_WAY:
        return _in_place(machine, node, own, seen, now)
    if node is None or ailments(node, own.unhealthy_conditions):
        seen = replace(seen, healthy_s=None)
        return _doubtful(machine, node, own, seen, now)
    if seen.healthy_s is None:
        seen = replace(seen, healthy_s=now.steady_s)
    if machine.phase is Phase.PENDING and is_critical(node, settings):
        return _timed(machine, own, seen, now)
    if (machine.phase, Cause.HEALTHY) not in TABLE:
        return Finding(cause=None, spell=seen)
    if machine.phase in _SICK and seen.relapsed:
        left_s = STEADY_S - (now.steady_s - (seen.healthy_s or now.steady_s))
        if left_s > 0:
            return Finding(cause=None, spell=seen, after_s=left_s)
    return Finding(cause=Cause.HEALTHY, spell=seen)


def _in_place(
    machine: Machine, node: Node | None, own: Settings, seen: Spell, now: Moment
) -> Finding:
    """Whether the node is healthy is no question while it is updated. Where that failed a machine
    with a healthy node has its time left: a person may mend it.
    """
    went = None if node is None else inplace.result(node, names=own.names)
    if went is not None:
        cause = Cause.UPDATED if went else Cause.NOT_UPDATED
        if (machine.phase, cause) in TABLE:
            return Finding(cause=cause, spell=seen)
    is_well = node is not None and not ailments(node, own.unhealthy_conditions)
    if machine.phase is Phase.UPDATE_FAILED and is_well:
        return Finding(cause=None, spell=replace(seen, began_s=now.steady_s, carried_s=0.0))
    return _timed(machine, own, seen, now)


def _doubtful(
    machine: Machine, node: Node | None, own: Settings, seen: Spell, now: Moment
) -> Finding:
    cause = Cause.SICK if node is not None else Cause.GONE
    # Without conditions it never had a node that anybody saw.
    if (machine.phase, cause) in TABLE and (node is not None or machine.status.conditions):
        return Finding(cause=cause, spell=seen)
    return _timed(machine, own, seen, now)


def _timed(machine: Machine, own: Settings, seen: Spell, now: Moment) -> Finding:
    timeout = TIMEOUTS.get(machine.phase)
    limit_s = timeout.limit_s(own) if timeout is not None else None
    if timeout is None or limit_s is None:
        return Finding(cause=None, spell=seen)
    watched_s = now.steady_s - seen.began_s
    left_s = max(
        limit_s - seen.lasted_s(timeout, now),
        min(CONFIRM_S, limit_s) - watched_s,
    )
    if left_s > 0:
        # A moment later than that: a time on an object has no fractions of seconds.
        return Finding(cause=None, spell=seen, after_s=left_s + 1)
    return Finding(cause=Cause.LATE, spell=seen)


def changed(
    machine: Machine, node: Node | None, cause: Cause, now: Moment, settings: Settings
) -> Outcome:
    """What is written where a cause leads to another phase; it has to be in the table."""
    edge, status = TABLE[machine.phase, cause], machine.status
    joins = cause is Cause.HEALTHY and _joins(machine)
    kind = OperationType.CREATE if joins else edge.kind
    found = status.entered(
        edge.after,
        _told(machine, node, cause, now, settings.of(machine)),
        edge.state,
        kind or OperationType.HEALTH_CHECK,
        now.wall,
        timeout_active=edge.timeout_active,
    )
    conditions = status.conditions if node is None else tuple(node.status.conditions or ())
    found = replace(found, kind=kind.value if kind else status.kind, conditions=conditions)
    return Outcome(status=found, joined=joins)


def copied(
    machine: Machine, node: Node | None, seen: Spell, now: Moment, settings: Settings
) -> tuple[Outcome, Spell]:
    """What is written of conditions that change nothing else."""
    if node is None or machine.phase not in _COPIED:
        return Outcome(), seen
    conditions = tuple(node.status.conditions or ())
    steps = settings.names.update_condition
    if said(machine.status.conditions, steps) == said(conditions, steps):
        return Outcome(), seen
    left_s = COPY_S - (now.steady_s - seen.copied_s) if seen.copied_s is not None else 0.0
    if left_s > 0:
        return Outcome(after_s=left_s), seen
    status = replace(machine.status, conditions=conditions)
    return Outcome(status=status), replace(seen, copied_s=now.steady_s)


def _joins(machine: Machine) -> bool:
    """Whether its node is in use for the first time."""
    status = machine.status
    return (
        status.kind == OperationType.CREATE.value
        and status.state != OperationState.SUCCESSFUL.value
    )


def _told(machine: Machine, node: Node | None, cause: Cause, now: Moment, own: Settings) -> str:
    who = f"Machine {machine.name}"
    if cause is Cause.HEALTHY:
        if not _joins(machine):
            return f"{who} successfully re-joined the cluster"
        took = timedelta(seconds=round(_since_s(machine.created, now)))
        return f"{who} successfully joined the cluster in {format_duration(took)}"
    if machine.phase in inplace.UNDER_WAY:
        return _told_in_place(machine, node, cause, own)
    if machine.phase is Phase.PENDING:
        limit = timedelta(seconds=own.creation_timeout_s)
        return f"{who} failed to join the cluster in {format_duration(limit)}"
    what = f"its node object {machine.node_name} is gone"
    if node is not None:
        what = f"node {node.name} has {', '.join(ailments(node, own.unhealthy_conditions))}"
    if cause is Cause.LATE:
        limit = timedelta(seconds=own.health_timeout_s or 0.0)
        return f"{who} has not been healthy for {format_duration(limit)}: {what}"
    return f"{who} is not healthy: {what}"


def _told_in_place(machine: Machine, node: Node | None, cause: Cause, own: Settings) -> str:
    if cause is Cause.UPDATED:
        return f"Machine {machine.name} was successfully updated in place"
    who = f"Machine {machine.name} could not be updated in place"
    if cause is Cause.NOT_UPDATED:
        return f"{who}: {inplace.why_failed(node, own) or 'nobody said why'}"
    if machine.phase is Phase.UPDATING:
        return f"{who} in {format_duration(timedelta(seconds=own.update_timeout_s))}"
    limit = timedelta(seconds=own.health_timeout_s or 0.0)
    return f"{who}, and nobody mended that for {format_duration(limit)}"


def _since_s(moment: datetime, now: Moment) -> float:
    return max(0.0, (now.wall - moment).total_seconds())


def said(conditions: Sequence[NodeCondition], steps: str) -> dict[str, tuple[str, str]]:
    """What conditions say, without heartbeats.

    Args:
        conditions: of a node.
        steps: type of the one that tells by its reason.
    """
    return {one.type: (one.status, one.reason if one.type == steps else "") for one in conditions}


def node_matters(old: Node | None, new: Node | None, names: Names) -> bool:
    """Return whether a change of a node may change something about its machine; not a heartbeat."""
    if old is None or new is None or old.uid != new.uid:
        return True
    before, after = (
        (
            one.labels,
            one.annotations,
            one.finalizers,
            one.is_deleting,
            one.taints,
            said(one.status.conditions or (), names.update_condition),
        )
        for one in (old, new)
    )
    return before != after
