"""JSON patches (RFC 6902): a list of operations, carried out in order; pure.

The document is changed in place: hand in a fresh copy. It is passed on inside a list of
one, because an operation may replace the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ccm.sandbox.apiserver.patches import BadPatchError, UnprocessablePatchError

_MISSING = object()


class FailedTestError(UnprocessablePatchError):
    """A `test` operation of a JSON patch did not hold."""


def apply(current: Any, operations: Any) -> Any:
    """The document after the operations.

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
