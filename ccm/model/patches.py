"""Patches that contain only changed fields, and their preconditions. No I/O.

With resourceVersion as precondition, the API server refuses a patch (409) after any change of the
object. With the UID as precondition, the API server refuses a patch for another object of the same
name (409, or 422 naming `metadata.uid`). A list without a merge key is replaced as a whole. A patch
with such a list needs the resourceVersion from which the list was computed: otherwise the patch
would undo concurrent changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccm.model.meta import KubeObject

Patch = Mapping[str, Any]


class StaleObject(Exception):
    """The object changed after a write was planned; the caller must plan again."""


def uid_precondition(obj: KubeObject) -> dict[str, Any]:
    """Return patch metadata with the UID as precondition; empty if the object has no UID."""
    return {"uid": obj.uid} if obj.uid else {}


def version_precondition(obj: KubeObject) -> dict[str, Any]:
    """Return patch metadata with resourceVersion as precondition."""
    return {"resourceVersion": obj.resource_version}


def annotations_patch(
    obj: KubeObject, wanted: Mapping[str, str | None], *, any_version: bool = False
) -> Patch | None:
    """Return the patch that sets or removes annotations; None = nothing changes.

    Args:
        wanted: values of annotations; None removes an annotation.
        any_version: whether to omit the resourceVersion precondition.
    """
    notes = {key: text for key, text in wanted.items() if obj.annotations.get(key) != text}
    if not notes:
        return None
    version = {} if any_version else version_precondition(obj)
    return {"metadata": uid_precondition(obj) | version | {"annotations": notes}}


def add_finalizer_patch(obj: KubeObject, *names: str, strategic: bool = True) -> Patch | None:
    """Return the patch that adds finalizers; None = the object has them.

    Args:
        obj: the object.
        names: the finalizers; an empty name is ignored.
        strategic: whether the kind supports strategic merge patches. Custom resources do not, so
            their patch contains the whole list.
    """
    missing = [name for name in names if name and name not in obj.finalizers]
    if not missing:
        return None
    order = [*obj.finalizers, *missing]
    metadata = version_precondition(obj)
    if strategic and obj.finalizers:
        metadata["$setElementOrder/finalizers"] = order
    metadata["finalizers"] = missing if strategic else order
    return {"metadata": metadata}


def custom_resource_finalizer_patch(obj: KubeObject, name: str) -> Patch | None:
    """Return the patch that adds a finalizer to a custom resource.

    None = the object has the finalizer, or is being deleted: the API server then accepts no further
    finalizers.
    """
    return None if obj.is_deleting else add_finalizer_patch(obj, name, strategic=False)


def remove_finalizer_patch(obj: KubeObject, *names: str, strategic: bool = True) -> Patch | None:
    """Return the patch that removes only these finalizers; None = the object has none of them.

    The arguments are those of `add_finalizer_patch`.
    """
    gone = [name for name in names if name in obj.finalizers]
    if not gone:
        return None
    others = [finalizer for finalizer in obj.finalizers if finalizer not in gone]
    metadata = version_precondition(obj)
    if strategic:
        metadata["$deleteFromPrimitiveList/finalizers"] = gone
        if others:
            metadata["$setElementOrder/finalizers"] = others
    else:
        metadata["finalizers"] = others
    return {"metadata": metadata}


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest merge patch from one map to another; lists are replaced as a whole."""
    patch: dict[str, Any] = {}
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            patch[key] = merge_patch(old, new)
        else:
            patch[key] = new
    return patch


def json_patch(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield the operations of a JSON Patch (RFC 6902) that turn one JSON value into another.

    Objects are compared field by field; other values, also lists, are replaced as a whole.

    Args:
        before: value to patch.
        after: value that results from the patch.
        path: JSON Pointer of the value; empty = the document.
    """
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        if before != after:
            yield {"op": "replace", "path": path, "value": after}
        return
    for name in {**before, **after}:
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in after:
            yield {"op": "remove", "path": place}
        elif name not in before:
            yield {"op": "add", "path": place, "value": after[name]}
        else:
            yield from json_patch(before[name], after[name], place)
