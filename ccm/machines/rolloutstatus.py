"""Rollout of a MachineDeployment: progress, history, and patches to change it. No I/O.

Counterpart in Kubernetes: `kubectl rollout`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from ccm.machines import progress, rollout
from ccm.machines.codec import Codec
from ccm.machines.replicas import with_members
from ccm.machines.rollout import Rollback
from ccm.machines.settings import Names
from ccm.model.machines import MachineDeployment, MachineSet
from ccm.model.names import ANNOTATION_CHANGE_CAUSE
from ccm.model.patches import Patch, uid_precondition
from ccm.model.times import format_time


class RolloutRequestError(Exception):
    """The request is impossible in the current state; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """Progress of a rollout.

    Attributes:
        text: one line for users.
        done: whether waiting is over: the rollout is complete or has failed.
        failed: whether the rollout cannot continue by itself.
    """

    text: str
    done: bool = False
    failed: bool = False


def rollout_progress(obj: MachineDeployment) -> RolloutProgress:
    """Return the progress of a deployment's rollout."""
    name, status = obj.name, obj.status
    if status.observed < obj.metadata.generation:
        return RolloutProgress(text=f'Waiting for "{name}" to be observed by its controller...')
    progressing = status.condition(progress.PROGRESSING)
    if progressing is not None and progressing.reason in (
        progress.DEADLINE_EXCEEDED,
        progress.INVALID,
    ):
        return RolloutProgress(
            text=f'"{name}" cannot continue: {progressing.message}', done=True, failed=True
        )
    waits = f'Waiting for "{name}": '
    if progressing is not None and progressing.reason == progress.SET_CREATE_ERROR:
        return RolloutProgress(text=f"{waits}{progressing.message}; retrying...")
    if status.updated < obj.replicas:
        paused = "; the rollout is paused" if obj.is_paused else ""
        counts = f"{status.updated} of {obj.replicas} machines are new"
        return RolloutProgress(text=f"{waits}{counts}{paused}...")
    if (old := status.replicas - status.updated) > 0:
        return RolloutProgress(text=f"{waits}{old} old machine{'s' if old > 1 else ''} left...")
    if (surplus := status.replicas - obj.replicas) > 0:
        return RolloutProgress(
            text=f"{waits}{surplus} surplus machine{'s' if surplus > 1 else ''} left..."
        )
    if status.available < obj.replicas:
        counts = f"{status.available} of {obj.replicas} new machines are available"
        return RolloutProgress(text=f"{waits}{counts}...")
    return RolloutProgress(text=f'"{name}" is rolled out', done=True)


def find_rollback(
    obj: MachineDeployment, sets: Sequence[MachineSet], revision: int, names: Names
) -> Rollback:
    """Resolve a rollback to a revision; 0 = the previous revision.

    Raises:
        RolloutRequestError: the deployment is paused, or the revision does not exist.
    """
    if obj.is_paused:
        raise RolloutRequestError(f'"{obj.name}" is paused; resume it first')
    views = [with_members(machine_set, ()) for machine_set in sets]
    answer = rollout.resolve_rollback(replace(obj, rollback_to=revision), views, names)
    if answer.to is None and not answer.is_same:
        known = sorted(
            filter(None, (rollout.revision_of(view.annotations, names) for view in views))
        )
        revisions = f" Known revisions: {', '.join(map(str, known))}." if known else ""
        raise RolloutRequestError(f"{answer.error}{revisions}")
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A template that a deployment has or had.

    Attributes:
        number: number of the revision.
        set: set with the template.
        cause: why the template changed, from the annotation of the set; empty = not recorded.
    """

    number: int
    set: MachineSet
    cause: str = ""


def revisions(sets: Iterable[MachineSet], names: Names) -> Sequence[Revision]:
    """Return the revisions of a deployment, the oldest first; `sets` = the sets it controls."""
    found = (
        Revision(
            number=rollout.revision_of(machine_set.annotations, names),
            set=machine_set,
            cause=machine_set.annotations.get(ANNOTATION_CHANGE_CAUSE, ""),
        )
        for machine_set in sets
    )
    # A set without a revision was not created for the deployment, or is only just being adopted.
    numbered = (revision for revision in found if revision.number)
    return sorted(numbered, key=lambda revision: (revision.number, revision.set.creation_key))


def restart_patch(obj: MachineDeployment, codec: Codec, now: datetime) -> Patch:
    """Return the patch that replaces all machines of a deployment by a rollout.

    Raises:
        RolloutRequestError: the deployment is paused, or was restarted in the same second.
    """
    if obj.is_paused:
        raise RolloutRequestError(f'"{obj.name}" is paused; resume it first')
    patch = codec.restart_patch(obj, format_time(now))
    if patch is None:
        raise RolloutRequestError(f'"{obj.name}" was restarted a moment ago; try again in 1s')
    return patch


def pause_patch(obj: MachineDeployment, *, paused: bool) -> Patch:
    """Return the patch that pauses or resumes a deployment.

    Raises:
        RolloutRequestError: the deployment is in that state already.
    """
    if obj.is_paused is paused:
        raise RolloutRequestError(f'"{obj.name}" is {"already" if paused else "not"} paused')
    return {"metadata": uid_precondition(obj), "spec": {"paused": paused or None}}
