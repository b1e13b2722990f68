"""From a machine's object to its VM: what each step needs, and how a pass ends. Pure.

A pass runs steps until one has to wait: claim the object, look for a VM, record that the creation
started, create the VM, store its provider ID, initialise the VM, write the status.

The record makes sure that no VM is forgotten. It stands on the object from before the first
`create_machine` until the provider ID is stored, so every error, crash or lost write in between
leaves a machine whose next pass looks for the VM again, and whose deletion asks the cloud. VMs are
found by the UID in their marks, or, with a driver that knows names only, by the machine's name:
such a creation is recorded only after the name was seen to be free. Once a provider ID is stored,
no VM is ever created again for the machine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from ccm.base import redact
from ccm.cloud import errors
from ccm.cloud import machines as vms
from ccm.cloud.helpers import is_same_instance
from ccm.cloud.machines import Identity, MachineInfo, MachineRecord, found, known
from ccm.machines.classes import ResolvedClass
from ccm.machines.settings import Names, Settings
from ccm.machines.tokens import TOKEN, has, is_id
from ccm.model import Node, NodeAddress
from ccm.model.machines import (
    CREATING,
    Machine,
    MachineStatus,
    OperationState,
    OperationType,
    Phase,
)
from ccm.model.names import ADDRESS_HOSTNAME
from ccm.model.owners import controller_uid
from ccm.model.patches import Patch, StaleObject, add_finalizer, annotations_patch, same_version
from ccm.model.times import parse_time

SHORT_S, MEDIUM_S = 5.0, 180.0
"""When a failed step is tried again (reference); other errors have a time of their own."""

CREATING_TEXT = "Creating machine on cloud provider"
CREATED_TEXT = "Created machine on cloud provider"
OLD_NODE_TEXT = "VM using old node obj"
"""Descriptions that others look for."""

_PASSING = (errors.Unknown, errors.DeadlineExceeded, errors.Aborted, errors.Unavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a pass ends.

    Attributes:
        status: what is written; None = nothing new.
        after_s: when it comes back though nothing changes; None = never.
        punctual: that time is a promise, such as a timeout; others may be a little later.
        joined: its node is in use now, so that its bootstrap token has served.
        busy: the answer of a cloud that works on it, whose time `after_s` is.
        is_invalid: no VM can be created as the machine or its class stands; an Event says so.
    """

    status: MachineStatus | None = None
    after_s: float | None = None
    punctual: bool = False
    joined: bool = False
    busy: errors.RetryAfter | None = None
    is_invalid: bool = False


def is_claimed(machine: Machine, made_of: ResolvedClass, settings: Settings) -> bool:
    """Whether all stands on the object that has to before its VM is made."""
    return (
        settings.names.finalizer in (machine.metadata.finalizers or ())
        and bool(machine.annotation(settings.names.priority))
        and (
            is_id(machine.annotation(settings.names.token_id)) or not needs_token(made_of, settings)
        )
    )


def needs_token(made_of: ResolvedClass, settings: Settings) -> bool:
    """Whether the VMs of a class are booted with a bootstrap token."""
    every = (made_of.user_data, made_of.spec_user_data)
    return settings.has_target and any(has(one, TOKEN) for one in every)


def is_stored(machine: Machine, settings: Settings) -> bool:
    """Whether the object says which VM is the machine's."""
    return bool(machine.provider_id) and (bool(machine.node_name) or not settings.has_target)


def settled(
    machine: Machine, vm: MachineInfo, now: datetime, settings: Settings, *, is_new: bool
) -> Outcome:
    """Return how a pass without an error ends; `is_new`: this pass created the VM."""
    if machine.phase not in CREATING:
        return Outcome()
    state = machine.status.known_state
    if not is_new and vm.last_known_state is not None:
        state = vm.last_known_state
    there = MachineStatus(
        kind=OperationType.CREATE.value,
        since=now,
        updated=now,
        known_state=state,
        preserve_until=machine.status.preserve_until,
    )
    if settings.has_target:
        return Outcome(
            status=replace(
                there,
                phase=Phase.PENDING,
                description=CREATING_TEXT,
                state=OperationState.PROCESSING.value,
                timeout_active=True,
            )
        )
    return Outcome(
        status=replace(
            there,
            phase=Phase.AVAILABLE,
            description=CREATED_TEXT,
            state=OperationState.SUCCESSFUL.value,
            addresses=_addresses(machine, vm),
        )
    )


