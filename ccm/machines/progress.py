"""How far a deployment is, as it is said in its status. Pure.

Conditions that others write stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ccm.machines import replicas
from ccm.machines.replicas import PopulatedSet, ready_in_s
from ccm.model.machines import Condition, DeploymentStatus, MachineDeployment, Phase
from ccm.model.names import STATUS_FALSE, STATUS_TRUE, STATUS_UNKNOWN

AVAILABLE, PROGRESSING, FAILURE = "Available", "Progressing", "ReplicaFailure"
OWN = frozenset({AVAILABLE, PROGRESSING, FAILURE})
"""Types of conditions that are written here (apps Deployment controller)."""

ENOUGH, NOT_ENOUGH = "MinimumReplicasAvailable", "MinimumReplicasUnavailable"
MADE, FOUND = "NewMachineSetCreated", "FoundNewMachineSet"
MOVES, DONE, TOO_LATE = "MachineSetUpdated", "NewMachineSetAvailable", "ProgressDeadlineExceeded"
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"
NOT_MADE = "MachineSetCreateError"
UNUSABLE = "InvalidDeployment"
"""Reasons (reference); the last one is ours: what is asked for cannot be done."""

_OVER = frozenset({DONE, UNUSABLE, RESUMED, NOT_MADE})
"""Reasons after which a rollout begins, or goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the status follows from.

    Attributes:
        deployment: the deployment.
        new: the set of its newest template, None while there is none.
        olds: the others.
        made: name of the set that is made now; else empty.
        now: this moment.
    """

    deployment: MachineDeployment
    new: PopulatedSet | None
    olds: Sequence[PopulatedSet]
    made: str = ""
    now: datetime

    @property
    def sets(self) -> Sequence[PopulatedSet]:
        """All sets."""
        return self.olds if self.new is None else [*self.olds, self.new]


def status(seen: Seen) -> DeploymentStatus:
    """The status that says what there is."""
    deployment, now = seen.deployment, seen.now
    members = [member for one in seen.sets for member in one.members]
    wanted = sum(one.replicas for one in seen.sets if not one.is_deleting)
    available = sum(one.is_available(deployment.min_ready_s, now) for one in members)
    found = replace(
        deployment.status,
        observed=deployment.metadata.generation,
        replicas=len(members),
        updated=0 if seen.new is None else len(seen.new.members),
        ready=sum(one.machine.phase is Phase.RUNNING for one in members),
        available=available,
        preserved=sum(
            one.machine.phase is Phase.FAILED and one.kept_until is not None for one in members
        ),
        unavailable=max(0, wanted - available),
        failed=tuple(each for one in seen.sets for each in one.status.failed),
    )
    return replace(found, conditions=_conditions(seen, found))


def refusal(deployment: MachineDeployment, now: datetime) -> DeploymentStatus:
    """Return the status that says why nothing can be done; it counts nothing."""
    return stopped(deployment, now, UNUSABLE, " ".join(deployment.faults))


def stopped(
    deployment: MachineDeployment, now: datetime, reason: str, text: str
) -> DeploymentStatus:
    """Return the status that says why a rollout does not go on."""
    before = deployment.status
    wanted = Condition(type=PROGRESSING, status=STATUS_FALSE, reason=reason, message=text)
    others = [one for one in before.conditions if one.type != PROGRESSING]
    said = _said(before.condition(PROGRESSING), wanted, now)
    return replace(before, observed=deployment.metadata.generation, conditions=(*others, said))


def due_s(seen: Seen, said: DeploymentStatus) -> float | None:
    """Seconds until time alone changes something; None: never."""
    deployment = seen.deployment
    works = [member.machine for one in seen.sets for member in one.members if member.machine.works]
    found = [ready_in_s(one, deployment.min_ready_s, seen.now) for one in works]
    waits = [left_s for left_s in found if left_s > 0]
    progress = said.condition(PROGRESSING)
    ends = _deadline(deployment, progress)
    if ends is not None and ends >= seen.now:
        waits.append((ends - seen.now).total_seconds() + 1.0)
    return min(waits, default=None)


def _conditions(seen: Seen, found: DeploymentStatus) -> tuple[Condition, ...]:
    before = seen.deployment.status
    wanted = [_availability(seen, found), _progress(seen, found), *_failures(seen)]
    others = [one for one in before.conditions if one.type not in OWN]
    said = [_said(before.condition(one.type), one, seen.now) for one in wanted if one is not None]
    return (*others, *said)


def _availability(seen: Seen, found: DeploymentStatus) -> Condition:
    deployment = seen.deployment
    floor = deployment.replicas - found.preserved - replicas.unavailable(deployment)
    enough = found.available >= max(floor, 0)
    return Condition(
        type=AVAILABLE,
        status=STATUS_TRUE if enough else STATUS_FALSE,
        reason=ENOUGH if enough else NOT_ENOUGH,
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    )


def _progress(seen: Seen, found: DeploymentStatus) -> Condition | None:
    deployment, before = seen.deployment, seen.deployment.status
    last = before.condition(PROGRESSING)
    if deployment.is_paused or (last is not None and last.reason == PAUSED):
        return _pause(deployment, last)
    if seen.made:
        return _moves(MADE, f'Created new machine set "{seen.made}"', seen.now)
    counts = {found.updated, found.replicas, found.available}
    if seen.new is not None and counts == {deployment.replicas}:
        text = f'MachineSet "{_name(seen)}" has successfully progressed.'
        return Condition(type=PROGRESSING, status=STATUS_TRUE, reason=DONE, message=text)
    if last is not None and last.reason == DONE and found.replicas == found.updated:
        # Complete once is complete: what fails later is no rollout that does not move on.
        return last
    if last is None and seen.new is not None:
        return _moves(FOUND, f'Found new machine set "{seen.new.name}"', seen.now)
    if last is None or last.reason in _OVER or _has_moved(before, found):
        return _moves(MOVES, f'MachineSet "{_name(seen)}" is progressing.', seen.now)
    ends = _deadline(deployment, last)
    if ends is not None and seen.now > ends:
        text = f'MachineSet "{_name(seen)}" has timed out progressing.'
        return Condition(type=PROGRESSING, status=STATUS_FALSE, reason=TOO_LATE, message=text)
    return last


def _pause(deployment: MachineDeployment, last: Condition | None) -> Condition | None:
    if last is not None and last.reason == TOO_LATE:
        return last
    reason = PAUSED if deployment.is_paused else RESUMED
    text = f"Deployment is {'paused' if deployment.is_paused else 'resumed'}"
    return Condition(type=PROGRESSING, status=STATUS_UNKNOWN, reason=reason, message=text)


def _moves(reason: str, text: str, now: datetime) -> Condition:
    return Condition(type=PROGRESSING, status=STATUS_TRUE, reason=reason, message=text, updated=now)


def _name(seen: Seen) -> str:
    return seen.new.name if seen.new is not None else seen.deployment.name


def _has_moved(before: DeploymentStatus, found: DeploymentStatus) -> bool:
    """Whether more is done than was when the status was written."""
    return (
        found.updated > before.updated
        or found.replicas - found.updated < before.replicas - before.updated
        or found.ready > before.ready
        or found.available > before.available
    )


def _deadline(deployment: MachineDeployment, last: Condition | None) -> datetime | None:
    """Until when there has to be progress; None: nobody waits for it, or it is too late already."""
    if deployment.deadline_s is None or last is None or last.updated is None:
        return None
    if last.reason in (DONE, TOO_LATE, PAUSED, UNUSABLE, NOT_MADE):
        return None
    return last.updated + timedelta(seconds=deployment.deadline_s)


def _failures(seen: Seen) -> Sequence[Condition]:
    """That of the new set goes before those of old ones."""
    found = [
        one
        for each in reversed(seen.sets)
        for one in each.status.conditions
        if (one.type, one.status) == (FAILURE, STATUS_TRUE)
    ]
    return found[:1]


def _said(before: Condition | None, wanted: Condition, now: datetime) -> Condition:
    """A condition with the moments that belong to it; the former one where it says the same."""
    if before is None or before.status != wanted.status:
        return replace(wanted, updated=now, since=now)
    same = (before.reason, before.message) == (wanted.reason, wanted.message)
    updated = wanted.updated or (before.updated if same else now)
    return replace(wanted, updated=updated, since=before.since)
