"""From the wish to delete a machine to its end: a table of stages, and what follows in each. Pure.

A pass goes as far as it can, and the status says where it rests: a text with a marker in it, by
which the reference knows how far a deletion is, so that either goes on where the other was. Every
stage may be done again. What we know beside that, and a text that others wrote over, stands in
an annotation; of the two the one that is further counts, as no deletion goes back.
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
from ccm.cloud.machines import known
from ccm.machines.creation import SHORT_S, passes, says_nothing_new, told_of
from ccm.machines.drain import DrainProgress, DrainState, DrainTask, drain_task
from ccm.machines.settings import Settings
from ccm.model import Node
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.times import format_time, moment

LONG_S = 600.0
"""When a deletion is tried again that the cloud refuses for good (reference)."""

NOT_VISIBLE_S = 600.0
"""How long a deletion waits while the new credentials of a class do not show the VM: time to
restore a Secret that was replaced by mistake. Without a limit, a rollout would never end after a
VM was lost."""

QUICK_S = 5.0
"""A first rest that is no longer than this is not written: the next pass says more."""

DENIAL_S = 3.0
"""Time between two answers of the cloud that deny a VM whose creation was started and whose
provider ID is not stored. Listings of clouds lag behind creations by about a second."""

PROGRESS_S = 30.0
"""Least time between two texts about one drain."""


class Stage(Enum):
    """How far a deletion is; the values stand in annotations, and never change."""

    STATUS = "status"
    """Find out which node is the machine's."""
    DRAIN = "drain"
    VOLUMES = "volumes"
    """Delete the attachments of volumes that a drain by force left."""
    VM = "vm"
    NODE = "node"
    """Delete bootstrap token and node."""
    FINALIZER = "finalizer"


MARKERS: Mapping[Stage, str] = MappingProxyType(
    {
        Stage.STATUS: "Set machine status to termination. Now, getting VM MachineStatus",
        Stage.DRAIN: "Initiate node drain",
        Stage.VOLUMES: "Delete Volume Attachments",
        Stage.VM: "Initiate VM deletion",
        Stage.NODE: "Initiate node object deletion",
        Stage.FINALIZER: "Initiate machine object finalizer removal",
    }
)
"""What a description has in it while a deletion is at that stage; the first that is in it counts
(reference)."""

_RANKS = {stage: rank for rank, stage in enumerate(Stage)}


class Cause(Enum):
    """What came of a stage."""

    NO_TARGET = "there is no cluster to join"
    KNOWN = "which node it is is known, or that there is none"
    UNCLEAR = "the cloud does not say whether there is a VM, or it is another's"
    NO_NODE = "there is no node to drain"
    DRAINING = "the drain goes on"
    DRAINED = "nothing is left on the node"
    FORCED = "nothing is left on the node, by force"
    UNDRAINED = "the drain failed"
    UNDRAINED_BY_FORCE = "the drain failed, and nobody waits for it"
    DETACHED = "no volume is attached"
    ATTACHED = "volumes are attached"
    STUCK = "volumes are attached, for too long"
    GONE = "the VM is gone"
    GOING = "the cloud works on it"
    DENIED = "the cloud denies a VM whose creation was started, for the first time"
    REFUSED = "the cloud refused"
    NO_LABEL = "the machine had no node"
    RELEASED = "node and token are gone"
    HELD = "node or token could not be deleted"


@dataclass(frozen=True, slots=True)
class Move:
    """Where a cause leads to, and what is said then.

    Attributes:
        to: the stage; the same one = the pass rests.
        text: the description; `{said}`, `{node}` and `{machine}` are filled in.
        state: of the operation.
    """

    to: Stage
    text: str
    state: OperationState = OperationState.PROCESSING


def _move(to: Stage, text: str = "", state: OperationState = OperationState.PROCESSING) -> Move:
    return Move(to, f"{text} {MARKERS[to]}".strip(), state)


