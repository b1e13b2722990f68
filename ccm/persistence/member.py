"""One instance among several, and the backend that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ccm.base.log import logger
from ccm.persistence.errors import BackendDead, Unreachable
from ccm.persistence.interface import (
    GVK,
    METHODS,
    STAMPED_METHODS,
    MachineId,
    Stamp,
    Stamped,
    require,
)
from ccm.persistence.keys import Place, place_of
from ccm.persistence.repairs import Repairs

NEVER = Stamp(0, 0)
"""Of a copy that is the only one."""


class Backend:
    """A provider that can be made anew: one that could not be initialized stays dead.

    Args:
        name: of the backend.
        make: makes a provider; asks nobody.
        methods: that it has to have.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], methods: Sequence[str] = METHODS
    ) -> None:
        self.name = name
        self.provider = make()
        require(name, self.provider, methods)
        self.instances: Sequence[str] = tuple(self.provider.instances())
        if len(set(self.instances)) != len(self.instances):
            raise BackendDead(f"persistence backend {name!r} has two instances of one name")
        self._make = make
        self.is_open = False

    def check(self, *, is_alone: bool) -> None:
        """See that it can be one of several, if it is.

        Raises:
            BackendDead: it lacks methods.
        """
        if not is_alone:
            require(self.name, self.provider, STAMPED_METHODS)

    async def open(self, machine_id: MachineId) -> None:
        """Open it unless it is open, or cannot be reached now.

        Raises:
            BackendDead: a person has to act.
        """
        if self.is_open:
            return
        try:
            await self.provider.initialize(machine_id)
            self.is_open = True
        except Unreachable as error:
            logger("persistence").warning("persistence backend is down", error=str(error))
            await self.provider.close()
            self.provider = self._make()

    async def close(self) -> None:
        """Close it."""
        await self.provider.close()


class Member:
    """One instance.

    Args:
        backend: that it belongs to.
        name: its own.
        limit: of what it may miss.
        is_alone: there is no other, and nothing to compare.
    """

    def __init__(self, backend: Backend, name: str, limit: int, *, is_alone: bool) -> None:
        self.name = name
        self._is_alone = is_alone
        self.repairs = Repairs(limit)
        self._backend = backend

    async def latency(self) -> float | None:
        """Mean time of a write in seconds; None: it is down."""
        status = await self._backend.provider.instance_status(self.name)
        return float(status.mean_persist_latency) if status.status else None

    async def is_up(self) -> bool:
        """Whether it works."""
        return await self.latency() is not None

    def missed(self, place: Place) -> None:
        """It does not have the newest copy."""
        self.repairs.add(place)

    async def write(self, place: Place, copy: Stamped) -> None:
        """Store a copy, or the mark of a deletion."""
        provider = self._backend.provider
        if not self._is_alone:
            await provider.write_stamped(self.name, place.kind, place.key, copy)
        elif copy.obj is None:
            await self.remove(place)
        else:
            await provider.put_object(self.name, copy.obj)

    async def remove(self, place: Place) -> None:
        """Remove what is there."""
        await self._backend.provider.delete_object(self.name, place.kind, place.key)

    async def read(self, place: Place) -> Stamped | None:
        """The copy, or the mark of a deletion."""
        provider = self._backend.provider
        if self._is_alone:
            obj = await provider.get_object(self.name, place.kind, place.key)
            return None if obj is None else Stamped(obj, NEVER)
        found: Stamped | None = await provider.read_stamped(self.name, place.kind, place.key)
        return found

    async def read_all(self, kind: GVK) -> dict[Place, Stamped]:
        """All copies and marks of a kind."""
        provider = self._backend.provider
        if self._is_alone:
            objects = await provider.get_all_objects(self.name, kind)
            return {place_of(obj): Stamped(obj, NEVER) for obj in objects}
        return {
            Place(kind, key): copy async for key, copy in provider.iter_stamped(self.name, kind)
        }
