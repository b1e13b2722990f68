"""Status of a deployment. No I/O.

Conditions that other programs write are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ccm.machines import replicas
from ccm.machines.replicas import PopulatedSet, available_in_s
from ccm.model.machines import Condition, DeploymentStatus, MachineDeployment, Phase
from ccm.model.names import STATUS_FALSE, STATUS_TRUE, STATUS_UNKNOWN

AVAILABLE, PROGRESSING, FAILURE = "Available", "Progressing", "ReplicaFailure"
OWN = frozenset({AVAILABLE, PROGRESSING, FAILURE})
"""Condition types that this module writes, as the Deployment controller of Kubernetes does."""

ENOUGH, NOT_ENOUGH = "MinimumReplicasAvailable", "MinimumReplicasUnavailable"
NEW_SET_CREATED, NEW_SET_FOUND = "NewMachineSetCreated", "FoundNewMachineSet"
SET_UPDATED, NEW_SET_AVAILABLE, DEADLINE_EXCEEDED = (
    "MachineSetUpdated",
    "NewMachineSetAvailable",
    "ProgressDeadlineExceeded",
)
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"
SET_CREATE_ERROR = "MachineSetCreateError"
INVALID = "InvalidDeployment"
"""Reasons of conditions (Gardener's MCM). `InvalidDeployment` is ours: the spec is invalid."""

_RESTARTING = frozenset({NEW_SET_AVAILABLE, INVALID, RESUMED, SET_CREATE_ERROR})
"""Reasons of Progressing that are replaced as soon as the rollout starts, or goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """State from which the status is derived.

    Attributes:
        deployment: the deployment.
        new: the set of its newest template; None = not created yet.
        olds: the other sets.
        new_set_name: name of the set that this pass creates; empty = none.
        now: the time.
    """

    deployment: MachineDeployment
    new: PopulatedSet | None
    olds: Sequence[PopulatedSet]
    new_set_name: str = ""
    now: datetime

    @property
    def sets(self) -> Sequence[PopulatedSet]:
        """All sets, the new one last."""
        return self.olds if self.new is None else [*self.olds, self.new]


def rollout_status(seen: RolloutState) -> DeploymentStatus:
    """Return the status of a deployment."""
    deployment, now = seen.deployment, seen.now
    members = [member for machine_set in seen.sets for member in machine_set.members]
    wanted = sum(machine_set.replicas for machine_set in seen.sets if not machine_set.is_deleting)
    available = sum(member.is_available(deployment.min_ready_s, now) for member in members)
    counted = replace(
        deployment.status,
        observed=deployment.metadata.generation,
        replicas=len(members),
        updated=0 if seen.new is None else len(seen.new.members),
        ready=sum(member.machine.phase is Phase.RUNNING for member in members),
        available=available,
        preserved=sum(
            member.machine.phase is Phase.FAILED and member.preserved_until is not None
            for member in members
        ),
        unavailable=max(0, wanted - available),
        failed=tuple(failure for machine_set in seen.sets for failure in machine_set.status.failed),
    )
    return replace(counted, conditions=_conditions(seen, counted))


def invalid_status(deployment: MachineDeployment, now: datetime) -> DeploymentStatus:
    """Return the status of an invalid deployment; the counts stay unchanged."""
    return stopped_status(deployment, now, INVALID, " ".join(deployment.faults))


def stopped_status(
    deployment: MachineDeployment, now: datetime, reason: str, text: str
) -> DeploymentStatus:
    """Return the status with Progressing False for a reason.

    The observed generation becomes the current generation. The counts and the other conditions stay
    unchanged.
    """
    before = deployment.status
    wanted = Condition(type=PROGRESSING, status=STATUS_FALSE, reason=reason, message=text)
    others = [condition for condition in before.conditions if condition.type != PROGRESSING]
    progressing = _stamped(before.condition(PROGRESSING), wanted, now)
    return replace(
        before, observed=deployment.metadata.generation, conditions=(*others, progressing)
    )


def next_change_s(seen: RolloutState, status: DeploymentStatus) -> float | None:
    """Return the seconds until the status changes by time alone; None = never."""
    deployment = seen.deployment
    works = [
        member.machine
        for machine_set in seen.sets
        for member in machine_set.members
        if member.machine.counts_as_ready
    ]
    delays = [available_in_s(machine, deployment.min_ready_s, seen.now) for machine in works]
    waits = [left_s for left_s in delays if left_s > 0]
    progress = status.condition(PROGRESSING)
    ends = _deadline(deployment, progress)
    if ends is not None and ends >= seen.now:
        waits.append((ends - seen.now).total_seconds() + 1.0)
    return min(waits, default=None)


def _conditions(seen: RolloutState, counted: DeploymentStatus) -> tuple[Condition, ...]:
    before = seen.deployment.status
    wanted = [_availability(seen, counted), _progress(seen, counted), *_failures(seen)]
    others = [condition for condition in before.conditions if condition.type not in OWN]
    stamped = [
        _stamped(before.condition(condition.type), condition, seen.now)
        for condition in wanted
        if condition is not None
    ]
    return (*others, *stamped)


def _availability(seen: RolloutState, counted: DeploymentStatus) -> Condition:
    deployment = seen.deployment
    floor = deployment.replicas - counted.preserved - replicas.unavailable(deployment)
    enough = counted.available >= max(floor, 0)
    return Condition(
        type=AVAILABLE,
        status=STATUS_TRUE if enough else STATUS_FALSE,
        reason=ENOUGH if enough else NOT_ENOUGH,
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    )


def _progress(seen: RolloutState, counted: DeploymentStatus) -> Condition | None:
    deployment, before = seen.deployment, seen.deployment.status
    last = before.condition(PROGRESSING)
    if deployment.is_paused or (last is not None and last.reason == PAUSED):
        return _pause(deployment, last)
    if seen.new_set_name:
        return _progressing(
            NEW_SET_CREATED, f'Created new machine set "{seen.new_set_name}"', seen.now
        )
    counts = {counted.updated, counted.replicas, counted.available}
    if seen.new is not None and counts == {deployment.replicas}:
        text = f'MachineSet "{_name(seen)}" has successfully progressed.'
        return Condition(
            type=PROGRESSING, status=STATUS_TRUE, reason=NEW_SET_AVAILABLE, message=text
        )
    if (
        last is not None
        and last.reason == NEW_SET_AVAILABLE
        and counted.replicas == counted.updated
    ):
        # A complete rollout stays complete, even if machines fail later.
        return last
    if last is None and seen.new is not None:
        return _progressing(NEW_SET_FOUND, f'Found new machine set "{seen.new.name}"', seen.now)
    if last is None or last.reason in _RESTARTING or _has_moved(before, counted):
        return _progressing(SET_UPDATED, f'MachineSet "{_name(seen)}" is progressing.', seen.now)
    ends = _deadline(deployment, last)
    if ends is not None and seen.now > ends:
        text = f'MachineSet "{_name(seen)}" has timed out progressing.'
        return Condition(
            type=PROGRESSING, status=STATUS_FALSE, reason=DEADLINE_EXCEEDED, message=text
        )
    return last


def _pause(deployment: MachineDeployment, last: Condition | None) -> Condition | None:
    if last is not None and last.reason == DEADLINE_EXCEEDED:
        return last
    reason = PAUSED if deployment.is_paused else RESUMED
    text = f"Deployment is {'paused' if deployment.is_paused else 'resumed'}"
    return Condition(type=PROGRESSING, status=STATUS_UNKNOWN, reason=reason, message=text)


def _progressing(reason: str, text: str, now: datetime) -> Condition:
    return Condition(type=PROGRESSING, status=STATUS_TRUE, reason=reason, message=text, updated=now)


def _name(seen: RolloutState) -> str:
    return seen.new.name if seen.new is not None else seen.deployment.name


def _has_moved(before: DeploymentStatus, counted: DeploymentStatus) -> bool:
    """Return whether the rollout progressed since the status `before` was written."""
    return (
        counted.updated > before.updated
        or counted.replicas - counted.updated < before.replicas - before.updated
        or counted.ready > before.ready
        or counted.available > before.available
    )


def _deadline(deployment: MachineDeployment, last: Condition | None) -> datetime | None:
    """Return the time limit for progress.

    None = the deployment has no limit, or the rollout is complete, paused or has failed.
    """
    if deployment.deadline_s is None or last is None or last.updated is None:
        return None
    if last.reason in (NEW_SET_AVAILABLE, DEADLINE_EXCEEDED, PAUSED, INVALID, SET_CREATE_ERROR):
        return None
    return last.updated + timedelta(seconds=deployment.deadline_s)


def _failures(seen: RolloutState) -> Sequence[Condition]:
    """Return a true `ReplicaFailure` condition, preferably the new set's; empty = none is true."""
    failures = [
        condition
        for machine_set in reversed(seen.sets)
        for condition in machine_set.status.conditions
        if (condition.type, condition.status) == (FAILURE, STATUS_TRUE)
    ]
    return failures[:1]


def _stamped(before: Condition | None, wanted: Condition, now: datetime) -> Condition:
    """Return the condition `wanted` with timestamps; unchanged parts keep former timestamps."""
    if before is None or before.status != wanted.status:
        return replace(wanted, updated=now, since=now)
    same = (before.reason, before.message) == (wanted.reason, wanted.message)
    updated = wanted.updated or (before.updated if same else now)
    return replace(wanted, updated=updated, since=before.since)
