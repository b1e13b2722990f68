"""Merge patches, strategic merge patches and JSON patches.

Each function takes the decoded current object and the decoded patch and returns the
patched object. The functions may modify the current object: pass a fresh copy. They have no
other side effects.

A strategic merge patch merges lists by the merge keys of the schema and obeys the
directives `$patch` (merge, replace, delete), `$retainKeys`, `$setElementOrder/<list>` and
`$deleteFromPrimitiveList/<list>`. If elements of the current list share a merge key
(two addresses of one type), the patch changes the first, as in Kubernetes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from ccm.testing.apiserver import schema

_ANY = schema.Type(name="", fields={})
_UNKNOWN = schema.Field(name="", shape=schema.ValueType(kind="any"))
_WITH_VALUE = ("add", "replace", "test")


class BadPatchError(Exception):
    """A malformed patch (status 400)."""


class UnprocessablePatchError(Exception):
    """A well-formed patch that does not fit this object (status 422)."""


def merge(current: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7396): objects merge, null removes, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = current if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(shape: schema.Type, current: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a strategic merge patch to an object of type `shape`.

    Raises:
        BadPatchError: a directive is malformed.
        UnprocessablePatchError: an element of a merged list lacks its merge key.
    """
    directive = patch.get("$patch", "merge")
    if directive in ("replace", "delete"):
        return dict(_plain(patch)) if directive == "replace" else {}
    if directive != "merge":
        raise BadPatchError(f"unknown directive {directive!r}")
    plain = {key: value for key, value in patch.items() if not key.startswith("$")}
    if "$retainKeys" in patch:  # kubectl sends it for volumes and for a Deployment's strategy
        kept = patch["$retainKeys"]
        assigned = [key for key, value in plain.items() if value is not None]
        if not isinstance(kept, list) or any(key not in kept for key in assigned):
            raise BadPatchError("the patch sets a key that $retainKeys does not list")
        current = {key: value for key, value in current.items() if key in kept}
    for name, dropped in _lists(patch, "$deleteFromPrimitiveList/"):
        if isinstance(current.get(name), list):
            current[name] = [item for item in current[name] if item not in dropped]
    for key, value in plain.items():
        _merge_field(shape.fields.get(key, _UNKNOWN), current, key, value)
    for name, order in _lists(patch, "$setElementOrder/"):
        if isinstance(current.get(name), list):
            merge_key = shape.fields.get(name, _UNKNOWN).merge_key
            current[name] = _ordered(current[name], order, merge_key)
    return current


def _lists(patch: dict[str, Any], directive: str) -> Iterator[tuple[str, list[Any]]]:
    for key, value in patch.items():
        if key.startswith(directive):
            if not isinstance(value, list):
                raise BadPatchError(f"{key} is not a list")
            yield key.removeprefix(directive), value


def _merge_field(field: schema.Field, current: dict[str, Any], key: str, value: Any) -> None:
    known = current.get(key)
    if value is None:
        current.pop(key, None)
    elif isinstance(value, dict):
        below = known if isinstance(known, dict) else {}
        current[key] = strategic(field.shape.type or _ANY, below, value)
    elif isinstance(value, list) and isinstance(known, list) and field.merge:
        current[key] = _merge_list(field, known, value)
    else:
        current[key] = _plain(value)


def _merge_list(field: schema.Field, current: list[Any], patch: list[Any]) -> list[Any]:
    key = field.merge_key
    if not key:
        return _ordered([*(item for item in patch if item not in current), *current], patch, "")
    if not all(isinstance(item, dict) for item in patch):
        raise BadPatchError("an element of the list is not an object")
    if any(item.get("$patch") == "replace" for item in patch):
        # Elements of the new list are not merged with each other.
        return [item for item in patch if "$patch" not in item]
    item_type = (field.shape.item.type if field.shape.item else None) or _ANY
    merged = list(current)
    for element in patch:
        if element.get("$patch", "delete") != "delete":
            raise BadPatchError(f"unknown directive {element['$patch']!r}")
        if key not in element:
            raise UnprocessablePatchError(f"{element} lacks the merge key {key}")
        same = [place for place, item in enumerate(merged) if item.get(key) == element[key]]
        if "$patch" in element:
            merged = [item for place, item in enumerate(merged) if place not in same]
        elif same:
            merged[same[0]] = strategic(item_type, merged[same[0]], element)
        else:
            merged.insert(0, _plain(element))
    return _ordered(merged, [item for item in patch if "$patch" not in item], key)


def _ordered(items: list[Any], order: Sequence[Any], key: str) -> list[Any]:
    """Sort the items that occur in `order` by that order; other items keep their places."""
    known = [item.get(key) if key else item for item in items]
    wanted = [item.get(key) if key else item for item in order]
    places = [place for place, identity in enumerate(known) if identity in wanted]
    result = list(items)
    for place, source in zip(
        places, sorted(places, key=lambda identity: wanted.index(known[identity])), strict=True
    ):
        result[place] = items[source]
    return result


def _plain(value: Any) -> Any:
    """Return a new value without directives and nulls."""
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, dict) and "$patch" in item)]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if item is not None and key[:1] != "$"}
    return {key: _plain(item) for key, item in kept.items()}


def json_patch(current: Any, operations: Any) -> Any:
    """Apply the operations of a JSON patch (RFC 6902) in order.

    Raises:
        BadPatchError: an operation is malformed, or is `move` or `copy`.
        UnprocessablePatchError: a path does not exist, or a test fails.
    """
    if not isinstance(operations, list):
        raise BadPatchError("a JSON patch must be a list of operations")
    # Wrapped in a list, because an operation may replace the whole document.
    document = [current]
    for operation in operations:
        kind, path = (
            (operation.get("op"), operation.get("path"))
            if isinstance(operation, dict)
            else (None, None)
        )
        is_whole = kind == "remove" or (kind in _WITH_VALUE and "value" in operation)
        if not is_whole or not isinstance(path, str) or path[:1] not in ("", "/"):
            raise BadPatchError(f"invalid or incomplete operation: {operation}")
        steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
        try:
            _carry_out(document, kind, ["0", *steps], copy.deepcopy(operation.get("value")))
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise UnprocessablePatchError(f"operation failed: {operation}") from error
    return document[0] if document else None


def _carry_out(document: list[Any], kind: Any, path: list[str], value: Any) -> None:
    parent: Any = document
    for step in path[:-1]:
        parent = parent[_key(parent, step)]
    key = _key(parent, path[-1])
    if kind == "test":
        # A test treats an absent field as null, as kube-apiserver does.
        actual = parent.get(key) if isinstance(parent, dict) else parent[key]
        if actual != value or type(actual) is not type(value):
            raise KeyError("test failed")
        return
    if kind != "add":
        parent.pop(key)
    if kind == "remove":
        return
    if parent is document:
        document[:] = [value]
    elif isinstance(parent, list):
        place = len(parent) if key == "-" else key
        if place > len(parent):
            raise IndexError(place)
        parent.insert(place, value)
    else:
        parent[key] = value


def _key(parent: Any, step: str) -> Any:
    return int(step) if isinstance(parent, list) and step.isdigit() else step
