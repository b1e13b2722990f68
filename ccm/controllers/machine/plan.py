"""What is written on a Machine, and what of a change makes work. Pure."""

from __future__ import annotations

from datetime import datetime

from ccm.cloud.machines import MachineInfo
from ccm.gardener import codec, names
from ccm.machines import health
from ccm.machines.settings import Names
from ccm.model import Node
from ccm.model.machines import Machine, MachineStatus
from ccm.model.owners import controller_uid
from ccm.model.patches import Patch, StaleObject, add_finalizer, same_object, same_version


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


def identity(obj: Machine, vm: MachineInfo, *, has_target: bool, origin: str = "") -> Patch | None:
    """What says which VM is the machine's; None where it stands.

    Raises:
        StaleObject: somebody wrote down another VM meanwhile.
    """
    if obj.provider_id not in ("", vm.provider_id):
        raise StaleObject
    node_name = vm.node_name if has_target else ""
    patch = codec.identity_patch(obj, vm.provider_id, node_name, origin)
    stands = (obj.provider_id, obj.node_name) == (vm.provider_id, vm.node_name)
    return None if stands else patch


def known_state(obj: Machine, state: str) -> Patch:
    """What the driver wants to remember, and nothing else."""
    stored = codec.state_to_store(obj, state)
    return {"metadata": same_object(obj), "status": {"lastKnownState": stored}}


def status(obj: Machine, planned_for: Machine, wanted: MachineStatus) -> Patch | None:
    """The status that was planned for an object.

    Raises:
        StaleObject: another phase was written meanwhile, or its deletion was asked for.
    """
    if obj.phase is not planned_for.phase or obj.is_deleting != planned_for.is_deleting:
        raise StaleObject
    return codec.status_patch(obj, wanted)


def ending(obj: Machine, wanted: MachineStatus) -> Patch:
    """The status of a machine that goes, whatever others wrote; it is preserved no longer."""
    found = codec.status_patch(obj, wanted)
    if obj.status.preserve_until is not None:
        found["status"]["currentStatus"]["preserveExpiryTime"] = None
    return found


def note(obj: Machine, name: str, text: str) -> Patch | None:
    """An annotation of this very object; None where it stands."""
    if obj.annotations.get(name) == text:
        return None
    return {"metadata": same_object(obj) | {"annotations": {name: text}}}


def preserved(obj: Machine, planned_for: Machine, until: datetime | None) -> Patch | None:
    """The moment until which a machine is kept, and nothing else; None where it stands.

    Raises:
        StaleObject: another phase was written meanwhile.
    """
    if obj.phase is not planned_for.phase:
        raise StaleObject
    if obj.status.preserve_until == until:
        return None
    return codec.preserve_patch(obj, until)


def node_matters(old: Node | None, new: Node | None) -> bool:
    """Whether a change of a node may change something about its machine; a heartbeat does not."""
    if old is None or new is None or old.uid != new.uid:
        return True
    return (
        old.metadata.labels,
        old.metadata.annotations,
        old.metadata.finalizers,
        old.is_deleting,
        old.taints,
        _said(old),
    ) != (
        new.metadata.labels,
        new.metadata.annotations,
        new.metadata.finalizers,
        new.is_deleting,
        new.taints,
        _said(new),
    )


def _said(node: Node) -> dict[str, tuple[str, str]]:
    return health.said(node.status.conditions or (), names.CONDITION_IN_PLACE)
