"""Health of a machine's node, and the resulting phase of the machine: a table. No I/O.

Each evaluation of a node's health returns a cause for a change of phase, or None. `TABLE` maps the
current phase and a cause to the next phase; without an entry the phase stays. The duration of a
phase is measured with a monotonic clock. If the phase is older than this process, the earlier part
of its duration is computed from the wall clock when the process first sees the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ccm.base.parsing import format_duration
from ccm.cloud.machines import MachineInfo
from ccm.machines import in_place_update
from ccm.machines.creation import PassResult, merge_addresses
from ccm.machines.settings import MachineSettings, Names
from ccm.model import Node, NodeCondition
from ccm.model.machines import Machine, OperationState, OperationType, Phase
from ccm.model.names import CONDITION_READY, STATUS_FALSE, STATUS_TRUE

CONFIRM_S = 60.0
"""Minimum seconds for which this process observes a phase before its timeout takes effect. After an
outage, nodes that merely could not report appear unhealthy, and a new process does not know about
the outage."""

STEADY_S = 30.0
"""Seconds for which a relapsed node has to be healthy without a break before it counts as
recovered. A flapping node must not restart the health timeout at each short recovery."""

RELAPSE_S = 600.0
"""A node that becomes unhealthy within this many seconds after its recovery has relapsed: it flaps,
and must be healthy for `STEADY_S` to recover."""

COPY_S = 30.0
"""Minimum seconds between two writes of a machine's status that only copy the node's conditions. A
flapping condition would otherwise cost a write at each change."""

_COPIED = frozenset({Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED, *in_place_update.UNDER_WAY})
"""Phases in which a status is written even if only the node's conditions changed. While a machine
joins, the write of the next phase copies the conditions."""

_UNHEALTHY_PHASES = frozenset({Phase.UNKNOWN, Phase.FAILED})
"""Phases of a machine that end when its node recovers."""


class PhaseTrigger(Enum):
    """Reason for a change of phase."""

    HEALTHY = "healthy"
    """The node is healthy and ready for use."""
    UNHEALTHY = "unhealthy"
    NODE_MISSING = "node missing"
    """The node of a machine that had a node is missing."""
    TIMED_OUT = "timed out"
    """The phase timed out."""
    VM_GONE = "VM gone"
    """The cloud confirmed that the VM does not exist."""
    UPDATED = "updated"
    """The updater on the node reported a successful in-place update."""
    UPDATE_FAILED = "update failed"
    """The updater on the node reported a failed in-place update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTransition:
    """Transition to another phase.

    Attributes:
        phase: next phase.
        state: state of the last operation in the new status.
        kind: type of the last operation in the new status; None = unchanged.
        timeout_active: whether a timeout runs in the next phase.
    """

    phase: Phase
    state: OperationState
    kind: OperationType | None = None
    timeout_active: bool = False


_RUNS = PhaseTransition(
    phase=Phase.RUNNING, state=OperationState.SUCCESSFUL, kind=OperationType.HEALTH_CHECK
)
_UNHEALTHY = PhaseTransition(
    phase=Phase.UNKNOWN,
    state=OperationState.PROCESSING,
    kind=OperationType.HEALTH_CHECK,
    timeout_active=True,
)
_FAILS = PhaseTransition(phase=Phase.FAILED, state=OperationState.FAILED)
_UPDATED = PhaseTransition(
    phase=Phase.UPDATED, state=OperationState.SUCCESSFUL, kind=OperationType.IN_PLACE
)
_NOT_UPDATED = PhaseTransition(
    phase=Phase.UPDATE_FAILED,
    state=OperationState.FAILED,
    kind=OperationType.IN_PLACE,
    timeout_active=True,
)

