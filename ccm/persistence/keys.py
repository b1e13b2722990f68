"""Names: how an object's become a key, a path, a name that no two share.

Lower-case letters, digits, dot and dash stay; every other byte becomes `%XX`, so that no name is
special to a file system, and none differs from another only in case. A key never holds `_` but
for the cluster scope, which therefore meets no namespace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ccm.persistence.errors import InvalidObject
from ccm.persistence.interface import GVK, ObjectKey
from ccm.persistence.objects import canonical, named

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
