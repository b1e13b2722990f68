"""Validation and names of stored objects.

An object is JSON with a kind and a name, of limited size, and without secrets.

Encoded names keep lower-case letters, digits, dot and dash; every other byte becomes `%XX`. So no
encoded name is special to a file system, and no two differ only in case. An unencoded `_` in a key
stands for the cluster scope; a `_` in the name of a namespace is always encoded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from ccm.base import redact
from ccm.persistence.errors import InvalidObject, ObjectTooLarge, SensitiveObjectRefused
from ccm.persistence.interface import ABSENT, GVK, Expected, ObjectKey

MAX_DEPTH = 100
"""Maximum nesting; deeper objects exhaust the stack of common JSON parsers."""

MAX_BYTES = 3 << 19
"""Maximum bytes of canonical JSON: 1.5 MiB, the limit of etcd for one object."""

MAX_ENVELOPE = 2 << 20
"""Maximum bytes of an envelope in a store without a limit of its own; more than an object of
`MAX_BYTES` needs."""

SECRET_NAMES = frozenset({"serviceaccount", "kubeconfig", "credentials", "userdata"})
"""Field names of credentials that `redact.is_secret_name` does not recognise."""

SELF_REDACTED = "journal.ccm"
"""Group of objects that are not searched for secrets: the journal redacts its texts, and keeps the
names of resources even if a secret occurs in them."""

COMPRESSED = "backup.ccm"
"""Group of objects that are not searched for secrets, because their content is compressed."""

NON_SECRET_NAMES = frozenset({"idempotencytoken", "continuetoken", "nextpagetoken"})
"""Field names without credentials that `redact.is_secret_name` takes for secrets."""


def to_canonical_json(value: Any) -> bytes:
    """Encode a value as canonical JSON: sorted keys, no white space, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def validate(obj: Mapping[str, Any], *, sensitive: bool = False) -> bytes:
    """Validate an object before a write, and return its canonical bytes.

    Args:
        obj: the object as returned by the API server.
        sensitive: whether the object is encrypted; it is then not searched for secrets.

    Raises:
        InvalidObject: the object lacks kind or name, is nested too deeply, or is not JSON.
        ObjectTooLarge: the object has more than `MAX_BYTES` bytes.
        SensitiveObjectRefused: the object contains a secret.
    """
    kind, _, _ = identify(obj)
    obj, is_page = dict(obj), kind.group == SELF_REDACTED
    if not is_page:
        _check_json(obj)
    try:
        # Without floats, the bytes are the same. A page is written often, and comes from a Struct.
        raw = msgspec.json.encode(obj, order="sorted") if is_page else to_canonical_json(obj)
    except (ValueError, TypeError):
        raise InvalidObject("the object contains text that is not valid Unicode") from None
    if len(raw) > MAX_BYTES:
        raise ObjectTooLarge(f"the object has {len(raw)} bytes; the limit is {MAX_BYTES}")
    if not (sensitive or kind.group in (SELF_REDACTED, COMPRESSED)):
        _check_no_secrets(kind, obj)
    return raw


def identify(obj: Mapping[str, Any]) -> tuple[GVK, str, str]:
    """Return kind, namespace and name of an object.

    Raises:
        InvalidObject: a field is missing or invalid.
    """
    if not isinstance(obj, Mapping):
        raise InvalidObject("an object must be a mapping")
    metadata = obj.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    fields = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "metadata.name": inner.get("name"),
        "metadata.namespace": inner.get("namespace") or "_",
    }
    for field, value in fields.items():
        if not isinstance(value, str) or not value:
            raise InvalidObject(f"the object needs {field}, a non-empty string")
    kind = check_kind(GVK.of(str(fields["apiVersion"]), str(fields["kind"])))
    if kind.group == "core" or not kind.version or "/" in kind.group:
        raise InvalidObject("apiVersion must be VERSION or GROUP/VERSION")
    namespace = inner.get("namespace") or ""
    if not (_is_text(namespace) and _is_text(inner["name"])):
        raise InvalidObject(f"name and namespace of an object {_TEXT_RULE}")
    return kind, namespace, str(fields["metadata.name"])


_TEXT_RULE = "must be text without NUL and surrogates"
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _is_text(value: Any) -> bool:
    """Return whether every store can keep a value: databases refuse NUL and surrogates."""
    return isinstance(value, str) and not _NO_TEXT.search(value)


def check_kind(kind: GVK) -> GVK:
    """Validate a kind. Raises InvalidObject."""
    if not all(map(_is_text, kind)):
        raise InvalidObject(f"group, version and kind {_TEXT_RULE}")
    return kind


def check_version(expect: Expected) -> None:
    """Validate the precondition of a write. Raises InvalidObject."""
    if expect is not None and expect is not ABSENT and not _is_text(expect):
        raise InvalidObject(f"the expected version {_TEXT_RULE}")


def _check_json(obj: Any) -> None:
    """Check types and nesting, without recursion: the object may be deeper than the stack."""
    level: list[Any] = [obj]
    for _ in range(MAX_DEPTH + 1):
        nested = [value for value in level if not isinstance(value, _PLAIN_TYPES)]
        level = [inner for value in nested for inner in _children(value)]
        if not level:
            return
    raise InvalidObject(f"the object is nested deeper than {MAX_DEPTH} levels")


