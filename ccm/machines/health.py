"""Health of a machine's node, and the phase that follows from it: a table. Pure.

Each observation of a node yields a cause or nothing. `TABLE` leads from the present phase and a
cause to the next phase; without an entry the phase stays. The duration of a phase is measured by a
monotonic clock. For a machine that is older than this process, the time that had passed before is
taken from the wall clock when the machine is first seen.
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
"""Minimum time that this process observes a machine before a timeout takes effect. After an outage,
nodes are reported as unhealthy that merely could not report, and a new process does not know
that."""

STEADY_S = 30.0
"""Time that a relapsed node has to be healthy without a break before it counts as recovered."""

RELAPSE_S = 600.0
"""A node that becomes unhealthy this soon after its recovery has relapsed."""

COPY_S = 30.0
"""Minimum time between two writes of conditions that change nothing else."""

_COPIED = frozenset({Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED, *inplace.UNDER_WAY})
"""Phases in which such conditions are written. Not while a machine joins: the write of the next
phase includes them."""

_SICK = frozenset({Phase.UNKNOWN, Phase.FAILED})
"""Phases from which a node recovers."""


class Cause(Enum):
    """Reason for a change of phase."""

    HEALTHY = "healthy"
    """The node is healthy and ready for use."""
    SICK = "sick"
    GONE = "gone"
    """The node that the machine had is missing."""
    LATE = "late"
    """The phase timed out."""
    UPDATED = "updated"
    NOT_UPDATED = "not updated"
    """Result that the updater of the node reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Transition to another phase.

    Attributes:
        after: next phase.
        state: state of the operation then.
        kind: type of the operation then; None = unchanged.
        timeout_active: whether a timeout runs in the next phase.
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
    # Otherwise the machine would keep this phase for ever, and never be replaced.
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
"""Transitions; without an entry the phase stays. Phases that end in other ways (creation, deletion)
have no entry. During an update in place the health of the node is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """Time limit of a phase.

    Attributes:
        limit_s: returns the limit from a machine's settings, in seconds; None = no limit.
        since_creation: whether the time counts from the creation of the machine, not from the start
            of the phase.
        in_turn: whether the timeout needs a turn of `Replacements`, so that one machine of a group
            fails at a time.
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
    """Time by two clocks.

    Attributes:
        wall: wall-clock time, comparable with timestamps on objects; it may jump.
        steady_s: seconds of a monotonic clock; meaningful in this process only.
    """

    wall: datetime
    steady_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Phase of a machine as this process observed it.

    Fields in seconds are times of the monotonic clock, or durations.

    Attributes:
        uid: UID of the machine.
        phase: the phase.
        since: timestamp of the phase on the object.
        known_s: time at which this process first saw the machine.
        age_s: age of the machine at that time.
        began_s: time at which this process first saw the machine in this phase.
        carried_s: duration of the phase before that time.
        recovered_s: time of the node's last recovery that this process observed.
        relapsed: whether the node became unhealthy again soon after that.
        healthy_s: time since which the node has been healthy without a break; None = it is not.
        copied_s: time of the last write of conditions that changed nothing else.
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
        """Return the elapsed seconds of a timeout."""
        if timeout.since_creation:
            return self.age_s + now.steady_s - self.known_s
        return self.carried_s + now.steady_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a health evaluation.

    Attributes:
        cause: reason for a change of phase; None = no change.
        spell: the updated observation.
        after_s: delay of the next evaluation, in seconds; None = only a change requires one.
    """

    cause: Cause | None
    spell: Spell
    after_s: float | None = None


# --- health -------------------------------------------------------------------------------------


def ailments(node: Node, unhealthy_conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the conditions that make a node unhealthy, as `type=status`."""
    conditions = {condition.type: condition.status for condition in node.status.conditions or ()}
    ready = conditions.get(CONDITION_READY, "")
    unhealthy = [] if ready == STATUS_TRUE else [f"{CONDITION_READY}={ready or 'missing'}"]
    for kind, status in conditions.items():
        if kind in unhealthy_conditions and status != STATUS_FALSE:
            unhealthy.append(f"{kind}={status}")
    return tuple(unhealthy)


def is_critical(node: Node, settings: Settings) -> bool:
    """Return whether the node waits for components without which Pods may not run on it."""
    return any(taint.key == settings.names.critical_taint for taint in node.taints)


# --- durations ----------------------------------------------------------------------------------


def spell(machine: Machine, before: Spell | None, now: Moment) -> Spell:
    """Return the observation of a machine's phase, continued from the previous one."""
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
    """Return the observation after an outage of node observations, which starts at its end."""
    return replace(before, known_s=at_s, age_s=0.0, began_s=at_s, carried_s=0.0)


# --- transitions ----------------------------------------------------------------------------------