TABLE: Mapping[tuple[Stage, Cause], Move] = MappingProxyType(
    {
        (Stage.STATUS, Cause.NO_TARGET): _move(
            Stage.VM,
            "Running without target cluster, skipping node drain and volume attachment deletion.",
        ),
        (Stage.STATUS, Cause.KNOWN): _move(Stage.DRAIN),
        **{
            (stage, Cause.UNCLEAR): _move(stage, "{said}.", OperationState.FAILED)
            for stage in Stage
            if stage is not Stage.FINALIZER
        },
        (Stage.DRAIN, Cause.NO_NODE): _move(
            Stage.VM, "Skipping drain as nodeName is not a valid one for machine."
        ),
        (Stage.DRAIN, Cause.DRAINING): _move(Stage.DRAIN, "{said}."),
        (Stage.DRAIN, Cause.DRAINED): _move(Stage.VM, "Drain successful."),
        (Stage.DRAIN, Cause.FORCED): _move(Stage.VOLUMES, "Force Drain successful."),
        (Stage.DRAIN, Cause.UNDRAINED): _move(
            Stage.DRAIN,
            "Drain failed due to {said}. Will retry in next sync.",
            OperationState.FAILED,
        ),
        (Stage.DRAIN, Cause.UNDRAINED_BY_FORCE): _move(
            Stage.VOLUMES,
            "Drain failed due to {said}. However, since it's a force deletion shall continue "
            "deletion of VM.",
        ),
        (Stage.VOLUMES, Cause.DETACHED): _move(Stage.VM),
        (Stage.VOLUMES, Cause.ATTACHED): _move(Stage.VOLUMES, "{said}."),
        (Stage.VOLUMES, Cause.STUCK): _move(Stage.VM, "{said}, not waited for any longer."),
        (Stage.VM, Cause.GONE): _move(Stage.NODE, "VM deletion was successful."),
        (Stage.VM, Cause.GOING): _move(Stage.VM, "VM deletion is under way."),
        (Stage.VM, Cause.DENIED): _move(Stage.VM, "The cloud shows no VM. It is asked once more."),
        (Stage.VM, Cause.REFUSED): _move(
            Stage.VM, "VM deletion failed due to - {said}.", OperationState.FAILED
        ),
        (Stage.NODE, Cause.NO_LABEL): _move(
            Stage.FINALIZER,
            'Label "node" not present on machine "{machine}", continuing deletion flow.',
        ),
        (Stage.NODE, Cause.RELEASED): _move(
            Stage.FINALIZER, 'Deletion of Node Object "{node}" is successful.'
        ),
        (Stage.NODE, Cause.HELD): _move(
            Stage.NODE,
            'Deletion of Node Object "{node}" failed due to - {said}.',
            OperationState.FAILED,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What came of a stage, in full.

    Attributes:
        cause: what happened.
        said: for people, where the table wants it.
        after_s: when to come back; None = when something changes.
        code: name of the code that the cloud refused it with.
        known_state: what the driver wants to remember; None = as it was.
        eager: whether it may come back before that: a look costs nothing.
        busy: the answer of a cloud that works on it, whose time `after_s` is.
    """

    cause: Cause
    said: str = ""
    after_s: float | None = None
    code: str = ""
    known_state: str | None = None
    eager: bool = False
    busy: errors.RetryAfter | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a deletion; JSON in an annotation of its machine.

    Attributes:
        uid: of the machine: a copy of the object is another one.
        stage: how far it is.
        forced: the drain used force.
        since: when volumes began to be waited for.
        not_visible: time since which credentials do not show the VM, which may belong to another
            project.
        not_visible_origin: `ResolvedClass.origin` of those credentials.
    """

    uid: str
    stage: Stage = Stage.STATUS
    forced: bool = False
    since: str = ""
    not_visible: str = ""
    not_visible_origin: str = ""

    def text(self) -> str:
        """For the annotation."""
        return msgspec.json.encode(self).decode()


def progress(machine: Machine, settings: Settings) -> Progress:
    """How far the deletion of a machine is."""
    text = machine.annotation(settings.names.deletion)
    try:
        noted = msgspec.json.decode(text, type=Progress) if text else None
    except (msgspec.DecodeError, UnicodeError):
        noted = None
    if noted is None or noted.uid != machine.uid:
        noted = Progress(uid=machine.uid)
    said = marked(machine)
    if said is not None and _RANKS[said] > _RANKS[noted.stage]:
        return msgspec.structs.replace(noted, stage=said)
    return noted


def further(one: Progress, other: Progress) -> Progress:
    """The one of two that is further; none of them is wrong."""
    return other if _RANKS[other.stage] > _RANKS[one.stage] else one


def is_worth_noting(seen: Progress) -> bool:
    """Whether more is known of a deletion than the marker in its text says."""
    return _RANKS[seen.stage] > _RANKS[Stage.DRAIN]


def at(stage: Stage, machine: Machine) -> Move:
    """Where a deletion is that goes on."""
    stands = machine.status.description if marked(machine) is stage else MARKERS[stage]
    return Move(stage, stands)


def marked(machine: Machine) -> Stage | None:
    """The stage that the description says; None where it says none, or speaks of another thing."""
    if machine.phase is not Phase.TERMINATING:
        return None
    text = machine.status.description
    return next((stage for stage, marker in MARKERS.items() if marker in text), None)


def moved(stage: Stage, event: Event, machine: Machine) -> Move:
    """Where an event leads to; its text is complete."""
    found = TABLE[stage, event.cause]
    text = found.text.replace("{node}", machine.node_name).replace("{machine}", machine.name)
    # Last, so that nothing in it is taken for a place of ours.
    return replace(found, text=text.replace("{said}", event.said))


def status(machine: Machine, move: Move, event: Event | None, now: datetime) -> MachineStatus:
    """The status of a machine that was moved there."""
    before = machine.status
    code, told = (event.code, event.known_state) if event is not None else ("", None)
    kind, phase = OperationType.DELETE, Phase.TERMINATING
    return replace(
        before.entered(phase, move.text, move.state, kind, now),
        code=code,
        since=before.since if before.phase is phase else now,
        known_state=before.known_state if told is None else told,
    )


def is_worth_writing(machine: Machine, wanted: MachineStatus, move: Move, *, brief: bool) -> bool:
    """Whether the status of a machine that rests is written.

    Args:
        machine: as it is.
        wanted: what would be written.
        move: what it says.
        brief: whether it rests there for the first time, and only for a moment.
    """
    before = machine.status
    if before.phase is not Phase.TERMINATING or before.known_state != wanted.known_state:
        return True
    if marked(machine) is not move.to:
        return not brief
    if (
        move.state is OperationState.PROCESSING
        and before.state == wanted.state
        and _is_young(machine, wanted)
    ):
        return False
    return not says_nothing_new(before, wanted)


def is_brief(move: Move, event: Event, times: int) -> bool:
    """Whether a rest is the first at its stage, and over in a moment without anybody's doing."""
    soon = event.after_s is not None and event.after_s <= QUICK_S
    return times == 1 and soon and move.state is OperationState.PROCESSING


def _is_young(machine: Machine, wanted: MachineStatus) -> bool:
    before = machine.status.updated
    if before is None or wanted.updated is None:
        return False
    return (wanted.updated - before).total_seconds() < PROGRESS_S


# --- the drain ----------------------------------------------------------------------------


def asked_at(machine: Machine) -> datetime | None:
    """When its deletion was asked for; None: it was not."""
    return moment(machine.metadata.deletion_timestamp)


def is_impatient(machine: Machine, now: datetime, settings: Settings) -> bool:
    """Return whether a failed drain delays nothing: a user wants that, or time is up."""
    limit = timedelta(seconds=settings.of(machine).drain_timeout_s)
    return machine.force_deletion or now > (asked_at(machine) or now) + limit


def task(machine: Machine, node: Node, now: datetime, settings: Settings) -> DrainTask:
    """Return the task to drain a node that goes."""
    found = drain_task(
        machine,
        node,
        since=asked_at(machine) or now,
        now=now,
        settings=settings,
        force=machine.force_deletion,
        terminating=True,
    )
    return replace(found, max_evict_retries=1) if found.force else found


def drained(progress: DrainProgress, task: DrainTask, now: datetime) -> Event:
    """What came of a drain, or when to look again."""
    if progress.state is DrainState.RUNNING:
        # A moment later than that: a time on an object has no fractions of seconds.
        left_s = (task.deadline - now).total_seconds() + 1 if task.deadline is not None else 0
        after_s = left_s if left_s > 0 else None
        return Event(cause=Cause.DRAINING, said=progress.said, after_s=after_s, eager=True)
    if progress.state is DrainState.FAILED:
        cause = Cause.UNDRAINED_BY_FORCE if task.force else Cause.UNDRAINED
        return Event(cause=cause, said=progress.said, after_s=SHORT_S)
    return Event(cause=Cause.FORCED if progress.forced else Cause.DRAINED)


# --- the VM -----------------------------------------------------------------------------------


def refused(error: errors.CloudError, *, cause: Cause = Cause.REFUSED) -> Event:
    """What an error of the driver means."""
    told = known(error).last_known_state
    if isinstance(error, errors.RetryAfter):
        # A question that is not answered yet says nothing about a deletion.
        going = Cause.GOING if cause is Cause.REFUSED else cause
        return Event(
            cause=going, said=str(error), after_s=error.seconds, known_state=told, busy=error
        )
    return Event(
        cause=cause,
        said=told_of(error),
        after_s=SHORT_S if passes(error) else LONG_S,
        code=errors.code_of(error).name,
        known_state=told,
    )


def impossible(faults: Iterable[str], *, cause: Cause = Cause.REFUSED) -> Event:
    """The cloud cannot even be asked."""
    return Event(cause=cause, said="; ".join(faults), code=errors.FailedPrecondition.__name__)


def mark_not_visible(seen: Progress, origin: str, now: datetime) -> Progress:
    """Record that the credentials do not show the VM; the time counts for each origin anew."""
    if moment(seen.not_visible) is not None and seen.not_visible_origin == origin:
        return seen
    return msgspec.structs.replace(seen, not_visible=format_time(now), not_visible_origin=origin)


def wait_for_credentials(machine: Machine, since: datetime, now: datetime) -> Event | None:
    """Return how a deletion waits for the former credentials; None = the wait is over."""
    end = since + timedelta(seconds=NOT_VISIBLE_S)
    if now >= end:
        return None
    text = (
        f"the credentials or the region of class {machine.class_name} are others than VM "
        f"{machine.provider_id} was created with, and show neither it nor a VM that was created "
        f"with the former ones; restore those, or the VM counts as deleted from {format_time(end)} "
        "on, with the label force-deletion at once"
    )
    # A moment later than that: a time on an object has no fractions of seconds.
    after_s = min(LONG_S, (end - now).total_seconds() + 1)
    code = errors.FailedPrecondition.__name__
    return Event(cause=Cause.REFUSED, said=text, code=code, after_s=after_s)


def may_have_vm(machine: Machine) -> bool:
    """Return whether the cloud has to be asked before the machine may go."""
    return bool(machine.provider_id) or machine.creation_started


def is_elsewhere(machine: Machine, origin: str) -> bool:
    """Return whether credentials may belong to another project than the VM."""
    if machine.force_deletion or not machine.provider_id or not machine.origins:
        return False
    return origin not in machine.origins


def witnesses(machine: Machine, others: Iterable[Machine]) -> frozenset[str]:
    """Return VMs of one project with the machine's: credentials that show one would show it."""
    known = set(machine.origins)
    every = {one.provider_id for one in others if not known.isdisjoint(one.origins)}
    return frozenset(every | {machine.provider_id})


# --- the node ---------------------------------------------------------------------------------


def is_its_node(machine: Machine, node: Node) -> bool:
    """Whether a node of that name is that of the machine's VM, and of no other."""
    return not node.provider_id or is_same_instance(node.provider_id, machine.provider_id)


def node_named_after(machine: Machine, nodes: Sequence[Node], settings: Settings) -> str:
    """The name of the node whose kubelet says that it is the machine's; empty: there is none."""
    for node in nodes:
        if node.labels.get(settings.names.machine_label) == machine.name and is_its_node(
            machine, node
        ):
            return node.name
    return ""


def waited_s(seen: Progress, now: datetime) -> float:
    """For how long volumes have been waited for."""
    since = moment(seen.since)
    return 0.0 if since is None else (now - since).total_seconds()


def waits(seen: Progress, now: datetime) -> Progress:
    """Volumes are waited for, from now on if not before."""
    return seen if seen.since else msgspec.structs.replace(seen, since=format_time(now))
