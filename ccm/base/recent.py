"""What was noted lately, by key; what was noted longest ago makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST_KEYS = 10_000
"""Keys that are remembered: more than a large cluster has nodes, or Services with balancers."""


class Recent(Generic[K, V]):
    """One value for each of the keys that were noted last.

    Args:
        most: how many keys.
        dropped: told of each value that made room.
    """

    def __init__(
        self, most: int = MOST_KEYS, *, dropped: Callable[[V], object] = lambda _value: None
    ) -> None:
        self._most = most
        self._dropped = dropped
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._values)

    def of(self, key: K) -> V | None:
        """What was noted last; None: nothing, or too long ago."""
        return self._values.get(key)

    def note(self, key: K, value: V) -> None:
        """Remember this value, in place of the one before."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Make room; whether there was anything to drop."""
        if not self._values:
            return False
        self._dropped(self._values.popitem(last=False)[1])
        return True
