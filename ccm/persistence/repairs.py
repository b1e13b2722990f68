"""Which copies an instance still has to get: bounded, in memory, oldest first."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.persistence.interface import GVK
from ccm.persistence.keys import Place

LIMIT = 10_000
"""Copies that are remembered for one instance; beyond them all of it is compared again."""


class Repairs:
    """Of one instance. At first nobody knows what it missed before.

    Args:
        limit: of what is remembered.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._places: dict[Place, None] = {}
        self._compared: set[GVK] = set()

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    def __len__(self) -> int:
        return len(self._places)

    def knows(self, kind: GVK) -> bool:
        """Whether what it missed of that kind is remembered."""
        return kind in self._compared

    def compared(self, kind: GVK) -> None:
        """From now on it is."""
        self._compared.add(kind)

    def add(self, place: Place) -> None:
        """It missed something there."""
        self._places[place] = None
        if len(self._places) > self._limit:
            self._places.clear()
            self.forget()

    def forget(self) -> None:
        """Nobody knows any more; all of it has to be compared."""
        self._compared.clear()

    def done(self, place: Place) -> None:
        """It has it now."""
        self._places.pop(place, None)

    def pending(self) -> Sequence[Place]:
        """What to see to, as it is now."""
        return tuple(self._places)
