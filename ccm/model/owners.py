"""Owner references: controllers of objects, adoption and release. No I/O.

At most one owner of an object is its controller. A patch replaces the whole list of owners, because
custom resources have no merge key for this list. The precondition of a patch is the resourceVersion
from which the list was computed.
"""

from __future__ import annotations

import msgspec

from ccm.model.meta import KubeObject, OwnerReference
from ccm.model.patches import Patch, uid_precondition, version_precondition


def controller_of(obj: KubeObject) -> OwnerReference | None:
    """Return the owner reference of the object's controller; None = no controller."""
    owners = obj.metadata.owner_references or ()
    return next((reference for reference in owners if reference.controller), None)


def controller_uid(obj: KubeObject) -> str:
    """Return the UID of the object's controller; empty = no controller."""
    controller = controller_of(obj)
    return "" if controller is None else controller.uid


def controller_key(obj: KubeObject, kind: str) -> str:
    """Return `namespace/name` of the object's controller; empty = no controller of this kind."""
    controller = controller_of(obj)
    return (
        ""
        if controller is None or controller.kind != kind
        else f"{obj.namespace}/{controller.name}"
    )


def controller_reference(owner: KubeObject, *, api_version: str, kind: str) -> OwnerReference:
    """Return the owner reference that makes `owner` a controller.

    In a foreground deletion, `blockOwnerDeletion` keeps the owner until the object is gone.
    """
    return OwnerReference(
        api_version=api_version,
        kind=kind,
        name=owner.name,
        uid=owner.uid,
        controller=True,
        block_owner_deletion=True,
    )


def adoption_patch(obj: KubeObject, owner: OwnerReference) -> Patch:
    """Return the patch that makes `owner` the object's controller; other owners stay."""
    others = [
        reference for reference in obj.metadata.owner_references or () if reference.uid != owner.uid
    ]
    return _owned_by(obj, [*others, owner])


def release_patch(obj: KubeObject, owner_uid: str) -> Patch | None:
    """Return the patch that removes an owner from the object; None = no such owner."""
    owners = obj.metadata.owner_references or []
    others = [reference for reference in owners if reference.uid != owner_uid]
    return None if len(others) == len(owners) else _owned_by(obj, others)


def _owned_by(obj: KubeObject, owners: list[OwnerReference]) -> Patch:
    metadata = uid_precondition(obj) | version_precondition(obj)
    # Plain types, because code that compares or stores a patch knows no structs.
    metadata["ownerReferences"] = [msgspec.to_builtins(reference) for reference in owners]
    return {"metadata": metadata}
