"""The patch formats: JSON patch, merge patch, strategic merge patch; all of them pure.

Each function takes the decoded current object and the decoded patch and returns the
patched object. The current object may be changed on the way: hand in a fresh copy.

A strategic merge patch merges lists by the merge keys of the schema and obeys the
directives `$patch` (merge, replace, delete), `$retainKeys`, `$setElementOrder/<list>` and
`$deleteFromPrimitiveList/<list>`. Where elements of the current list share a merge key
(two addresses of one type), the first is the one that is merged, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ccm.sandbox.apiserver import schema

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"


class BadPatchError(Exception):
    """A patch that is malformed (answered 400)."""


class UnprocessablePatchError(Exception):
    """A well-formed patch that cannot be applied to this object (answered 422)."""


class FailedTestError(UnprocessablePatchError):
    """A `test` operation of a JSON patch did not hold."""


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


def json_patch(current: Any, operations: Any) -> Any:
    """RFC 6902: the operations, in order.

    Raises:
        BadPatchError: an operation is malformed.
        UnprocessablePatchError: an operation names something that is not there.
        FailedTestError: a test does not hold.
    """
    if not isinstance(operations, list):
        raise BadPatchError("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    document: list[Any] = [current]
    for operation in operations:
        if not isinstance(operation, dict) or operation.get("op") not in _OPERATIONS:
            raise BadPatchError(f"Unexpected kind: {operation}")
        if not isinstance(operation.get("path"), str):
            raise BadPatchError("missing path")
        _OPERATIONS[operation["op"]](document, operation)
    return document[0]


def strategic(
    types: schema.Schema, name: str, current: dict[str, Any], patch: dict[str, Any]
) -> dict[str, Any]:
    """A strategic merge patch of an object of the type `name`.

    Raises:
        BadPatchError: a directive is malformed.
        UnprocessablePatchError: an element of a merged list lacks its merge key.
    """
    return _merge_struct(types, types[name], current, patch)


# --- strategic merge -------------------------------------------------------------


def _merge_struct(
    types: schema.Schema,
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
        _merge_field(types, field, current, key, value)
    for name, order in orders.items():
        field = shape.fields.get(name) if shape else None
        if isinstance(current.get(name), list) and field is not None:
            current[name] = _ordered(current[name], order, field.merge_key)
    return current


def _merge_field(
    types: schema.Schema,
    field: schema.Field | None,
    current: dict[str, Any],
    key: str,
    value: Any,
) -> None:
    known = current.get(key)
    if value is None:
        current.pop(key, None)
    elif isinstance(value, dict):
        shape = types[field.shape.ref] if field and field.shape.ref else None
        current[key] = _merge_struct(types, shape, known if isinstance(known, dict) else {}, value)
    elif isinstance(value, list) and isinstance(known, list) and field and field.merge:
        current[key] = _merge_list(types, field, known, value)
    else:
        current[key] = _without_directives(value)


def _merge_list(
    types: schema.Schema, field: schema.Field, current: list[Any], patch: list[Any]
) -> list[Any]:
    if not field.merge_key:
        merged = current + [item for item in patch if item not in current]
        return _interleaved(merged, list(dict.fromkeys(patch)), current, "")
    key = field.merge_key
    current, patch = _obey_list_directives(current, patch, key)
    merged = list(current)
    item_type = types[field.shape.item.ref] if field.shape.item else None
    for element in patch:
        value = _merge_key(element, key)
        place = _place_of(merged, key, value)
        if place is None:
            merged.append(_without_directives(element))
        else:
            merged[place] = _merge_struct(types, item_type, merged[place], element)
    return _interleaved(merged, patch, current, key)


def _obey_list_directives(
    current: list[Any], patch: list[Any], key: str
) -> tuple[list[Any], list[Any]]:
    plain = []
    replaced = False
    for element in patch:
        if not isinstance(element, dict):
            raise BadPatchError(f"an element of the list is not an object: {element!r}")
        directive = element.get(_DIRECTIVE)
        if directive is None:
            plain.append(element)
        elif directive == "replace":
            replaced = True
        elif directive == "delete":
            value = _merge_key(element, key)
            current = [item for item in current if item.get(key) != value]
        else:
            raise BadPatchError(f"Unknown patch type found: {directive}")
    return ([], plain) if replaced else (current, plain)


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


# --- JSON patch ------------------------------------------------------------------

_MISSING = object()


def _add(document: list[Any], operation: dict[str, Any]) -> None:
    _insert(document, operation["path"], _value(operation))


def _remove(document: list[Any], operation: dict[str, Any]) -> None:
    _take(document, operation["path"])


def _replace(document: list[Any], operation: dict[str, Any]) -> None:
    path = operation["path"]
    value = _value(operation)
    if path == "":
        document[0] = value
        return
    parent, last = _parent(document, path)
    if isinstance(parent, list):
        parent[_index(parent, last, path)] = value
        return
    if last not in parent:
        raise UnprocessablePatchError(
            f'replace operation does not apply: doc is missing key: "{path}": missing value'
        )
    parent[last] = value


def _move(document: list[Any], operation: dict[str, Any]) -> None:
    _insert(document, operation["path"], _take(document, _source(operation)))


def _copy(document: list[Any], operation: dict[str, Any]) -> None:
    value = _find(document, _source(operation))
    if value is _MISSING:
        raise UnprocessablePatchError(f'copy operation does not apply: "{operation["from"]}"')
    _insert(document, operation["path"], _deep_copy(value))


def _test(document: list[Any], operation: dict[str, Any]) -> None:
    found = _find(document, operation["path"])
    wanted = operation.get("value")
    if (None if found is _MISSING else found) != wanted or type(found) is not type(wanted):
        if found is _MISSING and wanted is None:
            return
        raise FailedTestError(f"testing value {operation['path']} failed: test failed")


_OPERATIONS: dict[str, Callable[[list[Any], dict[str, Any]], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation:
        raise BadPatchError("missing value")
    return _deep_copy(operation["value"])


def _source(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise BadPatchError("missing from")
    return source


def _steps(path: str) -> list[str]:
    if not path.startswith("/"):
        raise BadPatchError(f"not a JSON pointer: {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _parent(document: list[Any], path: str) -> tuple[Any, str]:
    *steps, last = _steps(path)
    value = document[0]
    for step in steps:
        value = _step(value, step)
        if not isinstance(value, dict | list):
            raise UnprocessablePatchError(
                f'operation does not apply: doc is missing path: "{path}": missing value'
            )
    return value, last


def _step(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list) and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    return _MISSING


def _find(document: list[Any], path: str) -> Any:
    value = document[0]
    for step in _steps(path) if path else ():
        value = _step(value, step)
    return value


def _index(items: list[Any], step: str, path: str) -> int:
    if not step.isdigit() or int(step) >= len(items):
        raise UnprocessablePatchError(
            f'operation does not apply: doc is missing index: "{path}": missing value'
        )
    return int(step)


def _insert(document: list[Any], path: str, value: Any) -> None:
    if path == "":
        document[0] = value
        return
    parent, last = _parent(document, path)
    if isinstance(parent, dict):
        parent[last] = value
    elif last == "-":
        parent.append(value)
    elif last.isdigit() and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise UnprocessablePatchError(
            f'add operation does not apply: doc is missing path: "{path}": missing value'
        )


def _take(document: list[Any], path: str) -> Any:
    parent, last = _parent(document, path)
    if isinstance(parent, list):
        return parent.pop(_index(parent, last, path))
    if last not in parent:
        raise UnprocessablePatchError(
            f"remove operation does not apply: doc is missing path: "
            f"Unable to remove nonexistent key: {last}: missing value"
        )
    return parent.pop(last)


def _deep_copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_deep_copy(item) for item in value]
    return value
