"""Status of a deployment's rollout, and requests about it. Pure.

Counterpart in Kubernetes: `kubectl rollout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ccm.gardener.decoding import NAMES
from ccm.machines import progress, rollout
from ccm.machines.replicas import populated
from ccm.machines.rollout import Revert
from ccm.model.machines import MachineDeployment, MachineSet
from ccm.model.patches import Patch, same_object, same_version


class CannotBeDone(Exception):
    """The request is impossible in the present state; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a rollout.

    Attributes:
        text: one line for users.
        done: whether there is nothing to wait for.
        failed: whether the rollout cannot continue by itself.
    """

    text: str
    done: bool = False
    failed: bool = False


def progress_of(obj: MachineDeployment) -> Progress:
    """Return the progress of a deployment's rollout."""
    name, status = obj.name, obj.status
    if status.observed < obj.metadata.generation:
        return Progress(text=f'Waiting for "{name}" to be looked at by its controller...')
    progressing = status.condition(progress.PROGRESSING)
    if progressing is not None and progressing.reason in (progress.TOO_LATE, progress.UNUSABLE):
        return Progress(
            text=f'"{name}" does not move on: {progressing.message}', done=True, failed=True
        )
    waits = f'Waiting for "{name}": '
    if progressing is not None and progressing.reason == progress.NOT_MADE:
        return Progress(text=f"{waits}{progressing.message}; it is tried again...")
    if status.updated < obj.replicas:
        paused = "; it is paused" if obj.is_paused else ""
        counts = f"{status.updated} of {obj.replicas} machines are new"
        return Progress(text=f"{waits}{counts}{paused}...")
    if (old := status.replicas - status.updated) > 0:
        return Progress(text=f"{waits}{old} old machine{'s' if old > 1 else ''} to go...")
    if status.replicas > obj.replicas:
        return Progress(text=f"{waits}{status.replicas - obj.replicas} machines too many to go...")
    if status.available < obj.replicas:
        counts = f"{status.available} of {obj.replicas} new machines are available"
        return Progress(text=f"{waits}{counts}...")
    return Progress(text=f'"{name}" is rolled out', done=True)


def way_back(obj: MachineDeployment, sets: Sequence[MachineSet], revision: int) -> Revert:
    """Return the result of a rollback to a revision; 0 = the previous one.

    Raises:
        CannotBeDone: the deployment is paused, or there is no such revision.
    """
    if obj.is_paused:
        raise CannotBeDone(f'"{obj.name}" is paused; resume it first')
    views = [populated(machine_set, ()) for machine_set in sets]
    answer = rollout.revert(replace(obj, rollback_to=revision), views, NAMES)
    if answer.to is None and not answer.is_same:
        known = sorted(filter(None, (rollout.number(view.annotations, NAMES) for view in views)))
        revisions = f" There are {', '.join(map(str, known))}." if known else ""
        raise CannotBeDone(f"{answer.why_not}{revisions}")
    return answer


def rollback_patch(obj: MachineDeployment, revision: int) -> Patch:
    """Return the patch that requests a rollback."""
    metadata = same_object(obj) | same_version(obj)
    return {"metadata": metadata, "spec": {"rollbackTo": {"revision": revision}}}


def pause_patch(obj: MachineDeployment, *, paused: bool) -> Patch:
    """Return the patch that pauses or resumes a deployment.

    Raises:
        CannotBeDone: the deployment is in that state already.
    """
    if obj.is_paused is paused:
        raise CannotBeDone(f'"{obj.name}" is {"already" if paused else "not"} paused')
    return {"metadata": same_object(obj), "spec": {"paused": paused or None}}
