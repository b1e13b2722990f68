"""What may be stored: JSON with a kind and a name, of a bounded size, without a secret."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ccm.base import redact
from ccm.persistence.errors import InvalidObject, ObjectTooLarge, SensitiveObjectRefused
from ccm.persistence.interface import GVK

DEEPEST = 100
"""Levels of nesting; deeper ones exhaust the stack of common JSON readers."""

LARGEST = 3 << 19
"""Bytes of canonical JSON: 1.5 MiB, what etcd takes of one object."""

SECRET_NAMES = frozenset({"serviceaccount", "kubeconfig", "credentials", "userdata"})
"""Fields that hold credentials though their names do not end like one of a secret."""

HARMLESS_NAMES = frozenset({"idempotencytoken", "continuetoken", "nextpagetoken"})
"""Fields that hold none though their names end so."""


class Named(NamedTuple):
    """How an object is told from others."""

    kind: GVK
    namespace: str
    name: str


def canonical(value: Any) -> bytes:
    """The same bytes for equal values: sorted keys, no blanks, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def prepared(obj: Mapping[str, Any], *, sensitive: bool = False) -> bytes:
    """Look through an object before anything is written; its canonical bytes.

    Args:
        obj: as the API server writes it.
        sensitive: it is known to be encrypted, and may look like a secret.

    Raises:
        InvalidObject: it lacks a name, or is not JSON.
        ObjectTooLarge: it has more than `LARGEST` bytes.
        SensitiveObjectRefused: it holds a secret.
    """
    obj = dict(obj)
    _check_json(obj)
    kind = named(obj).kind
    try:
        raw = canonical(obj)
    except (ValueError, TypeError):
        raise InvalidObject("the object holds text that is no Unicode") from None
    if len(raw) > LARGEST:
        raise ObjectTooLarge(f"the object has {len(raw)} bytes, at most {LARGEST} are stored")
    if not sensitive:
        _check_harmless(kind, obj)
    return raw


def named(obj: Mapping[str, Any]) -> Named:
    """What an object says it is.

    Raises:
        InvalidObject: not enough.
    """
    if not isinstance(obj, Mapping):
        raise InvalidObject("an object must be a mapping")
    metadata = obj.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    found = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata.name": inner.get("name"),
        "metadata.namespace": inner.get("namespace") or "_",
    }
    for field, value in found.items():
        if not isinstance(value, str) or not value:
            raise InvalidObject(f"the object needs {field}, a text that is not empty")
    kind = GVK.of(str(found["apiVersion"]), str(found["kind"]))
    if kind.group == "core" or not kind.version or "/" in kind.group:
        raise InvalidObject("apiVersion must be a version, or a group and a version")
    namespace = inner.get("namespace") or ""
    return Named(kind, namespace, str(found["metadata.name"]))


def _check_json(obj: Any) -> None:
    """Without recursion: the object may be deeper than the stack."""
    level: list[Any] = [obj]
    for _ in range(DEEPEST + 1):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return
    raise InvalidObject(f"the object is nested deeper than {DEEPEST} levels")


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise InvalidObject("the object has a field whose name is no text")
        yield from value.values()
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidObject("the object holds a number that JSON does not have")
    elif value is not None and not isinstance(value, str | int):
        raise InvalidObject(f"the object holds a {type(value).__name__}, which is not JSON")


def _check_harmless(kind: GVK, obj: Mapping[str, Any]) -> None:
    if (kind.group, kind.kind) == ("", "Secret"):
        raise SensitiveObjectRefused("a Secret goes to the secret store only")
    for path, value in _texts(obj):
        if value and (_is_secret(path[-1]) or redact.words(value, len(value)) != value):
            raise SensitiveObjectRefused(
                f"{'.'.join(path[1:])} holds a credential; refer to a Secret instead"
            )


def _is_secret(name: str) -> bool:
    bare = name.lower().replace("-", "").replace("_", "")
    return bare not in HARMLESS_NAMES and (bare in SECRET_NAMES or redact.is_secret(name))


def _texts(value: Any, path: tuple[str, ...] = ("",)) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each text and the names that lead to it; what stands in `value:` has the name above it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, path if name == "value" else (*path, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, path)
