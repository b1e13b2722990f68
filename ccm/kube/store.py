"""The local copy of one kind: objects by key, and by whatever an index says.

Objects are frozen, so they are handed out as they are. Only the informer that owns a
store writes to it; everyone else holds it as a `View`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ccm.model.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

Index = Callable[[T], Iterable[str]]
"""The values under which an object shall be found; none leaves it out."""


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

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects an index files under a value.

        Raises:
            KeyError: there is no index of that name.
        """
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...


class Store(Generic[T]):
    """Objects of one kind by key.

    Args:
        indexes: name of each index and its function; more can be added until the end.
    """

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._objects: dict[str, T] = {}
        self._indexes: dict[str, _Filing[T]] = {}
        for name, function in (indexes or {}).items():
            self.add_index(name, function)

    def get(self, key: str) -> T | None:
        """The object with that key, if there is one."""
        return self._objects.get(key)

    def list(self) -> builtins.list[T]:
        """All objects, in no particular order; a copy the caller may keep."""
        return list(self._objects.values())

    def keys(self) -> Collection[str]:
        """All keys; a live view, so copy it before awaiting."""
        return self._objects.keys()

    def by_index(self, name: str, value: str) -> builtins.list[T]:
        """The objects an index files under a value.

        Raises:
            KeyError: there is no index of that name.
        """
        return [self._objects[key] for key in self._indexes[name].keys(value)]

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def add_index(self, name: str, function: Index[T]) -> None:
        """File all objects, present and future, under the values of a function.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._indexes:
            raise ValueError(f"there is an index {name!r} already")
        filing = _Filing(function)
        for key, obj in self._objects.items():
            filing.add(key, obj)
        self._indexes[name] = filing

    def put(self, obj: T) -> T | None:
        """Add or replace an object; returns what was there before."""
        key = obj.key
        old = self._objects.get(key)
        for filing in self._indexes.values():
            if old is not None:
                filing.remove(key, old)
            filing.add(key, obj)
        self._objects[key] = obj
        return old

    def pop(self, key: str) -> T | None:
        """Remove an object; returns it if it was there."""
        old = self._objects.pop(key, None)
        if old is not None:
            for filing in self._indexes.values():
                filing.remove(key, old)
        return old

    def replace(self, items: Iterable[T]) -> None:
        """Make these objects the whole content."""
        wanted = {obj.key: obj for obj in items}
        for key in self._objects.keys() - wanted.keys():
            self.pop(key)
        for obj in wanted.values():
            self.put(obj)


class _Filing(Generic[T]):
    """One index: value to keys, in the order of arrival."""

    def __init__(self, function: Index[T]) -> None:
        self._function = function
        self._keys: dict[str, dict[str, None]] = {}

    def keys(self, value: str) -> Iterable[str]:
        return tuple(self._keys.get(value, ()))

    def add(self, key: str, obj: T) -> None:
        for value in self._function(obj):
            self._keys.setdefault(value, {})[key] = None

    def remove(self, key: str, obj: T) -> None:
        for value in self._function(obj):
            filed = self._keys.get(value)
            if filed is None:
                continue
            filed.pop(key, None)
            if not filed:
                del self._keys[value]
