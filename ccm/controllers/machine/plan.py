"""What is written on a Machine, and what of a change makes work. Pure."""

from __future__ import annotations

from ccm.machines import health
from ccm.machines.settings import Names
from ccm.model import Node
from ccm.model.machines import Machine
from ccm.model.owners import controller_uid
from ccm.model.patches import Patch, StaleObject, add_finalizer, annotations_patch, same_version

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


def node_matters(old: Node | None, new: Node | None, names: Names) -> bool:
    """Whether a change of a node may change something about its machine; a heartbeat does not."""
    if old is None or new is None or old.uid != new.uid:
        return True
    return (
        old.metadata.labels,
        old.metadata.annotations,
        old.metadata.finalizers,
        old.is_deleting,
        old.taints,
        _said(old, names),
    ) != (
        new.metadata.labels,
        new.metadata.annotations,
        new.metadata.finalizers,
        new.is_deleting,
        new.taints,
        _said(new, names),
    )


def _said(node: Node, names: Names) -> dict[str, tuple[str, str]]:
    return health.said(node.status.conditions or (), names.update_condition)
