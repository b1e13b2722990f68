"""Merge patches, strategic merge patches and JSON patches, all pure.

Each function takes the decoded current object and the decoded patch and returns the
patched object. The current object may be changed on the way: hand in a fresh copy.

A strategic merge patch merges lists by the merge keys of the schema and obeys the
directives `$patch` (merge, replace, delete), `$retainKeys`, `$setElementOrder/<list>` and
`$deleteFromPrimitiveList/<list>`. Where elements of the current list share a merge key
(two addresses of one type), the first is the one that is merged, as in Kubernetes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ccm.sandbox.apiserver import schema

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"
_NEEDS = {
    "add": ("value",), "remove": (), "replace": ("value",), "move": ("from",), "copy": ("from",),
    "test": (),
}  # fmt: skip


class BadPatchError(Exception):
    """A patch that is malformed (answered 400)."""


class UnprocessablePatchError(Exception):
    """A well-formed patch that cannot be applied to this object (answered 422)."""


def merge(current: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, everything else replaces."""
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
    """A strategic merge patch of an object of that type.

    Raises:
        BadPatchError: a directive is malformed.
        UnprocessablePatchError: an element of a merged list lacks its merge key.
    """
    return _merge_struct(shape, current, patch)


def _merge_struct(
    shape: schema.Type | None,
    current: dict[str, Any],
    patch: dict[str, Any],
) -> dict[str, Any]:
    patch = dict(patch)
    directive = patch.pop(_DIRECTIVE, None)
    if directive == "replace":
        replaced: dict[str, Any] = _without_directives(patch)
        return replaced
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise BadPatchError(f"Unknown patch type found: {directive}")
    retained = patch.pop(_RETAIN, None)
    if retained is not None:
        _keep_only(current, patch, retained)
    orders = _take_prefixed(patch, _ORDER)
    for name, dropped in _take_prefixed(patch, _DROP).items():
        if isinstance(current.get(name), list):
            current[name] = [item for item in current[name] if item not in dropped]
    for key, value in patch.items():
        field = shape.fields.get(key) if shape else None
        _merge_field(field, current, key, value)
    for name, order in orders.items():
        field = shape.fields.get(name) if shape else None
        if isinstance(current.get(name), list) and field is not None:
            current[name] = _ordered(current[name], order, field.merge_key)
    return current


def _merge_field(
    field: schema.Field | None,
    current: dict[str, Any],
    key: str,
    value: Any,
) -> None:
    known = current.get(key)
    if value is None:
        current.pop(key, None)
    elif isinstance(value, dict):
        shape = field.shape.type if field else None
        current[key] = _merge_struct(shape, known if isinstance(known, dict) else {}, value)
    elif isinstance(value, list) and isinstance(known, list) and field and field.merge:
        current[key] = _merge_list(field, known, value)
    else:
        current[key] = _without_directives(value)


def _merge_list(field: schema.Field, current: list[Any], patch: list[Any]) -> list[Any]:
    if not field.merge_key:
        merged = current + [item for item in patch if item not in current]
        return _interleaved(merged, list(dict.fromkeys(patch)), current, "")
    key = field.merge_key
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        # As it stands: elements of the new list are not merged into each other.
        return [item for item in patch if _DIRECTIVE not in item]
    current, patch = _obey_list_directives(current, patch, key)
    merged = list(current)
    item_type = field.shape.item.type if field.shape.item else None
    for element in patch:
        value = _merge_key(element, key)
        place = _place_of(merged, key, value)
        if place is None:
            merged.append(_without_directives(element))
        else:
            merged[place] = _merge_struct(item_type, merged[place], element)
    return _interleaved(merged, patch, current, key)


def _obey_list_directives(
    current: list[Any], patch: list[Any], key: str
) -> tuple[list[Any], list[Any]]:
    plain = []
    for element in patch:
        if not isinstance(element, dict):
            raise BadPatchError(f"an element of the list is not an object: {element!r}")
        directive = element.get(_DIRECTIVE)
        if directive is None:
            plain.append(element)
        elif directive == "delete":
            value = _merge_key(element, key)
            current = [item for item in current if item.get(key) != value]
        else:
            raise BadPatchError(f"Unknown patch type found: {directive}")
    return current, plain


def _merge_key(element: Any, key: str) -> Any:
    if not isinstance(element, dict) or key not in element:
        raise UnprocessablePatchError(f"map: {element} does not contain declared merge key: {key}")
    return element[key]


def _place_of(items: Sequence[Any], key: str, value: Any) -> int | None:
    for place, item in enumerate(items):
        if (item.get(key) if key else item) == value:
            return place
    return None


def _ordered(items: list[Any], order: Any, key: str) -> list[Any]:
    if not isinstance(order, list):
        raise BadPatchError("the element order is not a list")
    return _interleaved(items, order, items, key)