def discarded(machine: Machine, now: datetime) -> Outcome:
    """Return how a pass ends whose VM was deleted again, as the name of its node is taken."""
    return _written(machine, _failure(machine, OLD_NODE_TEXT, Phase.FAILED, now), MEDIUM_S)


def failed(
    machine: Machine,
    error: errors.CloudError,
    now: datetime,
    settings: Settings,
    *,
    initializing: bool = False,
) -> Outcome:
    """How a pass ends in which the cloud refused something.

    A `RetryAfter` is no failure: only what the driver wants to remember is written. A VM that was
    written down and will never run is not waited for: the machine has failed, to be replaced.
    """
    said = known(error)
    told = said.last_known_state
    if isinstance(error, errors.RetryAfter):
        status = machine.status
        kept = None if told in (None, status.known_state) else replace(status, known_state=told)
        return Outcome(status=kept, after_s=error.seconds, busy=error)
    code, text = errors.code_of(error).name, told_of(error)
    description = f"Cloud provider message - {text}"
    if initializing:
        description = f"Provider error: {text}. Initialize VM Instance"
    is_lost = initializing and said.phase is vms.Phase.FAILED
    is_late = (now - machine.created).total_seconds() > settings.of(machine).creation_timeout_s
    phase = Phase.FAILED if is_lost or is_late else Phase.CRASH_LOOP
    after_s = SHORT_S if initializing else _retry_s(error, settings)
    keeps = initializing or isinstance(error, (*_PASSING, errors.ResourceExhausted))
    state = told if told is not None else (machine.status.known_state if keeps else "")
    status = replace(_failure(machine, description, phase, now), code=code, known_state=state)
    return _written(machine, status, after_s)


def impossible(machine: Machine, faults: Iterable[str], now: datetime) -> Outcome:
    """How a pass ends without a question to the cloud: the class cannot be used.

    That is nothing the machine can do about, nor another in its place: it never has failed.
    """
    text = "; ".join(faults)
    status = replace(
        _failure(machine, text, Phase.CRASH_LOOP, now), code=errors.FailedPrecondition.__name__
    )
    return replace(_written(machine, status, None), is_invalid=True)


def told_of(error: errors.CloudError) -> str:
    """An error as a description has it: whoever may read the object reads it."""
    said = copy.copy(error)
    said.args = (redact.public(str(error)),)
    return errors.format_error(said)


def passes(error: errors.CloudError) -> bool:
    """Whether an error is of a kind that passes by itself, soon."""
    return isinstance(error, _PASSING)


def match_marked(
    records: Iterable[MachineRecord], identity: Identity, *, adopt_unmarked: bool
) -> tuple[MachineRecord | None, str]:
    """Find the machine's VM in a listing of a driver that marks VMs.

    A VM with another marker, or another UID, is never the machine's. A VM without any marker is,
    where the settings adopt such VMs.

    Returns:
        The machine's VM if there is one; why another VM prevents a creation, else empty.
    """
    every = list(records)
    ours = found(every, identity)
    if ours is not None:
        return ours, ""
    for record in every:
        theirs = record.identity
        if theirs.name != identity.name:
            continue
        where = f"VM {record.info.provider_id or theirs.name}"
        if theirs.cluster or theirs.uid:
            owner = f"cluster {theirs.cluster!r}, machine {theirs.uid!r}"
            return None, f"{where} has the name of this machine and belongs to {owner}"
        if not adopt_unmarked:
            return None, _unmarked(where)
        return record, ""
    return None, ""


