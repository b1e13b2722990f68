"""The local copy of one kind: objects by key.

Objects are frozen, so they are handed out as they are. Only the informer that owns a
store writes to it; everyone else holds it as a `View`.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)


class View(Protocol[T]):
    """What readers may do with a store."""

    def get(self, key: str) -> T | None:
        """The object with that key (`namespace/name` or `name`), if there is one."""
        ...

    def list(self) -> builtins.list[T]:
        """All objects, in no particular order; a copy the caller may keep."""
        ...

    def keys(self) -> Collection[str]:
        """All keys; a live view, so copy it before awaiting."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...


class Store(Generic[T]):
    """Objects of one kind by key."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """The object with that key, if there is one."""
        return self._objects.get(key)

    def list(self) -> builtins.list[T]:
        """All objects, in no particular order; a copy the caller may keep."""
        return list(self._objects.values())

    def keys(self) -> Collection[str]:
        """All keys; a live view, so copy it before awaiting."""
        return self._objects.keys()

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def put(self, obj: T) -> None:
        """Add or replace an object."""
        self._objects[obj.key] = obj

    def pop(self, key: str) -> T | None:
        """Remove an object; returns it if it was there."""
        return self._objects.pop(key, None)