TABLE: Mapping[tuple[Phase, PhaseTrigger], PhaseTransition] = {
    (Phase.PENDING, PhaseTrigger.HEALTHY): _RUNS,
    (Phase.AVAILABLE, PhaseTrigger.HEALTHY): _RUNS,
    (Phase.UNKNOWN, PhaseTrigger.HEALTHY): _RUNS,
    (Phase.FAILED, PhaseTrigger.HEALTHY): _RUNS,
    (Phase.TERMINATING, PhaseTrigger.HEALTHY): _RUNS,
    (Phase.UPDATED, PhaseTrigger.HEALTHY): _RUNS,
    # Otherwise the machine would keep this phase for ever, and never be replaced.
    (Phase.UPDATED, PhaseTrigger.UNHEALTHY): _UNHEALTHY,
    (Phase.UPDATED, PhaseTrigger.NODE_MISSING): _UNHEALTHY,
    (Phase.RUNNING, PhaseTrigger.UNHEALTHY): _UNHEALTHY,
    (Phase.RUNNING, PhaseTrigger.NODE_MISSING): _UNHEALTHY,
    (Phase.PENDING, PhaseTrigger.TIMED_OUT): _FAILS,
    (Phase.UNKNOWN, PhaseTrigger.TIMED_OUT): _FAILS,
    (Phase.PENDING, PhaseTrigger.VM_GONE): _FAILS,
    (Phase.UNKNOWN, PhaseTrigger.VM_GONE): _FAILS,
    (Phase.UPDATING, PhaseTrigger.UPDATED): _UPDATED,
    (Phase.UPDATING, PhaseTrigger.UPDATE_FAILED): _NOT_UPDATED,
    (Phase.UPDATING, PhaseTrigger.TIMED_OUT): _NOT_UPDATED,
    (Phase.UPDATE_FAILED, PhaseTrigger.UPDATED): _UPDATED,
    (Phase.UPDATE_FAILED, PhaseTrigger.TIMED_OUT): _FAILS,
}
"""Phase transitions; without an entry the phase stays. The phases in `CREATION_PHASES` have no
entry: the creation ends them. During an in-place update the node's health is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout:
    """Time limit of a phase.

    Attributes:
        limit_s: returns the limit from a machine's settings, in seconds; None = no limit.
        since_creation: whether the time counts from the creation of the machine instead of the
            start of the phase.
        needs_turn: whether the machine needs a turn of `FailureBudget` before it is marked Failed,
            so that the machines of a group fail one at a time.
    """

    limit_s: Callable[[MachineSettings], float | None]
    since_creation: bool = False
    needs_turn: bool = False


TIMEOUTS: Mapping[Phase, Timeout] = {
    Phase.PENDING: Timeout(limit_s=lambda own: own.creation_timeout_s, since_creation=True),
    Phase.UNKNOWN: Timeout(limit_s=lambda own: own.health_timeout_s, needs_turn=True),
    Phase.UPDATING: Timeout(limit_s=lambda own: own.update_timeout_s),
    Phase.UPDATE_FAILED: Timeout(limit_s=lambda own: own.health_timeout_s, needs_turn=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Point in time on two clocks.

    Attributes:
        wall: wall-clock time, comparable with timestamps on objects; it may jump.
        steady_s: seconds of a monotonic clock; meaningful in this process only.
    """

    wall: datetime
    steady_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseHistory:
    """Phase of a machine as this process observed it.

    Fields in seconds are times of the monotonic clock, or durations.

    Attributes:
        uid: UID of the machine.
        phase: the phase.
        since: start of the phase, from the object's status.
        known_s: time at which this process first saw the machine.
        age_s: age of the machine at `known_s`.
        began_s: time at which this process first saw the machine in this phase.
        carried_s: duration of the phase before `began_s`.
        recovered_s: time of the node's last recovery; None = this process observed no recovery.
        relapsed: whether the node became unhealthy within `RELAPSE_S` after `recovered_s`.
        healthy_s: time since which the node has been healthy without a break; None = unhealthy.
        copied_s: time of the last write that only copied conditions; None = no such write yet.
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

    def elapsed_s(self, timeout: Timeout, now: Moment) -> float:
        """Return how many seconds of a timeout have elapsed."""
        if timeout.since_creation:
            return self.age_s + now.steady_s - self.known_s
        return self.carried_s + now.steady_s - self.began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckResult:
    """Result of a health evaluation.

    Attributes:
        cause: reason for a change of phase; None = no change.
        history: the updated history of the phase.
        after_s: delay of the next evaluation, in seconds; None = only a change requires one.
    """

    cause: PhaseTrigger | None
    history: PhaseHistory
    after_s: float | None = None


# --- health -------------------------------------------------------------------------------------


def unhealthy_conditions(node: Node, unhealthy_conditions: Sequence[str]) -> tuple[str, ...]:
    """Return the conditions that make a node unhealthy, as `type=status`."""
    conditions = {condition.type: condition.status for condition in node.status.conditions or ()}
    ready = conditions.get(CONDITION_READY, "")
    unhealthy = [] if ready == STATUS_TRUE else [f"{CONDITION_READY}={ready or 'missing'}"]
    for kind, status in conditions.items():
        if kind in unhealthy_conditions and status != STATUS_FALSE:
            unhealthy.append(f"{kind}={status}")
    return tuple(unhealthy)


def is_critical(node: Node, settings: MachineSettings) -> bool:
    """Return whether the node has the taint of critical components that are not ready."""
    return any(taint.key == settings.names.critical_taint for taint in node.taints)


# --- durations ----------------------------------------------------------------------------------


def phase_history(machine: Machine, before: PhaseHistory | None, now: Moment) -> PhaseHistory:
    """Return the history of a machine's phase, continued from the history `before`.

    `before` is None if this process sees the machine for the first time.
    """
    status = machine.status
    if before is None or before.uid != machine.uid:
        return PhaseHistory(
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
    if (
        before.phase in _UNHEALTHY_PHASES
        and status.phase is Phase.RUNNING
        and before.healthy_s is not None
    ):
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


def restart_history(before: PhaseHistory, at_s: float) -> PhaseHistory:
    """Return the history after an outage of node observations: all timeouts restart at `at_s`.

    `at_s` is the end of the outage, in seconds of the monotonic clock.
    """
    return replace(before, known_s=at_s, age_s=0.0, began_s=at_s, carried_s=0.0)


# --- transitions ----------------------------------------------------------------------------------


def evaluate_health(
    machine: Machine,
    node: Node | None,
    history: PhaseHistory,
    now: Moment,
    settings: MachineSettings,
) -> HealthCheckResult:
    """Evaluate the health of a machine's node.

    Args:
        machine: the machine.
        node: its node; None = missing.
        history: history of the phase, see `phase_history`.
        now: the time.
        settings: names and settings.
    """
    own = settings.of(machine)
    if machine.phase in in_place_update.UNDER_WAY:
        return _evaluate_in_place(machine, node, own, history, now)
    if node is None or unhealthy_conditions(node, own.unhealthy_conditions):
        history = replace(history, healthy_s=None)
        return _evaluate_unhealthy(machine, node, own, history, now)
    if history.healthy_s is None:
        history = replace(history, healthy_s=now.steady_s)
    if machine.phase is Phase.PENDING and is_critical(node, settings):
        return _evaluate_timeout(machine, own, history, now)
    if (machine.phase, PhaseTrigger.HEALTHY) not in TABLE:
        return HealthCheckResult(cause=None, history=history)
    if machine.phase in _UNHEALTHY_PHASES and history.relapsed:
        left_s = STEADY_S - (now.steady_s - (history.healthy_s or now.steady_s))
        if left_s > 0:
            return HealthCheckResult(cause=None, history=history, after_s=left_s)
    return HealthCheckResult(cause=PhaseTrigger.HEALTHY, history=history)


def _evaluate_in_place(
    machine: Machine, node: Node | None, own: MachineSettings, seen: PhaseHistory, now: Moment
) -> HealthCheckResult:
    """Evaluate the in-place update of a node.

    After a failed update, the timeout restarts while the node is healthy, so that a user may repair
    the node.
    """
    succeeded = None if node is None else in_place_update.update_succeeded(node, names=own.names)
    if succeeded is not None:
        cause = PhaseTrigger.UPDATED if succeeded else PhaseTrigger.UPDATE_FAILED
        if (machine.phase, cause) in TABLE:
            return HealthCheckResult(cause=cause, history=seen)
    is_well = node is not None and not unhealthy_conditions(node, own.unhealthy_conditions)
    if machine.phase is Phase.UPDATE_FAILED and is_well:
        return HealthCheckResult(
            cause=None, history=replace(seen, began_s=now.steady_s, carried_s=0.0)
        )
    return _evaluate_timeout(machine, own, seen, now)


def _evaluate_unhealthy(
    machine: Machine, node: Node | None, own: MachineSettings, seen: PhaseHistory, now: Moment
) -> HealthCheckResult:
    cause = PhaseTrigger.UNHEALTHY if node is not None else PhaseTrigger.NODE_MISSING
    # Without copied conditions, the machine's node was never seen, so it does not count as missing.
    if (machine.phase, cause) in TABLE and (node is not None or machine.status.conditions):
        return HealthCheckResult(cause=cause, history=seen)
    if node is not None and machine.phase is Phase.PENDING and own.joins_unready:
        return HealthCheckResult(cause=None, history=seen)
    return _evaluate_timeout(machine, own, seen, now)


def _evaluate_timeout(
    machine: Machine, own: MachineSettings, seen: PhaseHistory, now: Moment
) -> HealthCheckResult:
    timeout = TIMEOUTS.get(machine.phase)
    limit_s = timeout.limit_s(own) if timeout is not None else None
    if timeout is None or limit_s is None:
        return HealthCheckResult(cause=None, history=seen)
    watched_s = now.steady_s - seen.began_s
    # The timeout and the minimum observation by this process must both have passed.
    left_s = max(limit_s - seen.elapsed_s(timeout, now), min(CONFIRM_S, limit_s) - watched_s)
    if left_s > 0:
        # One second more: timestamps on objects have whole seconds.
        return HealthCheckResult(cause=None, history=seen, after_s=left_s + 1)
    return HealthCheckResult(cause=PhaseTrigger.TIMED_OUT, history=seen)


def transition_result(
    machine: Machine, node: Node | None, cause: PhaseTrigger, now: Moment, settings: MachineSettings
) -> PassResult:
    """Return the result that writes the next phase; `TABLE` must contain phase and cause."""
    edge, status = TABLE[machine.phase, cause], machine.status
    joins = cause is PhaseTrigger.HEALTHY and _is_joining(machine)
    kind = OperationType.CREATE if joins else edge.kind
    entered = status.entered(
        edge.phase,
        _description(machine, node, cause, now, settings.of(machine)),
        edge.state,
        kind or OperationType.HEALTH_CHECK,
        now.wall,
        timeout_active=edge.timeout_active,
    )
    conditions = status.conditions if node is None else tuple(node.status.conditions or ())
    entered = replace(entered, kind=kind.value if kind else status.kind, conditions=conditions)
    return PassResult(status=entered, joined=joins)


def condition_copy(
    machine: Machine,
    node: Node | None,
    history: PhaseHistory,
    now: Moment,
    settings: MachineSettings,
) -> tuple[PassResult, PhaseHistory]:
    """Return the result that only copies the node's conditions, if due, and the new history."""
    if node is None or machine.phase not in _COPIED:
        return PassResult(), history
    conditions = tuple(node.status.conditions or ())
    steps = settings.names.update_condition
    if condition_states(machine.status.conditions, steps) == condition_states(conditions, steps):
        return PassResult(), history
    left_s = COPY_S - (now.steady_s - history.copied_s) if history.copied_s is not None else 0.0
    if left_s > 0:
        return PassResult(after_s=left_s), history
    status = replace(machine.status, conditions=conditions)
    return PassResult(status=status), replace(history, copied_s=now.steady_s)


