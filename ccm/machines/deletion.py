"""Deletion of a machine: a table of stages, and the consequences of each event. Pure.

A pass runs stages until one has to wait. The status description then contains the marker text of
that stage. The reference uses the same markers, so either program can continue the other's
deletion. Every stage is idempotent. An annotation holds further progress, also when another text
replaced the description. The further stage of the two counts: a deletion never goes back.
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
"""Retry delay after an error that is not transient (reference)."""

NOT_VISIBLE_S = 600.0
"""Time for which a deletion waits while the new credentials of a class do not show the VM: time to
restore a Secret that was replaced by mistake. Without a limit, a rollout would never end after a
VM was lost."""

QUICK_S = 5.0
"""Longest first wait at a stage whose status is not written: the next pass will write more."""

DENIAL_S = 3.0
"""Time between two lookups that find no VM, if its creation was started and its provider ID is not
stored. Listings of clouds lag behind creations by about a second."""

PROGRESS_S = 30.0
"""Minimum time between two descriptions of one drain: each Pod changes the description, and each
description costs a write."""


class DeletionStage(Enum):
    """Progress of a deletion. The values are stored in annotations, and never change."""

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
"""Text that the description contains while a deletion is at a stage; the first match counts
(reference)."""

_RANKS = {stage: rank for rank, stage in enumerate(DeletionStage)}


class StageOutcome(Enum):
    """Outcome of a stage."""

    NO_TARGET = "there is no cluster to join"
    NODE_KNOWN = "which node it is is known, or that there is none"
    OWNER_UNCLEAR = "the cloud does not say whether there is a VM, or it is another's"
    NO_NODE = "there is no node to drain"
    DRAINING = "the drain goes on"
    DRAINED = "nothing is left on the node"
    FORCED = "nothing is left on the node, by force"
    DRAIN_FAILED = "the drain failed"
    FORCED_DRAIN_FAILED = "the drain failed, and nobody waits for it"
    DETACHED = "no volume is attached"
    ATTACHED = "volumes are attached"
    DETACH_TIMED_OUT = "volumes are attached, for too long"
    VM_DELETED = "the VM is gone"
    DELETING = "the cloud works on it"
    VM_NOT_FOUND_ONCE = "the cloud denies a VM whose creation was started, for the first time"
    REFUSED = "the cloud refused"
    NO_LABEL = "the machine had no node"
    RELEASED = "node and token are gone"
    BLOCKED = "node or token could not be deleted"


@dataclass(frozen=True, slots=True)
class StageTransition:
    """Transition of a deletion, and the description written then.

    Attributes:
        to: next stage; the same one = the pass ends and waits.
        text: description; `{detail}`, `{node}` and `{machine}` are filled in.
        state: state of the operation.
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
        code: code of the cloud's error.
        known_state: state that the driver wants stored; None = unchanged.
        eager: whether the machine may be requeued earlier: another pass is cheap.
        busy: error of a cloud that still works on the VM; its delay is `after_s`.
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
        uid: UID of the machine: a copy of the object must not inherit the progress.
        stage: current stage.
        forced: whether the drain used force.
        since: time since which the deletion has waited for volumes.
        not_visible: time since which credentials do not show the VM, which may belong to another
            project.
        not_visible_origin: `ResolvedClass.origin` of those credentials.
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
    """Return the progress of a machine's deletion, from the annotation and the description.

    An annotation that cannot be read, or has another UID, is ignored.
    """
    text = machine.annotation(settings.names.deletion)
    try:
        noted = msgspec.json.decode(text, type=DeletionState) if text else None
    except (msgspec.DecodeError, UnicodeError):
        noted = None
    if noted is None or noted.uid != machine.uid:
        noted = DeletionState(uid=machine.uid)
    described = marked_stage(machine)
    if described is not None and _RANKS[described] > _RANKS[noted.stage]:
        return msgspec.structs.replace(noted, stage=described)
    return noted


def further_state(first: DeletionState, second: DeletionState) -> DeletionState:
    """Return the state with the later stage; the other one lags behind."""
    return second if _RANKS[second.stage] > _RANKS[first.stage] else first


def needs_annotation(seen: DeletionState) -> bool:
    """Return whether the annotation is needed: the markers suffice up to the drain."""
    return _RANKS[seen.stage] > _RANKS[DeletionStage.DRAIN]


def current_transition(stage: DeletionStage, machine: Machine) -> StageTransition:
    """Return the transition that stays at a stage; keep the description if it has that stage."""
    text = machine.status.description if marked_stage(machine) is stage else MARKERS[stage]
    return StageTransition(stage, text)


def marked_stage(machine: Machine) -> DeletionStage | None:
    """Return the stage of the description's marker; None = no marker, or no deletion."""
    if machine.phase is not Phase.TERMINATING:
        return None
    text = machine.status.description
    return next((stage for stage, marker in MARKERS.items() if marker in text), None)


