"""Patches that name only what changes, and what makes the server refuse them. Pure.

A patch bound to the version is refused (409) once anybody changed the object; one bound to
the UID (409, or 422 naming `metadata.uid`) once another object has its name. A list that
has no merge key is written whole, so it is replaced only under the version it was computed
from: otherwise the patch undoes what another writer added in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.model.meta import KubeObject

Patch = Mapping[str, Any]


class StaleObject(Exception):
    """The object is no longer what a write was planned for: decide anew."""


def same_object(obj: KubeObject) -> dict[str, Any]:
    """Metadata of a patch for this very object, in whatever state."""
    return {"uid": obj.uid} if obj.uid else {}


def same_version(obj: KubeObject) -> dict[str, Any]:
    """Metadata of a patch for the object in this very state."""
    return {"resourceVersion": obj.resource_version}


def annotations_patch(
    obj: KubeObject, wanted: Mapping[str, str | None], *, any_version: bool = False
) -> Patch | None:
    """The patch that sets annotations, or with None removes them; None when they stand."""
    notes = {key: text for key, text in wanted.items() if obj.annotations.get(key) != text}
    if not notes:
        return None
    version = {} if any_version else same_version(obj)
    return {"metadata": same_object(obj) | version | {"annotations": notes}}


def add_finalizer(obj: KubeObject, name: str, *, strategic: bool = True) -> Patch | None:
    """The patch that adds a finalizer; None when it is there.

    Args:
        obj: the object as it is.
        name: the finalizer.
        strategic: whether the kind takes strategic patches; custom resources do not, and
            get the whole list.
    """
    if name in obj.finalizers:
        return None
    order = [*obj.finalizers, name]
    metadata = same_version(obj)
    if strategic and obj.finalizers:
        metadata["$setElementOrder/finalizers"] = order
    metadata["finalizers"] = [name] if strategic else order
    return {"metadata": metadata}


def hold(obj: KubeObject, name: str) -> Patch | None:
    """Return the patch that adds a finalizer to a custom resource; None: it is there, or too late.

    To an object that is being deleted no finalizer can be added any more.
    """
    return None if obj.is_deleting else add_finalizer(obj, name, strategic=False)


def remove_finalizer(obj: KubeObject, name: str, *, strategic: bool = True) -> Patch | None:
    """The patch that removes a finalizer and none of somebody else; None when it is gone.

    The arguments are those of `add_finalizer`.
    """
    if name not in obj.finalizers:
        return None
    others = [each for each in obj.finalizers if each != name]
    metadata = same_version(obj)
    if strategic:
        metadata["$deleteFromPrimitiveList/finalizers"] = [name]
        if others:
            metadata["$setElementOrder/finalizers"] = others
    else:
        metadata["finalizers"] = others
    return {"metadata": metadata}


def merge_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest merge patch that makes one map the other; lists are replaced whole."""
    found: dict[str, Any] = {}
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found[key] = merge_changes(old, new)
        else:
            found[key] = new
    return found