def address_copy(machine: Machine, vm: MachineInfo, outcome: PassResult) -> PassResult:
    """Return the result that also writes addresses which the cloud assigned after the creation."""
    addresses = merge_addresses(machine, vm)
    if set(addresses) == set(machine.status.addresses):
        return outcome
    return replace(outcome, status=replace(outcome.status or machine.status, addresses=addresses))


def _is_joining(machine: Machine) -> bool:
    """Return whether the machine has not joined before."""
    status = machine.status
    return (
        status.kind == OperationType.CREATE.value
        and status.state != OperationState.SUCCESSFUL.value
    )


def _description(
    machine: Machine, node: Node | None, cause: PhaseTrigger, now: Moment, own: MachineSettings
) -> str:
    prefix = f"Machine {machine.name}"
    if cause is PhaseTrigger.HEALTHY:
        if not _is_joining(machine):
            return f"{prefix} successfully re-joined the cluster"
        took = timedelta(seconds=round(_since_s(machine.created, now)))
        return f"{prefix} successfully joined the cluster in {format_duration(took)}"
    if machine.phase in in_place_update.UNDER_WAY:
        return _in_place_description(machine, node, cause, own)
    if cause is PhaseTrigger.VM_GONE:
        return f"{prefix} has lost its VM {machine.provider_id}: the cloud does not know it"
    if machine.phase is Phase.PENDING:
        limit = timedelta(seconds=own.creation_timeout_s or 0.0)
        return f"{prefix} failed to join the cluster in {format_duration(limit)}"
    reason = f"its node object {machine.node_name} is missing"
    if node is not None:
        conditions = ", ".join(unhealthy_conditions(node, own.unhealthy_conditions))
        reason = f"node {node.name} has {conditions}"
    if cause is PhaseTrigger.TIMED_OUT:
        limit = timedelta(seconds=own.health_timeout_s or 0.0)
        return f"{prefix} has not been healthy for {format_duration(limit)}: {reason}"
    return f"{prefix} is not healthy: {reason}"


