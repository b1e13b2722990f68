"""What people ask about the rollout of a deployment, and ask of it. Pure.

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
    """What is asked of a deployment makes no sense now; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a rollout is.

    Attributes:
        text: for people.
        done: there is nothing to wait for.
        failed: it does not move on by itself.
    """

    text: str
    done: bool = False
    failed: bool = False


def progress_of(obj: MachineDeployment) -> Progress:
    """How far the rollout of a deployment is."""
    name, status = obj.name, obj.status
    if status.observed < obj.metadata.generation:
        return Progress(text=f'Waiting for "{name}" to be looked at by its controller...')
    said = status.condition(progress.PROGRESSING)
    if said is not None and said.reason in (progress.TOO_LATE, progress.UNUSABLE):
        return Progress(text=f'"{name}" does not move on: {said.message}', done=True, failed=True)
    waits = f'Waiting for "{name}": '
    if said is not None and said.reason == progress.NOT_MADE:
        return Progress(text=f"{waits}{said.message}; it is tried again...")
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
    """Where a rollback would lead to; 0 is the revision before.

    Raises:
        CannotBeDone: it is paused, or there is no such revision.
    """
    if obj.is_paused:
        raise CannotBeDone(f'"{obj.name}" is paused; resume it first')
    views = [populated(machine_set, ()) for machine_set in sets]
    found = rollout.revert(replace(obj, rollback_to=revision), views, NAMES)
    if found.to is None and not found.is_same:
        known = sorted(filter(None, (rollout.number(one.annotations, NAMES) for one in views)))
        there = f" There are {', '.join(map(str, known))}." if known else ""
        raise CannotBeDone(f"{found.why_not}{there}")
    return found


def rollback_patch(obj: MachineDeployment, revision: int) -> Patch:
    """Asks the controller for an older template."""
    metadata = same_object(obj) | same_version(obj)
    return {"metadata": metadata, "spec": {"rollbackTo": {"revision": revision}}}


def pause_patch(obj: MachineDeployment, *, paused: bool) -> Patch:
    """Pauses a deployment, or lets it go on.

    Raises:
        CannotBeDone: it is so already.
    """
    if obj.is_paused is paused:
        raise CannotBeDone(f'"{obj.name}" is {"already" if paused else "not"} paused')
    return {"metadata": same_object(obj), "spec": {"paused": paused or None}}