def _interleaved(
    merged: list[Any], order: Sequence[Any], server: Sequence[Any], key: str
) -> list[Any]:
    """Elements that `order` names in its order; the server's others keep their place.

    One of the server's own goes first only if it stood before the named one.
    """

    def identity(item: Any) -> Any:
        return item.get(key) if key else item

    wanted = [identity(item) for item in order]
    before = [identity(item) for item in server]
    named = sorted(
        (item for item in merged if identity(item) in wanted),
        key=lambda item: wanted.index(identity(item)),
    )
    others = [item for item in merged if identity(item) not in wanted]
    result: list[Any] = []
    while named and others:
        ours, theirs = identity(named[0]), identity(others[0])
        others_first = ours in before and before.index(theirs) < before.index(ours)
        result.append((others if others_first else named).pop(0))
    return result + named + others


def _keep_only(current: dict[str, Any], patch: dict[str, Any], retained: Any) -> None:
    if not isinstance(retained, list) or any(key not in retained for key in _plain_keys(patch)):
        raise BadPatchError("the patch sets a key that $retainKeys does not list")
    for key in [key for key in current if key not in retained]:
        del current[key]


def _plain_keys(patch: dict[str, Any]) -> list[str]:
    return [key for key, value in patch.items() if value is not None and not key.startswith("$")]


def _take_prefixed(patch: dict[str, Any], prefix: str) -> dict[str, Any]:
    found = [key for key in patch if key.startswith(prefix)]
    return {key.removeprefix(prefix): patch.pop(key) for key in found}


def _without_directives(value: Any) -> Any:
    if isinstance(value, list):
        return [
            _without_directives(item)
            for item in value
            if not (isinstance(item, dict) and _DIRECTIVE in item)
        ]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_directives(item)
        for key, item in value.items()
        if item is not None
        and key not in (_DIRECTIVE, _RETAIN)
        and not key.startswith((_ORDER, _DROP))
    }


def json_patch(current: Any, operations: Any) -> Any:
    """The document after the operations of a JSON patch (RFC 6902), in their order.

    It is passed on inside a list of one, because an operation may replace the whole of it.

    Raises:
        BadPatchError: an operation is malformed.
        UnprocessablePatchError: one names something that is not there, or a test fails.
    """
    if not isinstance(operations, list):
        raise BadPatchError("a JSON patch is a list of operations")
    document = [current]
    for one in operations:
        kind = one.get("op") if isinstance(one, dict) else None
        if kind not in _NEEDS or not isinstance(one.get("path"), str):
            raise BadPatchError(f"not an operation: {one}")
        if any(key not in one for key in _NEEDS[kind]):
            raise BadPatchError(f"missing {_NEEDS[kind][0]}: {one}")
        _carry_out(document, kind, one)
    return document[0]


def _carry_out(document: list[Any], kind: str, one: dict[str, Any]) -> None:
    path, value = one["path"], copy.deepcopy(one.get("value"))
    if kind == "test":
        # What is absent counts as null here, as in the real server.
        found = _find(document, path, missing=None)
        if found != value or type(found) is not type(value):
            raise UnprocessablePatchError(f"testing value {path} failed")
        return
    if kind == "copy":
        value = copy.deepcopy(_find(document, one["from"]))
    elif kind == "move":
        value = _take_out(document, one["from"])
    elif kind == "remove" or (kind == "replace" and path):
        _take_out(document, path)
    if kind != "remove":
        _put(document, path, value)


def _pointer(path: Any) -> list[str]:
    """The steps from the list that holds the document to a value of it."""
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise BadPatchError(f"not a JSON pointer: {path!r}")
    return ["0", *(step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:])]


def _find(document: list[Any], path: str, **default: Any) -> Any:
    value: Any = document
    for step in _pointer(path):
        try:
            value = value[_place(value, step)]
        except (KeyError, IndexError, TypeError) as error:
            if default:
                return default["missing"]
            raise UnprocessablePatchError(f"nothing at {path}") from error
    return value


def _place(parent: Any, step: str, *, beyond: int = 0) -> Any:
    if isinstance(parent, dict):
        return step
    if not isinstance(parent, list) or not step.isdigit() or int(step) >= len(parent) + beyond:
        raise IndexError(step)
    return int(step)


def _parent_of(document: list[Any], path: str) -> tuple[Any, str]:
    *steps, last = _pointer(path)
    value: Any = document
    for step in steps:
        value = value[_place(value, step)]
    return value, last


def _put(document: list[Any], path: str, value: Any) -> None:
    if not path:
        document[0] = value
        return
    try:
        parent, last = _parent_of(document, path)
        if isinstance(parent, list):
            place = len(parent) if last == "-" else _place(parent, last, beyond=1)
            parent.insert(place, value)
        else:
            parent[_place(parent, last)] = value
    except (KeyError, IndexError) as error:
        raise UnprocessablePatchError(f"nothing at {path}") from error


def _take_out(document: list[Any], path: str) -> Any:
    try:
        parent, last = _parent_of(document, path)
        return parent.pop(_place(parent, last))
    except (KeyError, IndexError) as error:
        raise UnprocessablePatchError(f"nothing at {path}") from error
