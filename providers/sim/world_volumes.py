"""The simulated cloud's volumes: made on their own, attached when an instance is ordered. No I/O.

A volume is attached to an instance as long as that is there; it outlives it, and has to be deleted
by whoever made it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from . import world


class NewVolume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order; names need not be unique."""

    name: str
    size_gib: int
    labels: dict[str, str] = {}


class Volume(NewVolume, frozen=True, kw_only=True):
    """One volume as the cloud shows it; `instance` is the ID of the one that has it, or empty."""

    id: str
    instance: str = ""


class Volumes:
    """All volumes of the simulated cloud.

    Args:
        rng: draws IDs.
        is_there: whether an instance of that ID is more than a memory.
    """

    def __init__(self, rng: random.Random, is_there: Callable[[str], bool]) -> None:
        self.revision = 0
        """Counts the writes."""
        self._rng = rng
        self._is_there = is_there
        self._by_id: dict[str, Volume] = {}

    def create(self, order: NewVolume) -> Volume:
        """Order a volume.

        Raises:
            WorldError: `invalid` without a name or a size.
        """
        if not order.name or order.size_gib < 1:
            raise world.WorldError("invalid", "name and size_gib: must not be empty")
        made = Volume(id=f"v-{self._rng.getrandbits(48):012x}", **msgspec.structs.asdict(order))
        self._put(made)
        return made

    def put_all(self, given: Sequence[Volume]) -> None:
        """Place volumes as they are: a saved state."""
        self._by_id |= {one.id: one for one in given}
        self.revision += 1

    def get(self, volume_id: str) -> Volume:
        """One volume.

        Raises:
            WorldError: `not_found`.
        """
        found = self._by_id.get(volume_id)
        if found is None:
            raise world.WorldError("not_found", f"no volume with ID {volume_id}")
        if found.instance and not self._is_there(found.instance):
            found = msgspec.structs.replace(found, instance="")
        return found

    def list(self, *, label: tuple[str, str] | None = None) -> list[Volume]:
        """All in order of creation, or those with one label."""
        found = [self.get(one) for one in self._by_id]
        return [one for one in found if label is None or one.labels.get(label[0]) == label[1]]

    def check_free(self, volume_ids: Sequence[str]) -> None:
        """Refuse what cannot be attached.

        Raises:
            WorldError: `not_found`, or `conflict` for one that is attached.
        """
        for volume_id in volume_ids:
            if other := self.get(volume_id).instance:
                raise world.WorldError("conflict", f"volume {volume_id} is attached to {other}")

    def attach(self, volume_ids: Sequence[str], instance_id: str) -> None:
        """Give free volumes to an instance."""
        for volume_id in volume_ids:
            self._put(msgspec.structs.replace(self.get(volume_id), instance=instance_id))

    def delete(self, volume_id: str) -> None:
        """Delete a volume.

        Raises:
            WorldError: `not_found`, or `busy` while it is attached.
        """
        if other := self.get(volume_id).instance:
            raise world.WorldError("busy", f"volume {volume_id} is attached to {other}")
        del self._by_id[volume_id]
        self.revision += 1

    def _put(self, volume: Volume) -> None:
        self._by_id[volume.id] = volume
        self.revision += 1
