"""Creation of a machine's VM: decisions of each step, and results of a pass. No I/O.

A pass runs steps until one has to wait: claim the object (add finalizers and annotations), look for
a VM, record that the creation started, create the VM, store its provider ID, initialise the VM,
write the status.

So that no VM is forgotten, an annotation records the start of the creation. The object has the
annotation from before the first `create_machine` until the provider ID is stored. After an error, a
crash or a lost write in between, the next pass looks for the VM again, and a deletion asks the
cloud for the VM. VMs are found by the UID in their labels. With a driver that finds VMs by name
only, the creation is recorded only after the cloud showed no VM with the machine's name. Once a
provider ID is stored, no VM is ever created again for the machine.
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
from ccm.cloud.machines import Identity, MachineInfo, MachineRecord, find_record, partial_info
from ccm.machines.classes import ResolvedClass
from ccm.machines.settings import MachineSettings, Names
from ccm.machines.tokens import TOKEN, has_placeholder, is_id
from ccm.model import Node, NodeAddress
from ccm.model.machines import (
    CREATION_PHASES,
    Machine,
    MachineStatus,
    OperationState,
    OperationType,
    Phase,
)
from ccm.model.names import ADDRESS_HOSTNAME
from ccm.model.owners import controller_uid
from ccm.model.patches import (
    Patch,
    StaleObject,
    add_finalizer_patch,
    annotations_patch,
    version_precondition,
)
from ccm.model.times import parse_time

SHORT_S, MEDIUM_S = 5.0, 180.0
"""Retry delays of a failed step, for transient and for other errors (Gardener's MCM)."""

CREATING_TEXT = "Creating machine on cloud provider"
CREATED_TEXT = "Created machine on cloud provider"
OLD_NODE_TEXT = "VM using old node obj"
"""Status descriptions that other programs match."""

_TRANSIENT = (errors.Unknown, errors.DeadlineExceeded, errors.Aborted, errors.Unavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """Result of one pass over a machine.

    Attributes:
        status: status to write; None = nothing changed.
        after_s: delay of the requeue, in seconds; None = only a change requeues the machine.
        is_exact: whether the delay is exact, as for a timeout; other delays may get jitter.
        joined: whether the node has just become ready for use, so that the bootstrap token can be
            deleted.
        busy: `RetryAfter` of a cloud that is still working on the VM; its delay is `after_s`.
        eager: whether every change may requeue the machine before `after_s`, because a pass is
            cheap.
        is_invalid: whether the class makes every creation fail; the controller records an event.
    """

    status: MachineStatus | None = None
    after_s: float | None = None
    is_exact: bool = False
    joined: bool = False
    busy: errors.RetryAfter | None = None
    eager: bool = False
    is_invalid: bool = False


def is_claimed(machine: Machine, machine_class: ResolvedClass, settings: MachineSettings) -> bool:
    """Return whether the object has all metadata that the creation of its VM requires."""
    return (
        set(settings.names.machine_finalizers) <= set(machine.finalizers)
        and (not settings.names.priority or bool(machine.annotation(settings.names.priority)))
        and (
            is_id(machine.annotation(settings.names.token_id))
            or not needs_token(machine_class, settings)
        )
    )


def needs_token(machine_class: ResolvedClass, settings: MachineSettings) -> bool:
    """Return whether the user data of a class contain the placeholder of a bootstrap token.

    False without a target cluster.
    """
    user_data = (machine_class.user_data, machine_class.spec_user_data)
    return settings.has_target and any(has_placeholder(data, TOKEN) for data in user_data)


def is_stored(machine: Machine, settings: MachineSettings) -> bool:
    """Return whether the object stores the provider ID, and with a target cluster the node name."""
    return bool(machine.provider_id) and (bool(machine.node_name) or not settings.has_target)


def success_result(
    machine: Machine, vm: MachineInfo, now: datetime, settings: MachineSettings, *, is_new: bool
) -> PassResult:
    """Return the result of a pass without an error.

    Args:
        machine: the machine.
        vm: its VM, as the cloud reported it.
        now: the time.
        settings: names and settings.
        is_new: whether this pass created the VM.
    """
    if machine.phase not in CREATION_PHASES:
        return PassResult()
    state = machine.status.known_state
    if not is_new and vm.last_known_state is not None:
        state = vm.last_known_state
    base = MachineStatus(
        kind=OperationType.CREATE.value,
        since=now,
        updated=now,
        known_state=state,
        preserve_until=machine.status.preserve_until,
    )
    if settings.has_target:
        return PassResult(
            status=replace(
                base,
                phase=Phase.PENDING,
                addresses=merge_addresses(machine, vm) if settings.stores_addresses else (),
                description=CREATING_TEXT,
                state=OperationState.PROCESSING.value,
                timeout_active=True,
            )
        )
    return PassResult(
        status=replace(
            base,
            phase=Phase.AVAILABLE,
            description=CREATED_TEXT,
            state=OperationState.SUCCESSFUL.value,
            addresses=merge_addresses(machine, vm),
        )
    )


def discarded_vm_result(machine: Machine, now: datetime) -> PassResult:
    """Return the result of a pass that deleted the new VM because its node name is taken."""
    return _result_if_changed(
        machine, _failure(machine, OLD_NODE_TEXT, Phase.FAILED, now), MEDIUM_S
    )


def failure_result(
    machine: Machine,
    error: errors.CloudError,
    now: datetime,
    settings: MachineSettings,
    *,
    initializing: bool = False,
) -> PassResult:
    """Return the result of a pass in which a call to the cloud failed.

    A `RetryAfter` is no failure: only the driver's state is written. The machine is marked Failed,
    to be replaced, once its creation timeout has passed, or if the cloud reports that its VM failed
    during initialisation.
    """
    info = partial_info(error)
    known_state = info.last_known_state
    if isinstance(error, errors.RetryAfter):
        status = machine.status
        kept = (
            None
            if known_state in (None, status.known_state)
            else replace(status, known_state=known_state)
        )
        return PassResult(status=kept, after_s=error.seconds, busy=error)
    code, text = errors.code_of(error).name, public_error_text(error)
    description = f"Cloud provider message - {text}"
    if initializing:
        description = f"Provider error: {text}. Initialize VM Instance"
    is_lost = initializing and info.phase is vms.Phase.FAILED
    limit_s = settings.of(machine).creation_timeout_s
    is_late = limit_s is not None and (now - machine.created).total_seconds() > limit_s
    phase = Phase.FAILED if is_lost or is_late else Phase.CRASH_LOOP
    after_s = SHORT_S if initializing else _retry_s(error, settings)
    keeps = initializing or isinstance(error, (*_TRANSIENT, errors.ResourceExhausted))
    state = (
        known_state if known_state is not None else (machine.status.known_state if keeps else "")
    )
    status = replace(_failure(machine, description, phase, now), code=code, known_state=state)
    return _result_if_changed(machine, status, after_s)


def unusable_class_result(machine: Machine, faults: Iterable[str], now: datetime) -> PassResult:
    """Return the result of a pass that cannot call the cloud, because the class is unusable.

    A replacement would have the same class, so the machine is never marked Failed for this reason.
    """
    text = "; ".join(faults)
    status = replace(
        _failure(machine, text, Phase.CRASH_LOOP, now), code=errors.FailedPrecondition.__name__
    )
    return replace(_result_if_changed(machine, status, None), is_invalid=True)


def public_error_text(error: errors.CloudError) -> str:
    """Return an error as redacted text for a description, which every reader of the object sees."""
    public = copy.copy(error)
    public.args = (redact.mask_for_api(str(error)),)
    return errors.format_error(public)


def is_transient(error: errors.CloudError) -> bool:
    """Return whether an error is transient."""
    return isinstance(error, _TRANSIENT)


def match_marked(
    records: Iterable[MachineRecord], identity: Identity, *, adopt_unmarked: bool
) -> tuple[MachineRecord | None, str]:
    """Find the machine's VM in a listing, for a driver that labels VMs.

    A VM with the marker of another cluster or another UID never belongs to the machine. A VM that
    has the machine's name and no labels of a machine is adopted if the settings allow it.

    Returns:
        The machine's VM, or None; and the reason why another VM prevents a creation, or empty.
    """
    listed = list(records)
    own = find_record(listed, identity)
    if own is not None:
        return own, ""
    for record in listed:
        marks = record.identity
        if marks.name != identity.name:
            continue
        where = f"VM {record.info.provider_id or marks.name}"
        if marks.cluster or marks.uid:
            owner = f"cluster {marks.cluster!r}, machine {marks.uid!r}"
            return None, f"{where} has the name of this machine but belongs to {owner}"
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
    """Find the machine's VM by name, for a driver that finds VMs by name only.

    If the start of the creation is recorded, a VM of the machine's name belongs to the machine,
    because no VM had that name when the start was recorded. Otherwise the VM has another owner,
    unless it is the only VM of the name and the settings adopt VMs without labels.

    Args:
        records: VMs of the machine's class; their listing began after the last creation ended.
        status: VM that the driver returns for the name; None = no VM has the name.
        machine: the machine; its provider ID is not stored.
        adopt_unmarked: whether to adopt VMs without labels.

    Returns:
        As for `match_marked`.

    Raises:
        Unavailable: listing and status contradict each other, because one of them lags behind.
    """
    listed = {record.info.provider_id for record in records if record.identity.name == machine.name}
    if status is None and not listed:
        return None, ""
    provider_id = status.info.provider_id if status is not None else ""
    if not machine.creation_started and not adopt_unmarked:
        return None, _unmarked(f"VM {provider_id or min(listed, default=machine.name)}")
    if not machine.creation_started and len(listed) > 1:
        # After an adoption, the other VMs of that name would count as orphans of the machine.
        return None, (
            f"VMs {', '.join(sorted(listed))} have the name of this machine and no marker of any "
            "cluster; delete or rename all but one"
        )
    if status is None or (listed and provider_id not in listed):
        # Creating another VM, or choosing the wrong one of two VMs, would leak a VM. The next pass
        # queries again.
        raise errors.Unavailable(
            f"the cloud lists {', '.join(sorted(listed))} under the name {machine.name}, but "
            f"returns {provider_id or 'none'} for that name"
        )
    return status, ""


def _unmarked(where: str) -> str:
    return (
        f"{where} has the name of this machine and no marker of any cluster; delete or rename it, "
        "or, if the Machine has a MachineClass, adopt it with --adopt-unmarked-machines"
    )


def merge_vm(machine: Machine, vm: MachineInfo | None) -> MachineInfo | None:
    """Return the machine's VM; stored provider ID and node name override the cloud's.

    None = no VM is stored or known.
    """
    if not machine.provider_id:
        return vm
    stored = MachineInfo(provider_id=machine.provider_id, node_name=machine.node_name)
    if vm is None:
        return stored
    node_name = machine.node_name or vm.node_name
    return replace(vm, provider_id=machine.provider_id, node_name=node_name)


def is_name_taken(
    machine: Machine, vm: MachineInfo, node: Node | None, settings: MachineSettings
) -> bool:
    """Return whether a node that is older than the machine has the VM's node name.

    False for a node with the VM's provider ID, or with the machine's name.
    """
    if not settings.has_target or node is None or node.name == machine.name:
        return False
    if node.provider_id and is_same_instance(node.provider_id, vm.provider_id):
        # The provider ID proves that the node is the VM's, whatever the clocks of two clusters say.
        return False
    created = node.metadata.creation_timestamp
    return created is not None and parse_time(created) < machine.created


def vm_fault(vm: MachineInfo, settings: MachineSettings) -> str:
    """Return why a VM is unusable; empty = it is usable."""
    if not vm.provider_id:
        return "the driver returned no provider ID"
    if settings.has_target and not vm.node_name:
        return f"the driver returned no node name for {vm.provider_id}"
    return ""


def merge_addresses(machine: Machine, vm: MachineInfo) -> tuple[NodeAddress, ...]:
    """Return the stored addresses of a machine and those of its VM, sorted."""
    addresses = {*machine.status.addresses, *vm.addresses}
    if vm.node_name:
        addresses.add(NodeAddress(type=ADDRESS_HOSTNAME, address=vm.node_name))
    return tuple(sorted(addresses, key=lambda address: address.type + address.address))


def _retry_s(error: errors.CloudError, settings: MachineSettings) -> float:
    if isinstance(error, errors.ResourceExhausted):
        return settings.exhausted_retry_s
    return SHORT_S if is_transient(error) else MEDIUM_S


def _failure(machine: Machine, description: str, phase: Phase, now: datetime) -> MachineStatus:
    failed, create = OperationState.FAILED, OperationType.CREATE
    return machine.status.entered(phase, description, failed, create, now)


def _result_if_changed(
    machine: Machine, status: MachineStatus, after_s: float | None
) -> PassResult:
    if is_unchanged(machine.status, status):
        return PassResult(after_s=after_s)
    return PassResult(status=status, after_s=after_s)


# --- patches of a machine -----------------------------------------------------------------------

_MAX_ORIGINS = 4
"""Maximum number of origins (`ResolvedClass.origin`) recorded for a VM. VMs with a common origin
count as VMs of one project. Older origins are kept because the newest may be recorded for only some
of these VMs. With more origins, two VMs are likelier to have a common one by chance."""


def claim_patch(obj: Machine, names: Names, token_id: str, *, records: bool) -> Patch | None:
    """Return the patch with all metadata required before the VM is created; None = up to date.

    Args:
        obj: the object as stored, or as about to be created.
        names: names of the API group.
        token_id: ID of the bootstrap token; empty = write none.
        records: whether the patch also records that the creation started. Only for drivers that
            label VMs; other drivers must first find no VM with the machine's name.

    Raises:
        StaleObject: the object is being deleted.
    """
    if obj.is_deleting:
        raise StaleObject
    finalizer_patch = add_finalizer_patch(obj, *names.machine_finalizers, strategic=False)
    wanted = {}
    if names.priority and names.priority not in obj.annotations:
        wanted[names.priority] = names.default_priority
    if token_id:
        wanted[names.token_id] = token_id
    if records and not obj.provider_id and not obj.creation_started:
        wanted[names.creation] = creation_record(obj)
    annotations = {key: text for key, text in wanted.items() if obj.annotations.get(key) != text}
    if finalizer_patch is None and not annotations:
        return None
    metadata = (
        dict(finalizer_patch["metadata"])
        if finalizer_patch is not None
        else version_precondition(obj)
    )
    return {"metadata": metadata | ({"annotations": annotations} if annotations else {})}


def creation_record(obj: Machine) -> str:
    """Return the machine's UID: the value that records that the creation of its VM has started.

    For a Machine object that is not stored yet, and so has no UID, return its controller's UID.
    """
    return obj.uid or controller_uid(obj)


def creation_record_patch(obj: Machine, names: Names) -> Patch | None:
    """Return the patch that records that the creation has started; None = already recorded.

    Raises:
        StaleObject: the object is being deleted, or has a provider ID.
    """
    if obj.is_deleting or obj.provider_id:
        raise StaleObject
    if obj.creation_started:
        return None
    return {
        "metadata": version_precondition(obj)
        | {"annotations": {names.creation: creation_record(obj)}}
    }


def origin_patch(obj: Machine, mark: str, names: Names) -> Patch | None:
    """Return the patch that records `mark` as a further origin of the machine's VM.

    `mark` is the `ResolvedClass.origin` of credentials that have shown the VM. None = `mark` is
    recorded already, or no origin of the VM is recorded.
    """
    before = obj.origins
    if not before or mark in before:
        return None
    return annotations_patch(obj, {names.origin: ",".join((*before, mark)[-_MAX_ORIGINS:])})


# --- statuses -------------------------------------------------------------------------------------

STALE_S = 1800.0
"""Age in seconds after which an unchanged status is written again (Gardener's MCM)."""

MIN_SIMILARITY = 0.75
"""Similarity, 0 to 1, above which two texts count as equal: they may differ in a request ID."""

_MOST = 512
"""Maximum number of characters compared: the cost of a Levenshtein distance grows with the square
of this number."""


def is_unchanged(old: MachineStatus, new: MachineStatus) -> bool:
    """Return whether a status need not be written.

    The driver's state is compared too: losing it may lose a VM.
    """
    if old.updated is None or new.updated is None or _age_s(old.updated, new.updated) > STALE_S:
        return False
    if not is_similar(old.description, new.description):
        return False
    return _timeless(old) == _timeless(new)


def is_similar(text: str, other: str) -> bool:
    """Return whether two descriptions count as equal."""
    if text == other:
        return True
    longest = max(len(text), len(other))
    start = _common(text, other)
    text, other = text[start:], other[start:]
    end = _common(text[::-1], other[::-1])
    text, other = text[: len(text) - end], other[: len(other) - end]
    rest = max(len(text), len(other))
    # The characters beyond `_MOST` are assumed to differ at the same rate.
    scale = max(1.0, rest / _MOST)
    return 1 - _distance(text[:_MOST], other[:_MOST]) * scale / longest > MIN_SIMILARITY


def _timeless(status: MachineStatus) -> MachineStatus:
    return replace(status, description="", since=None, updated=None, conditions=())


def _age_s(old: datetime, new: datetime) -> float:
    return abs((new - old).total_seconds())


def _common(text: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next(
        (at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
        min(len(text), len(other)),
    )


def _distance(text: str, other: str) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions."""
    row = list(range(len(other) + 1))
    for number, char in enumerate(text, start=1):
        before, row[0] = row[0], number
        for at, other_char in enumerate(other, start=1):
            before, row[at] = (
                row[at],
                min(row[at] + 1, row[at - 1] + 1, before + (char != other_char)),
            )
    return row[-1]