def match_named(
    records: Iterable[MachineRecord],
    status: MachineRecord | None,
    machine: Machine,
    *,
    adopt_unmarked: bool,
) -> tuple[MachineRecord | None, str]:
    """Find the machine's VM by name, for a driver that keeps no marks.

    A VM that has the name is the machine's if the creation was recorded, because the name was free
    before that. Without the record it is another's, unless it is the only one of the name and the
    settings adopt such VMs.

    Args:
        records: listing of the machine's class, begun after the last creation ended.
        status: VM that the driver returns for the name; None: no VM has the name.
        machine: the machine; its provider ID is not stored.
        adopt_unmarked: whether VMs without marks are adopted.

    Returns:
        As `match_marked`.

    Raises:
        Unavailable: listing and status contradict each other; one of them lags behind.
    """
    listed = {record.info.provider_id for record in records if record.identity.name == machine.name}
    if status is None and not listed:
        return None, ""
    provider_id = status.info.provider_id if status is not None else ""
    if not machine.creation_started and not adopt_unmarked:
        return None, _unmarked(f"VM {provider_id or min(listed, default=machine.name)}")
    if not machine.creation_started and len(listed) > 1:
        # The VM that is not adopted would pass for one that the machine left behind.
        return None, (
            f"VMs {', '.join(sorted(listed))} have the name of this machine and no marker of any "
            "cluster; delete or rename all but one"
        )
    if status is None or (listed and provider_id not in listed):
        # Creating another VM, or taking the wrong one of two, would leak a VM. The next listing
        # and status decide.
        raise errors.Unavailable(
            f"the cloud lists {', '.join(sorted(listed))} under the name {machine.name}, and "
            f"answers {provider_id or 'none'} when asked by name"
        )
    return status, ""


def _unmarked(where: str) -> str:
    return (
        f"{where} has the name of this machine and no marker of any cluster; delete or rename it, "
        "or have it taken over with --adopt-unmarked-machines"
    )


def known_vm(machine: Machine, vm: MachineInfo | None) -> MachineInfo | None:
    """Return what is known of the machine's VM, after what the cloud said; None: there is none."""
    if not machine.provider_id:
        return vm
    # What is written down stands, whatever the cloud says now.
    stored = MachineInfo(provider_id=machine.provider_id, node_name=machine.node_name)
    if vm is None:
        return stored
    node_name = machine.node_name or vm.node_name
    return replace(vm, provider_id=machine.provider_id, node_name=node_name)


def is_name_taken(machine: Machine, vm: MachineInfo, node: Node | None, settings: Settings) -> bool:
    """Whether the node of that name was there before the machine, so that it is another's."""
    if not settings.has_target or node is None or node.name == machine.name:
        return False
    if node.provider_id and is_same_instance(node.provider_id, vm.provider_id):
        # It is this very VM's, whatever the clocks of two clusters say.
        return False
    made = node.metadata.creation_timestamp
    return made is not None and parse_time(made) < machine.created


def lacking(vm: MachineInfo, settings: Settings) -> str:
    """Return why a VM is of no use; empty: it is."""
    if not vm.provider_id:
        return "the driver gave no provider ID"
    if settings.has_target and not vm.node_name:
        return f"the driver gave no node name for {vm.provider_id}"
    return ""


def _addresses(machine: Machine, vm: MachineInfo) -> tuple[NodeAddress, ...]:
    every = {*machine.status.addresses, *vm.addresses}
    if vm.node_name:
        every.add(NodeAddress(type=ADDRESS_HOSTNAME, address=vm.node_name))
    return tuple(sorted(every, key=lambda one: one.type + one.address))


def _retry_s(error: errors.CloudError, settings: Settings) -> float:
    if isinstance(error, errors.ResourceExhausted):
        return settings.exhausted_retry_s
    return SHORT_S if passes(error) else MEDIUM_S


def _failure(machine: Machine, description: str, phase: Phase, now: datetime) -> MachineStatus:
    failed, create = OperationState.FAILED, OperationType.CREATE
    return machine.status.entered(phase, description, failed, create, now)


def _written(machine: Machine, status: MachineStatus, after_s: float | None) -> Outcome:
    if says_nothing_new(machine.status, status):
        return Outcome(after_s=after_s)
    return Outcome(status=status, after_s=after_s)


# --- what is written on a machine ---------------------------------------------------------------