def _in_place_description(
    machine: Machine, node: Node | None, cause: PhaseTrigger, own: MachineSettings
) -> str:
    if cause is PhaseTrigger.UPDATED:
        return f"Machine {machine.name} was successfully updated in place"
    prefix = f"Machine {machine.name} could not be updated in place"
    if cause is PhaseTrigger.UPDATE_FAILED:
        return f"{prefix}: {in_place_update.failure_reason(node, own) or 'no reason was given'}"
    if machine.phase is Phase.UPDATING:
        return f"{prefix} in {format_duration(timedelta(seconds=own.update_timeout_s))}"
    limit = timedelta(seconds=own.health_timeout_s or 0.0)
    return f"{prefix}, and was not repaired within {format_duration(limit)}"


def _since_s(moment: datetime, now: Moment) -> float:
    return max(0.0, (now.wall - moment).total_seconds())


def condition_states(conditions: Sequence[NodeCondition], steps: str) -> dict[str, tuple[str, str]]:
    """Return the status of each condition, for comparisons; for the type `steps`, also the reason.

    Heartbeats and messages are left out.

    Args:
        conditions: conditions of a node.
        steps: type of the condition whose reason is included.
    """
    return {
        condition.type: (condition.status, condition.reason if condition.type == steps else "")
        for condition in conditions
    }


def node_matters(old: Node | None, new: Node | None, names: Names) -> bool:
    """Return whether a change of a node may affect its machine; heartbeats do not."""
    if old is None or new is None or old.uid != new.uid:
        return True
    before, after = (
        (
            version.labels,
            version.annotations,
            version.finalizers,
            version.is_deleting,
            version.taints,
            condition_states(version.status.conditions or (), names.update_condition),
        )
        for version in (old, new)
    )
    return before != after