def look(
    machine: Machine, node: Node | None, seen: Spell, now: Moment, settings: Settings
) -> Finding:
    """Evaluate the health of a machine's node.

    Args:
        machine: the machine.
        node: its node; None = it has none.
        seen: observation of the phase, see `spell`.
        now: the time.
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
    """Evaluate a node that is updated in place, regardless of its health.

    After a failed update, a healthy node restarts the timeout, so that a user may repair it.
    """
    succeeded = None if node is None else inplace.result(node, names=own.names)
    if succeeded is not None:
        cause = Cause.UPDATED if succeeded else Cause.NOT_UPDATED
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
    # A machine without conditions never had a node that was observed.
    if (machine.phase, cause) in TABLE and (node is not None or machine.status.conditions):
        return Finding(cause=cause, spell=seen)
    return _timed(machine, own, seen, now)


def _timed(machine: Machine, own: Settings, seen: Spell, now: Moment) -> Finding:
    timeout = TIMEOUTS.get(machine.phase)
    limit_s = timeout.limit_s(own) if timeout is not None else None
    if timeout is None or limit_s is None:
        return Finding(cause=None, spell=seen)
    watched_s = now.steady_s - seen.began_s
    # The timeout has to pass, and a minimum time of observation by this process.
    left_s = max(
        limit_s - seen.lasted_s(timeout, now),
        min(CONFIRM_S, limit_s) - watched_s,
    )
    if left_s > 0:
        # One second more: timestamps on objects have whole seconds.
        return Finding(cause=None, spell=seen, after_s=left_s + 1)
    return Finding(cause=Cause.LATE, spell=seen)


def changed(
    machine: Machine, node: Node | None, cause: Cause, now: Moment, settings: Settings
) -> Outcome:
    """Return the outcome that writes the next phase; phase and cause have to be in `TABLE`."""
    edge, status = TABLE[machine.phase, cause], machine.status
    joins = cause is Cause.HEALTHY and _joins(machine)
    kind = OperationType.CREATE if joins else edge.kind
    entered = status.entered(
        edge.after,
        _told(machine, node, cause, now, settings.of(machine)),
        edge.state,
        kind or OperationType.HEALTH_CHECK,
        now.wall,
        timeout_active=edge.timeout_active,
    )
    conditions = status.conditions if node is None else tuple(node.status.conditions or ())
    entered = replace(entered, kind=kind.value if kind else status.kind, conditions=conditions)
    return Outcome(status=entered, joined=joins)


def copied(
    machine: Machine, node: Node | None, seen: Spell, now: Moment, settings: Settings
) -> tuple[Outcome, Spell]:
    """Return the outcome that writes only conditions, and the new observation."""
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
    """Return whether the node is ready for use for the first time."""
    status = machine.status
    return (
        status.kind == OperationType.CREATE.value
        and status.state != OperationState.SUCCESSFUL.value
    )


def _told(machine: Machine, node: Node | None, cause: Cause, now: Moment, own: Settings) -> str:
    prefix = f"Machine {machine.name}"
    if cause is Cause.HEALTHY:
        if not _joins(machine):
            return f"{prefix} successfully re-joined the cluster"
        took = timedelta(seconds=round(_since_s(machine.created, now)))
        return f"{prefix} successfully joined the cluster in {format_duration(took)}"
    if machine.phase in inplace.UNDER_WAY:
        return _told_in_place(machine, node, cause, own)
    if machine.phase is Phase.PENDING:
        limit = timedelta(seconds=own.creation_timeout_s)
        return f"{prefix} failed to join the cluster in {format_duration(limit)}"
    reason = f"its node object {machine.node_name} is gone"
    if node is not None:
        reason = f"node {node.name} has {', '.join(ailments(node, own.unhealthy_conditions))}"
    if cause is Cause.LATE:
        limit = timedelta(seconds=own.health_timeout_s or 0.0)
        return f"{prefix} has not been healthy for {format_duration(limit)}: {reason}"
    return f"{prefix} is not healthy: {reason}"


def _told_in_place(machine: Machine, node: Node | None, cause: Cause, own: Settings) -> str:
    if cause is Cause.UPDATED:
        return f"Machine {machine.name} was successfully updated in place"
    prefix = f"Machine {machine.name} could not be updated in place"
    if cause is Cause.NOT_UPDATED:
        return f"{prefix}: {inplace.why_failed(node, own) or 'nobody said why'}"
    if machine.phase is Phase.UPDATING:
        return f"{prefix} in {format_duration(timedelta(seconds=own.update_timeout_s))}"
    limit = timedelta(seconds=own.health_timeout_s or 0.0)
    return f"{prefix}, and nobody mended that for {format_duration(limit)}"


def _since_s(moment: datetime, now: Moment) -> float:
    return max(0.0, (now.wall - moment).total_seconds())


def said(conditions: Sequence[NodeCondition], steps: str) -> dict[str, tuple[str, str]]:
    """Return the contents of conditions, without heartbeats and messages.

    Args:
        conditions: conditions of a node.
        steps: type of the condition whose reason counts, too.
    """
    return {
        condition.type: (condition.status, condition.reason if condition.type == steps else "")
        for condition in conditions
    }


def node_matters(old: Node | None, new: Node | None, names: Names) -> bool:
    """Return whether a change of a node may matter to its machine; heartbeats do not."""
    if old is None or new is None or old.uid != new.uid:
        return True
    before, after = (
        (
            version.labels,
            version.annotations,
            version.finalizers,
            version.is_deleting,
            version.taints,
            said(version.status.conditions or (), names.update_condition),
        )
        for version in (old, new)
    )
    return before != after
