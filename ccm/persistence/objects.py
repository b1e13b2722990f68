"""Objects that may be stored, and their names.

An object is JSON with a kind and a name, of a bounded size, without a secret.

In names lower-case letters, digits, dot and dash stay; every other byte becomes `%XX`, so that no
name is special to a file system, and none differs from another only in case. A key never holds `_`
but for the cluster scope, which therefore meets no namespace.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ccm.base import redact
from ccm.persistence.errors import InvalidObject, ObjectTooLarge, SensitiveObjectRefused
from ccm.persistence.interface import GVK, ObjectKey

DEEPEST = 100
"""Levels of nesting; deeper ones exhaust the stack of common JSON readers."""

LARGEST = 3 << 19
"""Bytes of canonical JSON: 1.5 MiB, what etcd takes of one object."""

SECRET_NAMES = frozenset({"serviceaccount", "kubeconfig", "credentials", "userdata"})
"""Fields that hold credentials though their names do not end like one of a secret."""

HARMLESS_NAMES = frozenset({"idempotencytoken", "continuetoken", "nextpagetoken"})
"""Fields that hold none though their names end so."""


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
    kind, _, _ = named(obj)
    try:
        raw = canonical(obj)
    except (ValueError, TypeError):
        raise InvalidObject("the object holds text that is no Unicode") from None
    if len(raw) > LARGEST:
        raise ObjectTooLarge(f"the object has {len(raw)} bytes, at most {LARGEST} are stored")
    if not sensitive:
        _check_harmless(kind, obj)
    return raw


def named(obj: Mapping[str, Any]) -> tuple[GVK, str, str]:
    """What an object says it is: kind, namespace and name.

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
    return kind, namespace, str(found["metadata.name"])


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


LONGEST = 200
"""Characters of a segment; a longer one is replaced by its digest. File systems take 255."""

CLUSTER_SCOPE = "_"
CORE = "core"
FORMAT = "v1"
MARKER = ".ccm-instance.json"
SUFFIX = ".json"

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789.-")
_SEGMENT = r"(?:~[0-9a-f]{64}|(?:[a-z0-9-]|%[0-9A-F]{2})(?:[a-z0-9.-]|%[0-9A-F]{2})*)"
_KEY = re.compile(rf"({CLUSTER_SCOPE}|{_SEGMENT})/({_SEGMENT})")
INSTANCE = re.compile(r"[a-z][a-z0-9]*-[0-9a-f]{16}")
"""What the name of an instance looks like."""


class Place(NamedTuple):
    """Where an object belongs."""

    kind: GVK
    key: ObjectKey

    @property
    def path(self) -> str:
        """Below the cluster's own folder."""
        return f"{folder(self.kind)}/{self.key}{SUFFIX}"


def encode(text: str) -> str:
    """One segment of a key or a path."""
    raw = text.encode()
    found = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if found.startswith("."):
        found = "%2E" + found[1:]
    return found if len(found) <= LONGEST else f"~{hashlib.sha256(raw).hexdigest()}"


def key_of(namespace: str, name: str) -> ObjectKey:
    """The key of an object; an empty namespace is the cluster."""
    return ObjectKey(f"{encode(namespace) if namespace else CLUSTER_SCOPE}/{encode(name)}")


def place_of(obj: Mapping[str, Any]) -> Place:
    """Where an object belongs.

    Raises:
        InvalidObject: it does not say enough.
    """
    kind, namespace, name = named(obj)
    try:
        return Place(kind, key_of(namespace, name))
    except UnicodeEncodeError:
        raise InvalidObject("the object's name is no Unicode") from None


def checked(key: str) -> ObjectKey:
    """A key that may be looked for.

    Raises:
        InvalidObject: it was not made by `key_of`.
    """
    if not (found := _KEY.fullmatch(key)):
        raise InvalidObject("that is no key: keys come from put_object")
    if any(len(part) > LONGEST for part in found.groups()):
        raise InvalidObject("that is no key: it is too long")
    return ObjectKey(key)


def folder(kind: GVK) -> str:
    """Of all objects of a kind, below the cluster's own."""
    parts = (kind.group or CORE, kind.version, kind.kind)
    return "/".join((FORMAT, *map(encode, parts)))


def instance_name(kind: str, identity: Mapping[str, Any]) -> str:
    """The same for the same storage, in every process and on every host.

    Args:
        kind: the type of storage: lower-case letters and digits.
        identity: what makes it that storage: never a credential, a time limit or a TLS setting.
    """
    return f"{kind}-{hashlib.sha256(canonical(identity)).hexdigest()[:16]}"
