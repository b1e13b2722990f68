"""Which object controls another, and what is written to take one over or to let it go. Pure.

Of all owners that an object names one at most is its controller. Lists of owners are written
whole, under the version they were read from: a custom resource has no merge key for them.
"""

from __future__ import annotations

import msgspec

from ccm.model.meta import KubeObject, OwnerReference
from ccm.model.patches import Patch, same_object, same_version


def controller_of(obj: KubeObject) -> OwnerReference | None:
    """The owner that controls the object; None: nobody does."""
    owners = obj.metadata.owner_references or ()
    return next((one for one in owners if one.controller), None)


def controller_uid(obj: KubeObject) -> str:
    """UID of the owner that controls the object; empty: nobody does."""
    found = controller_of(obj)
    return "" if found is None else found.uid


def controller_key(obj: KubeObject, kind: str) -> str:
    """Key of the owner of a kind that controls the object; empty: none does."""
    found = controller_of(obj)
    return "" if found is None or found.kind != kind else f"{obj.namespace}/{found.name}"


def as_controller(owner: KubeObject, *, api_version: str, kind: str) -> OwnerReference:
    """The reference by which an object names its controller.

    It keeps the owner from going before the object, where somebody deletes it in the foreground.
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
    """The patch by which `owner` becomes the object's controller; other owners stay."""
    others = [one for one in obj.metadata.owner_references or () if one.uid != owner.uid]
    return _owned_by(obj, [*others, owner])


def release_patch(obj: KubeObject, owner_uid: str) -> Patch | None:
    """The patch by which an owner lets the object go; None where it does not own it."""
    owners = obj.metadata.owner_references or []
    others = [one for one in owners if one.uid != owner_uid]
    return None if len(others) == len(owners) else _owned_by(obj, others)


def _owned_by(obj: KubeObject, owners: list[OwnerReference]) -> Patch:
    metadata = same_object(obj) | same_version(obj)
    # As text and numbers: what compares or stores a patch knows no structs.
    metadata["ownerReferences"] = [msgspec.to_builtins(one) for one in owners]
    return {"metadata": metadata}