_PLAIN_TYPES = (str, int, NoneType)


def _children(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        if not all(issubclass(kind, str) for kind in set(map(type, value))):
            raise InvalidObject("the object has a field name that is not a string")
        return value.values()
    if isinstance(value, list):
        return value
    if not isinstance(value, float):
        raise InvalidObject(f"the object contains a {type(value).__name__}, which is not JSON")
    if not math.isfinite(value):
        raise InvalidObject("the object contains a number that JSON does not support")
    return ()


def _check_no_secrets(kind: GVK, obj: Mapping[str, Any]) -> None:
    if (kind.group, kind.kind) == ("", "Secret"):
        raise SensitiveObjectRefused("a Secret can only be stored in the secret store")
    for path, value in _strings(obj):
        if _is_credential(path, value):
            raise SensitiveObjectRefused(
                f"{'.'.join(path[1:])} contains a credential; refer to a Secret instead"
            )


def without_credentials(value: Any, path: tuple[str, ...] = ("",)) -> Any:
    """Return a copy of an object in which `redact.MASK` replaces each credential."""
    if isinstance(value, str):
        return redact.MASK if _is_credential(path, value) else value
    if isinstance(value, Mapping):
        return {
            name: without_credentials(inner, path if name == "value" else (*path, name))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_credentials(inner, path) for inner in value]
    return value


def masked_paths(obj: Mapping[str, Any]) -> list[str]:
    """Return the paths of the credentials that `without_credentials` has replaced."""
    return [".".join(path[1:]) for path, value in _strings(obj) if value == redact.MASK]


def _is_credential(path: tuple[str, ...], value: str) -> bool:
    if value in ("", redact.MASK):
        return False
    return _is_secret(path[-1]) or redact.mask_text(value, len(value)) != value


def _is_secret(name: str) -> bool:
    bare = name.lower().replace("-", "").replace("_", "")
    return bare not in NON_SECRET_NAMES and (bare in SECRET_NAMES or redact.is_secret_name(name))


def _strings(value: Any, path: tuple[str, ...] = ("",)) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each string with its path.

    A field `value` has the path of its parent, and an item of a list the path of the list.
    """
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(inner, path if name == "value" else (*path, name))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, path)


MAX_SEGMENT = 200
"""Maximum characters of a segment (file systems allow 255); a longer one becomes its digest."""

CLUSTER_SCOPE = "_"
CORE = "core"
FORMAT = "v1"
MARKER = ".ccm-instance.json"
SUFFIX = ".json"

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789.-")
_SEGMENT = r"(?:~[0-9a-f]{64}|(?:[a-z0-9-]|%[0-9A-F]{2})(?:[a-z0-9.-]|%[0-9A-F]{2})*)"
_KEY = re.compile(rf"({CLUSTER_SCOPE}|{_SEGMENT})/({_SEGMENT})")
INSTANCE_NAME = re.compile(r"[a-z][a-z0-9]*-[0-9a-f]{16}")
"""Format of instance names."""


class StoragePlace(NamedTuple):
    """Place of an object in storage: its kind and key."""

    kind: GVK
    key: ObjectKey

    @property
    def path(self) -> str:
        """File path relative to the cluster's folder."""
        return f"{folder_of(self.kind)}/{self.key}{SUFFIX}"


def encode(text: str) -> str:
    """Encode a name as a segment of a key or path."""
    raw = text.encode()
    encoded = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    return encoded if len(encoded) <= MAX_SEGMENT else f"~{hashlib.sha256(raw).hexdigest()}"


def key_of(namespace: str, name: str) -> ObjectKey:
    """Build the key of an object; an empty namespace means the cluster scope."""
    return ObjectKey(f"{encode(namespace) if namespace else CLUSTER_SCOPE}/{encode(name)}")


def place_of(obj: Mapping[str, Any]) -> StoragePlace:
    """Return the place of an object.

    Raises:
        InvalidObject: kind or name is missing or invalid.
    """
    kind, namespace, name = identify(obj)
    return StoragePlace(kind, key_of(namespace, name))


def check_key(key: str) -> ObjectKey:
    """Validate a key.

    Raises:
        InvalidObject: the key was not built by `key_of`.
    """
    if not (match := _KEY.fullmatch(key)):
        raise InvalidObject("invalid key; use a key returned by put_object")
    if any(len(part) > MAX_SEGMENT for part in match.groups()):
        raise InvalidObject("invalid key: too long")
    return ObjectKey(key)


def check_place(kind: GVK, key: str) -> StoragePlace:
    """Return a place, or raise InvalidObject if its kind or key is invalid."""
    return StoragePlace(check_kind(kind), check_key(key))


def folder_of(kind: GVK) -> str:
    """Return the folder of a kind, relative to the cluster's folder."""
    parts = (kind.group or CORE, kind.version, kind.kind)
    return "/".join((FORMAT, *map(encode, parts)))


def instance_name(kind: str, identity: Mapping[str, Any]) -> str:
    """Derive the name of an instance; every process on every host derives the same name.

    Args:
        kind: type of storage: lower-case letters and digits.
        identity: settings that identify the storage; no credentials, time-outs or TLS settings.
    """
    return f"{kind}-{hashlib.sha256(to_canonical_json(identity)).hexdigest()[:16]}"