_MOST_ORIGINS = 4
"""Maximum number of origins that are recorded for a VM. Former origins connect VMs of one project,
of which only some were seen after a rotation. With more of them, two are likelier equal by
chance."""


def claim(obj: Machine, names: Names, token_id: str, *, records: bool) -> Patch | None:
    """Return what the object needs before its VM is created, in one write; None: nothing.

    Args:
        obj: the object as it is, or as it is about to be created.
        names: names of the API group.
        token_id: ID of the bootstrap token; empty = it needs none, or keeps its own.
        records: whether the write also records that the creation started. Only for drivers that
            mark VMs: with the others the machine's name has to be seen free first.

    Raises:
        StaleObject: it is being deleted.
    """
    if obj.is_deleting:
        raise StaleObject
    held = add_finalizer(obj, names.finalizer, strategic=False)
    wanted = {} if names.priority in obj.annotations else {names.priority: names.default_priority}
    if token_id:
        wanted[names.token_id] = token_id
    if records and not obj.provider_id and not obj.creation_started:
        wanted[names.creation] = record_of(obj)
    notes = {key: text for key, text in wanted.items() if obj.annotations.get(key) != text}
    if held is None and not notes:
        return None
    metadata = dict(held["metadata"]) if held is not None else same_version(obj)
    return {"metadata": metadata | ({"annotations": notes} if notes else {})}


def record_of(obj: Machine) -> str:
    """Return the value that records a started creation: the UID, or, of an object that is about to
    be created and has none yet, that of its controller.
    """
    return obj.uid or controller_uid(obj)


def record(obj: Machine, names: Names) -> Patch | None:
    """Return the patch that records a started creation; None: it is recorded.

    Raises:
        StaleObject: the object is being deleted, or has a provider ID.
    """
    if obj.is_deleting or obj.provider_id:
        raise StaleObject
    if obj.creation_started:
        return None
    return {"metadata": same_version(obj) | {"annotations": {names.creation: record_of(obj)}}}


def origin(obj: Machine, mark: str, names: Names) -> Patch | None:
    """Return the patch that records another origin that shows the VM; None: there is none.

    Without a record, the project of the VM is unknown, and one more origin would not tell it.
    """
    before = obj.origins
    if not before or mark in before:
        return None
    return annotations_patch(obj, {names.origin: ",".join((*before, mark)[-_MOST_ORIGINS:])})


# --- statuses -------------------------------------------------------------------------------------

STALE_S = 1800.0
"""A status older than this is written again, though it says the same (reference)."""

SIMILAR = 0.75
"""Texts with a greater similarity say the same: they may differ in the ID of a request."""

_MOST = 512
"""Characters that are compared: a distance takes time as the square of them."""


def says_nothing_new(old: MachineStatus, new: MachineStatus) -> bool:
    """Whether a status need not be written.

    What the driver wants to remember is compared too: losing it may lose a VM.
    """
    if old.updated is None or new.updated is None or _age_s(old.updated, new.updated) > STALE_S:
        return False
    if not similar(old.description, new.description):
        return False
    return _timeless(old) == _timeless(new)


def similar(one: str, other: str) -> bool:
    """Whether two descriptions say the same."""
    if one == other:
        return True
    longest = max(len(one), len(other))
    start = _common(one, other)
    one, other = one[start:], other[start:]
    end = _common(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    rest = max(len(one), len(other))
    # What differs is taken to go on as it begins.
    scale = max(1.0, rest / _MOST)
    return 1 - _distance(one[:_MOST], other[:_MOST]) * scale / longest > SIMILAR


def _timeless(status: MachineStatus) -> MachineStatus:
    return replace(status, description="", since=None, updated=None, conditions=())


def _age_s(old: datetime, new: datetime) -> float:
    return abs((new - old).total_seconds())


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _distance(one: str, other: str) -> int:
    """Levenshtein's: the fewest characters to insert, delete or exchange."""
    row = list(range(len(other) + 1))
    for number, char in enumerate(one, start=1):
        before, row[0] = row[0], number
        for at, fellow in enumerate(other, start=1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (char != fellow))
    return row[-1]
