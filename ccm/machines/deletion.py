"""Deletion of a machine: a table of stages, and the transition for each outcome. No I/O.

A pass runs stages until one has to wait. The status description then contains the marker text of
that stage. Gardener's MCM uses the same markers, so either program can continue a deletion that the
other program started. Every stage is idempotent. An annotation also stores the stage, because
another text may replace the description. If annotation and description differ, the later stage
counts: a deletion never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType

import msgspec

from ccm.cloud import errors
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.machines import partial_info
from ccm.machines.creation import SHORT_S, is_transient, is_unchanged, public_error_text
from ccm.machines.drain import DrainProgress, DrainState, DrainTask, drain_task
from ccm.machines.settings import MachineSettings
from ccm.model import Node
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.times import format_time, parse_optional_time

LONG_S = 600.0
"""Retry delay after an error that is not transient (Gardener's MCM)."""

NOT_VISIBLE_S = 600.0
"""Seconds for which a deletion waits if the cloud does not show the VM to new credentials of the
class: time to restore a Secret that was replaced by mistake. Without a limit, a rollout would never
end after a VM was lost."""

QUICK_S = 5.0
"""Seconds up to which the first wait at a stage is not written to the status, because the next pass
follows soon and writes its own status."""

DENIAL_S = 3.0
"""Minimum seconds between two queries for a VM. If a creation has started but no provider ID is
stored, both queries must find no VM before the machine is deleted. Listings of clouds lag behind
creations by about a second."""

PROGRESS_S = 30.0
"""Minimum seconds between two status writes about the progress of a drain: each Pod changes the
description."""


class DeletionStage(Enum):
    """Stage of a deletion. The values are stored in annotations, so never change them."""

    STATUS = "status"
    """Find the machine's node."""
    DRAIN = "drain"
    VOLUMES = "volumes"
    """Delete the VolumeAttachments that a forced drain left."""
    VM = "vm"
    NODE = "node"
    """Delete the bootstrap token and the node."""
    FINALIZER = "finalizer"


MARKERS: Mapping[DeletionStage, str] = MappingProxyType(
    {
        DeletionStage.STATUS: "Set machine status to termination. Now, getting VM MachineStatus",
        DeletionStage.DRAIN: "Initiate node drain",
        DeletionStage.VOLUMES: "Delete Volume Attachments",
        DeletionStage.VM: "Initiate VM deletion",
        DeletionStage.NODE: "Initiate node object deletion",
        DeletionStage.FINALIZER: "Initiate machine object finalizer removal",
    }
)
"""Text that the status description contains while a deletion is at a stage (Gardener's MCM). If a
description contains several markers, the first stage in this order counts."""

_RANKS = {stage: rank for rank, stage in enumerate(DeletionStage)}


class StageOutcome(Enum):
    """Outcome of a stage."""

    NO_TARGET = "no cluster to join"
    NODE_KNOWN = "the node is known, or known not to exist"
    OWNER_UNCLEAR = "the VM may exist, or belongs to another machine"
    NO_NODE = "no node to drain"
    DRAINING = "the drain is in progress"
    DRAINED = "the node is drained"
    FORCED = "the node is drained by force"
    DRAIN_FAILED = "the drain failed"
    FORCED_DRAIN_FAILED = "the forced drain failed, and the deletion continues"
    DETACHED = "no volume is attached"
    ATTACHED = "volumes are attached"
    DETACH_TIMED_OUT = "volumes are still attached after the time limit"
    VM_DELETED = "the VM does not exist"
    DELETING = "the cloud is deleting the VM"
    VM_NOT_FOUND_ONCE = "the cloud shows no VM for a started creation, at the first check"
    REFUSED = "the cloud rejected the deletion"
    NO_LABEL = "the machine had no node"
    RELEASED = "node and token are deleted"
    BLOCKED = "node or token could not be deleted"


@dataclass(frozen=True, slots=True)
class StageTransition:
    """Transition of a deletion, and the status to write.

    Attributes:
        to: next stage; if it is the current stage, the pass ends and the deletion waits.
        text: description in the status, with the placeholders `{detail}`, `{node}` and `{machine}`.
        state: state of the operation in the status.
    """

    to: DeletionStage
    text: str
    state: OperationState = OperationState.PROCESSING


def _move(
    to: DeletionStage, text: str = "", state: OperationState = OperationState.PROCESSING
) -> StageTransition:
    return StageTransition(to, f"{text} {MARKERS[to]}".strip(), state)


TABLE: Mapping[tuple[DeletionStage, StageOutcome], StageTransition] = MappingProxyType(
    {
        (DeletionStage.STATUS, StageOutcome.NO_TARGET): _move(
            DeletionStage.VM,
            "Running without target cluster, skipping node drain and volume attachment deletion.",
        ),
        (DeletionStage.STATUS, StageOutcome.NODE_KNOWN): _move(DeletionStage.DRAIN),
        **{
            (stage, StageOutcome.OWNER_UNCLEAR): _move(stage, "{detail}.", OperationState.FAILED)
            for stage in DeletionStage
            if stage is not DeletionStage.FINALIZER
        },
        (DeletionStage.DRAIN, StageOutcome.NO_NODE): _move(
            DeletionStage.VM, "Skipping drain as nodeName is not a valid one for machine."
        ),
        (DeletionStage.DRAIN, StageOutcome.DRAINING): _move(DeletionStage.DRAIN, "{detail}."),
        (DeletionStage.DRAIN, StageOutcome.DRAINED): _move(DeletionStage.VM, "Drain successful."),
        (DeletionStage.DRAIN, StageOutcome.FORCED): _move(
            DeletionStage.VOLUMES, "Force Drain successful."
        ),
        (DeletionStage.DRAIN, StageOutcome.DRAIN_FAILED): _move(
            DeletionStage.DRAIN,
            "Drain failed due to {detail}. Will retry in next sync.",
            OperationState.FAILED,
        ),
        (DeletionStage.DRAIN, StageOutcome.FORCED_DRAIN_FAILED): _move(
            DeletionStage.VOLUMES,
            "Drain failed due to {detail}. However, since it's a force deletion shall continue "
            "deletion of VM.",
        ),
        (DeletionStage.VOLUMES, StageOutcome.DETACHED): _move(DeletionStage.VM),
        (DeletionStage.VOLUMES, StageOutcome.ATTACHED): _move(DeletionStage.VOLUMES, "{detail}."),
        (DeletionStage.VOLUMES, StageOutcome.DETACH_TIMED_OUT): _move(
            DeletionStage.VM, "{detail}; the wait timed out."
        ),
        (DeletionStage.VM, StageOutcome.VM_DELETED): _move(
            DeletionStage.NODE, "VM deletion was successful."
        ),
        (DeletionStage.VM, StageOutcome.DELETING): _move(
            DeletionStage.VM, "VM deletion is in progress."
        ),
        (DeletionStage.VM, StageOutcome.VM_NOT_FOUND_ONCE): _move(
            DeletionStage.VM, "The cloud shows no VM. A second check follows."
        ),
        (DeletionStage.VM, StageOutcome.REFUSED): _move(
            DeletionStage.VM, "VM deletion failed due to - {detail}.", OperationState.FAILED
        ),
        (DeletionStage.NODE, StageOutcome.NO_LABEL): _move(
            DeletionStage.FINALIZER,
            'Label "node" not present on machine "{machine}", continuing deletion flow.',
        ),
        (DeletionStage.NODE, StageOutcome.RELEASED): _move(
            DeletionStage.FINALIZER, 'Deletion of Node Object "{node}" is successful.'
        ),
        (DeletionStage.NODE, StageOutcome.BLOCKED): _move(
            DeletionStage.NODE,
            'Deletion of Node Object "{node}" failed due to - {detail}.',
            OperationState.FAILED,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """Outcome of a stage with its details.

    Attributes:
        outcome: the outcome.
        text: text for `{detail}` in the description.
        after_s: delay of the requeue, in seconds; None = only a change requeues the machine.
        code: code of the cloud's error; empty = no error.
        known_state: state that the driver wants stored; None = unchanged.
        eager: whether every change may requeue the machine before `after_s`, because a pass is
            cheap.
        busy: `RetryAfter` of a cloud that is still working on the VM; its delay is `after_s`.
    """

    outcome: StageOutcome
    text: str = ""
    after_s: float | None = None
    code: str = ""
    known_state: str | None = None
    eager: bool = False
    busy: errors.RetryAfter | None = None


class DeletionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a deletion; JSON in an annotation of its machine.

    Attributes:
        uid: UID of the machine: a restored copy of the object must not continue the deletion.
        stage: current stage.
        forced: whether the drain used force.
        since: time since which the deletion has waited for volumes; empty = no wait has begun.
        not_visible: time since which the cloud has not shown the VM to the class's credentials,
            which may belong to another project; empty = no wait for the former credentials.
        not_visible_origin: `ResolvedClass.origin` of the credentials of `not_visible`.
    """

    uid: str
    stage: DeletionStage = DeletionStage.STATUS
    forced: bool = False
    since: str = ""
    not_visible: str = ""
    not_visible_origin: str = ""

    def text(self) -> str:
        """Return the value of the annotation."""
        return msgspec.json.encode(self).decode()


def deletion_state(machine: Machine, settings: MachineSettings) -> DeletionState:
    """Return the progress of a machine's deletion, from annotation and status description.

    An annotation that cannot be decoded, or contains another UID, is ignored.
    """
    text = machine.annotation(settings.names.deletion)
    try:
        noted = msgspec.json.decode(text, type=DeletionState) if text else None
    except (msgspec.DecodeError, UnicodeError):
        noted = None
    if noted is None or noted.uid != machine.uid:
        noted = DeletionState(uid=machine.uid)
    names = settings.names
    if names.second_finalizer in machine.finalizers and names.finalizer not in machine.finalizers:
        # Another program has deleted the VM, and removed the finalizer that protected it.
        noted = msgspec.structs.replace(noted, stage=DeletionStage.NODE)
    described = marked_stage(machine)
    if described is not None and _RANKS[described] > _RANKS[noted.stage]:
        return msgspec.structs.replace(noted, stage=described)
    return noted


def further_state(first: DeletionState, second: DeletionState) -> DeletionState:
    """Return the state with the later stage; the earlier state is outdated."""
    return second if _RANKS[second.stage] > _RANKS[first.stage] else first


def needs_annotation(seen: DeletionState) -> bool:
    """Return whether the annotation is needed: up to the drain, the description suffices."""
    return _RANKS[seen.stage] > _RANKS[DeletionStage.DRAIN]


def current_transition(stage: DeletionStage, machine: Machine) -> StageTransition:
    """Return the transition that stays at a stage.

    The description is kept if it contains the stage's marker; else it becomes the marker.
    """
    text = machine.status.description if marked_stage(machine) is stage else MARKERS[stage]
    return StageTransition(stage, text)


def marked_stage(machine: Machine) -> DeletionStage | None:
    """Return the stage whose marker the status description contains.

    None = it contains no marker, or the phase is not Terminating.
    """
    if machine.phase is not Phase.TERMINATING:
        return None
    text = machine.status.description
    return next((stage for stage, marker in MARKERS.items() if marker in text), None)


def transition(stage: DeletionStage, event: StageResult, machine: Machine) -> StageTransition:
    """Return the transition for a stage's result, with the placeholders of its text filled in."""
    move = TABLE[stage, event.outcome]
    text = move.text.replace("{node}", machine.node_name).replace("{machine}", machine.name)
    # `{detail}` is replaced last, so that braces in the text of an error are never taken for
    # placeholders.
    return replace(move, text=text.replace("{detail}", event.text))


def transition_status(
    machine: Machine, move: StageTransition, event: StageResult | None, now: datetime
) -> MachineStatus:
    """Return the status of a machine after a transition."""
    before = machine.status
    code, known_state = (event.code, event.known_state) if event is not None else ("", None)
    kind, phase = OperationType.DELETE, Phase.TERMINATING
    return replace(
        before.entered(phase, move.text, move.state, kind, now),
        code=code,
        since=before.since if before.phase is phase else now,
        known_state=before.known_state if known_state is None else known_state,
    )


def needs_write(
    machine: Machine, wanted: MachineStatus, move: StageTransition, *, brief: bool
) -> bool:
    """Return whether the status of a waiting machine has to be written.

    Args:
        machine: the machine as stored.
        wanted: the status to write.
        move: the transition.
        brief: whether this is a short first wait at the stage; see `is_brief`.
    """
    before = machine.status
    if before.phase is not Phase.TERMINATING or before.known_state != wanted.known_state:
        return True
    if marked_stage(machine) is not move.to:
        return not brief
    if (
        move.state is OperationState.PROCESSING
        and before.state == wanted.state
        and _is_young(machine, wanted)
    ):
        return False
    return not is_unchanged(before, wanted)


def is_brief(move: StageTransition, event: StageResult, times: int) -> bool:
    """Return whether a wait is the first at its stage, at most `QUICK_S` long, and no failure.

    `times` is the number of waits at the stage, including this wait.
    """
    soon = event.after_s is not None and event.after_s <= QUICK_S
    return times == 1 and soon and move.state is OperationState.PROCESSING


def _is_young(machine: Machine, wanted: MachineStatus) -> bool:
    before = machine.status.updated
    if before is None or wanted.updated is None:
        return False
    return (wanted.updated - before).total_seconds() < PROGRESS_S


# --- the drain ----------------------------------------------------------------------------


def requested_at(machine: Machine) -> datetime | None:
    """Return the time at which the deletion was requested; None = no deletion was requested."""
    return parse_optional_time(machine.metadata.deletion_timestamp)


def ignores_drain_failure(machine: Machine, now: datetime, settings: MachineSettings) -> bool:
    """Return whether the deletion continues after a failed drain.

    True if a user forces the deletion, or after the drain timeout.
    """
    limit = timedelta(seconds=settings.of(machine).drain_timeout_s)
    return machine.force_deletion or now > (requested_at(machine) or now) + limit


def deletion_drain_task(
    machine: Machine, node: Node, now: datetime, settings: MachineSettings
) -> DrainTask:
    """Return the task to drain the node of a machine that is being deleted."""
    drain = drain_task(
        machine,
        node,
        since=requested_at(machine) or now,
        now=now,
        settings=settings,
        force=machine.force_deletion,
        terminating=True,
    )
    return replace(drain, max_evict_retries=1) if drain.force else drain


def drain_result(progress: DrainProgress, task: DrainTask, now: datetime) -> StageResult:
    """Return the result of the drain stage, from the progress of the drain."""
    if progress.state is DrainState.RUNNING:
        # Add one second, because timestamps on objects have whole seconds.
        left_s = (task.deadline - now).total_seconds() + 1 if task.deadline is not None else 0
        after_s = left_s if left_s > 0 else None
        return StageResult(
            outcome=StageOutcome.DRAINING, text=progress.message, after_s=after_s, eager=True
        )
    if progress.state is DrainState.FAILED:
        cause = StageOutcome.FORCED_DRAIN_FAILED if task.force else StageOutcome.DRAIN_FAILED
        return StageResult(outcome=cause, text=progress.message, after_s=SHORT_S)
    return StageResult(outcome=StageOutcome.FORCED if progress.forced else StageOutcome.DRAINED)


# --- the VM -----------------------------------------------------------------------------------


def error_result(
    error: errors.CloudError, *, cause: StageOutcome = StageOutcome.REFUSED
) -> StageResult:
    """Return the result of a stage in which a driver call failed.

    Args:
        error: the error.
        cause: outcome of the stage. `REFUSED` becomes `DELETING` for a `RetryAfter`.
    """
    known_state = partial_info(error).last_known_state
    if isinstance(error, errors.RetryAfter):
        # Only a busy `delete_machine` means that the deletion has begun; for other busy calls the
        # cause stays.
        pending = StageOutcome.DELETING if cause is StageOutcome.REFUSED else cause
        return StageResult(
            outcome=pending,
            text=str(error),
            after_s=error.seconds,
            known_state=known_state,
            busy=error,
        )
    return StageResult(
        outcome=cause,
        text=public_error_text(error),
        after_s=SHORT_S if is_transient(error) else LONG_S,
        code=errors.code_of(error).name,
        known_state=known_state,
    )


def unusable_class_result(
    faults: Iterable[str], *, cause: StageOutcome = StageOutcome.REFUSED
) -> StageResult:
    """Return the result of a stage that cannot call the cloud, because the class is unusable."""
    return StageResult(
        outcome=cause, text="; ".join(faults), code=errors.FailedPrecondition.__name__
    )


def mark_not_visible(seen: DeletionState, origin: str, now: datetime) -> DeletionState:
    """Return the progress with the time since which the cloud has not shown the VM.

    If `origin` is not the origin for which the time was recorded, the time restarts at `now`.
    """
    if parse_optional_time(seen.not_visible) is not None and seen.not_visible_origin == origin:
        return seen
    return msgspec.structs.replace(seen, not_visible=format_time(now), not_visible_origin=origin)


def wait_for_credentials(machine: Machine, since: datetime, now: datetime) -> StageResult | None:
    """Return the result that waits for the former credentials; None = the wait has ended.

    Args:
        machine: the machine.
        since: start of the wait.
        now: the time.
    """
    end = since + timedelta(seconds=NOT_VISIBLE_S)
    if now >= end:
        return None
    text = (
        f"the credentials or the region of class {machine.class_name} differ from those with "
        f"which VM {machine.provider_id} was created, and the cloud shows neither this VM nor any "
        "other VM created with the former credentials; restore the former credentials and region, "
        f"or the VM counts as deleted from {format_time(end)} on; the label force-deletion on the "
        "Machine ends this wait at once"
    )
    # Add one second, because timestamps on objects have whole seconds.
    after_s = min(LONG_S, (end - now).total_seconds() + 1)
    code = errors.FailedPrecondition.__name__
    return StageResult(outcome=StageOutcome.REFUSED, text=text, code=code, after_s=after_s)


def may_have_vm(machine: Machine) -> bool:
    """Return whether the machine may have a VM, so that its deletion has to ask the cloud."""
    return bool(machine.provider_id) or machine.creation_started


def may_be_other_project(machine: Machine, origin: str) -> bool:
    """Return whether credentials with this origin may belong to another project than the VM.

    False if a user forces the deletion, or if no origin of the VM is recorded.
    """
    if machine.force_deletion or not machine.provider_id or not machine.origins:
        return False
    return origin not in machine.origins


def same_project_vms(machine: Machine, others: Iterable[Machine]) -> frozenset[str]:
    """Return the provider IDs of the VMs in the project of the machine's VM, including that VM.

    Credentials that show one of these VMs would also show the machine's VM.
    """
    known = set(machine.origins)
    provider_ids = {other.provider_id for other in others if not known.isdisjoint(other.origins)}
    return frozenset(provider_ids | {machine.provider_id})


# --- the node ---------------------------------------------------------------------------------


def is_its_node(machine: Machine, node: Node) -> bool:
    """Return whether a node with the machine's node name may belong to the machine's VM.

    False if the node has another provider ID than the machine.
    """
    return not node.provider_id or is_same_instance(node.provider_id, machine.provider_id)


def node_name_by_label(machine: Machine, nodes: Sequence[Node], settings: MachineSettings) -> str:
    """Return the name of the node with the machine's label; empty = none."""
    for node in nodes:
        if settings.names.is_labeled(node, machine) and is_its_node(machine, node):
            return node.name
    return ""


def volume_wait_s(seen: DeletionState, now: datetime) -> float:
    """Return the seconds for which a deletion has waited for volumes."""
    since = parse_optional_time(seen.since)
    return 0.0 if since is None else (now - since).total_seconds()


def start_volume_wait(seen: DeletionState, now: datetime) -> DeletionState:
    """Return the progress with `now` as start of the wait for volumes, unless a start is set."""
    return seen if seen.since else msgspec.structs.replace(seen, since=format_time(now))