def transition(stage: DeletionStage, event: StageResult, machine: Machine) -> StageTransition:
    """Return the transition for an event, with the placeholders of its text filled in."""
    move = TABLE[stage, event.outcome]
    text = move.text.replace("{node}", machine.node_name).replace("{machine}", machine.name)
    # Last, so that braces in the text of an error are never taken for placeholders.
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
        brief: whether this is a short first wait at the stage, see `is_brief`.
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
    """Return whether this is the first wait at its stage, short, and needs no user."""
    soon = event.after_s is not None and event.after_s <= QUICK_S
    return times == 1 and soon and move.state is OperationState.PROCESSING


def _is_young(machine: Machine, wanted: MachineStatus) -> bool:
    before = machine.status.updated
    if before is None or wanted.updated is None:
        return False
    return (wanted.updated - before).total_seconds() < PROGRESS_S


# --- the drain ----------------------------------------------------------------------------


def requested_at(machine: Machine) -> datetime | None:
    """Return the time at which the deletion was requested; None = it was not."""
    return parse_optional_time(machine.metadata.deletion_timestamp)


def ignores_drain_failure(machine: Machine, now: datetime, settings: MachineSettings) -> bool:
    """Return whether the deletion ignores a failed drain: forced by a user, or timed out."""
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
    """Return the event for the progress of a drain."""
    if progress.state is DrainState.RUNNING:
        # One second more: timestamps on objects have whole seconds.
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
    """Return the event for an error of the driver.

    Args:
        error: the error.
        cause: outcome that the error stands for.
    """
    known_state = partial_info(error).last_known_state
    if isinstance(error, errors.RetryAfter):
        # Only a busy deletion means that one is under way; other busy calls keep their cause.
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
    """Return the event for a deletion that cannot call the cloud."""
    return StageResult(
        outcome=cause, text="; ".join(faults), code=errors.FailedPrecondition.__name__
    )


def mark_not_visible(seen: DeletionState, origin: str, now: datetime) -> DeletionState:
    """Return the progress with the time since which the credentials hide the VM.

    The time is counted anew for each origin.
    """
    if parse_optional_time(seen.not_visible) is not None and seen.not_visible_origin == origin:
        return seen
    return msgspec.structs.replace(seen, not_visible=format_time(now), not_visible_origin=origin)


def wait_for_credentials(machine: Machine, since: datetime, now: datetime) -> StageResult | None:
    """Return the event of a wait for the former credentials; None = the wait has ended."""
    end = since + timedelta(seconds=NOT_VISIBLE_S)
    if now >= end:
        return None
    text = (
        f"the credentials or the region of class {machine.class_name} differ from those with "
        f"which VM {machine.provider_id} was created, and show neither this VM nor another one "
        "created with the former ones; restore those, or the VM counts as deleted from "
        f"{format_time(end)} on, with the label force-deletion at once"
    )
    # One second more: timestamps on objects have whole seconds.
    after_s = min(LONG_S, (end - now).total_seconds() + 1)
    code = errors.FailedPrecondition.__name__
    return StageResult(outcome=StageOutcome.REFUSED, text=text, code=code, after_s=after_s)


def may_have_vm(machine: Machine) -> bool:
    """Return whether the cloud has to be asked for a VM before the machine may be deleted."""
    return bool(machine.provider_id) or machine.creation_started


def may_be_other_project(machine: Machine, origin: str) -> bool:
    """Return whether the credentials may belong to another project than the VM."""
    if machine.force_deletion or not machine.provider_id or not machine.origins:
        return False
    return origin not in machine.origins


def same_project_vms(machine: Machine, others: Iterable[Machine]) -> frozenset[str]:
    """Return the provider IDs of VMs in the same project as the machine's.

    Credentials that show one of them would also show the machine's VM.
    """
    known = set(machine.origins)
    provider_ids = {other.provider_id for other in others if not known.isdisjoint(other.origins)}
    return frozenset(provider_ids | {machine.provider_id})


# --- the node ---------------------------------------------------------------------------------


def is_its_node(machine: Machine, node: Node) -> bool:
    """Return whether a node of the machine's node name belongs to its VM."""
    return not node.provider_id or is_same_instance(node.provider_id, machine.provider_id)


def node_name_by_label(machine: Machine, nodes: Sequence[Node], settings: MachineSettings) -> str:
    """Return the name of the node whose label names the machine; empty = none."""
    for node in nodes:
        if node.labels.get(settings.names.machine_label) == machine.name and is_its_node(
            machine, node
        ):
            return node.name
    return ""


def volume_wait_s(seen: DeletionState, now: datetime) -> float:
    """Return the seconds for which a deletion has waited for volumes."""
    since = parse_optional_time(seen.since)
    return 0.0 if since is None else (now - since).total_seconds()


def start_volume_wait(seen: DeletionState, now: datetime) -> DeletionState:
    """Return the progress with the start of the wait for volumes: now, unless recorded before."""
    return seen if seen.since else msgspec.structs.replace(seen, since=format_time(now))
