"""JSON patches (RFC 6902): a list of operations, carried out in order; pure.

The document is changed in place: hand in a fresh copy. It is passed on inside a list of
one, because an operation may replace the whole of it.
"""

from __future__ import annotations

import copy
from typing import Any

from ccm.sandbox.apiserver.patches import BadPatchError, UnprocessablePatchError

_NEEDS = {
    "add": ("value",), "remove": (), "replace": ("value",), "move": ("from",), "copy": ("from",),
    "test": (),
}  # fmt: skip


def apply(current: Any, operations: Any) -> Any:
    """The document after the operations.

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
        value = _take(document, one["from"])
    elif kind == "remove" or (kind == "replace" and path):
        _take(document, path)
    if kind != "remove":
        _insert(document, path, value)


def _steps(path: Any) -> list[str]:
    """The steps from the list that holds the document to a value of it."""
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise BadPatchError(f"not a JSON pointer: {path!r}")
    return ["0", *(step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:])]


def _find(document: list[Any], path: str, **default: Any) -> Any:
    value: Any = document
    for step in _steps(path):
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


def _parent(document: list[Any], path: str) -> tuple[Any, str]:
    *steps, last = _steps(path)
    value: Any = document
    for step in steps:
        value = value[_place(value, step)]
    return value, last


def _insert(document: list[Any], path: str, value: Any) -> None:
    if not path:
        document[0] = value
        return
    try:
        parent, last = _parent(document, path)
        if isinstance(parent, list):
            place = len(parent) if last == "-" else _place(parent, last, beyond=1)
            parent.insert(place, value)
        else:
            parent[_place(parent, last)] = value
    except (KeyError, IndexError) as error:
        raise UnprocessablePatchError(f"nothing at {path}") from error


def _take(document: list[Any], path: str) -> Any:
    try:
        parent, last = _parent(document, path)
        return parent.pop(_place(parent, last))
    except (KeyError, IndexError) as error:
        raise UnprocessablePatchError(f"nothing at {path}") from error
