"""Orders of instances: how many there may be, and which order is one that came before. No I/O."""

from __future__ import annotations

import base64

import msgspec

from . import world, world_volumes


class Order(world.NewInstance, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance as a customer orders it.

    An order with the `token` of an earlier one is that one, as long as its instance is there: a
    customer who got no answer may repeat it. `user_data` is Base64; the instance boots with it.
    `volumes` are IDs of those that it gets.
    """

    token: str = ""
    user_data: str = ""
    volumes: tuple[str, ...] = ()


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance was booted with, in Base64."""

    user_data: str


class Orders:
    """The desk where instances are ordered; what the administrator places goes past it.

    Args:
        instances: all there are.
        volumes: all there are.
    """

    def __init__(self, instances: world.World, volumes: world_volumes.Volumes) -> None:
        self.quota = 0
        """How many instances there may be; 0 = no limit."""
        self.capacity = 0
        """How many instances each zone holds; 0 = no limit."""
        self._instances = instances
        self._volumes = volumes
        self._by_token: dict[str, str] = {}
        self._user_data: dict[str, str] = {}

    def create(self, order: Order) -> world.Instance:
        """Order an instance: it is `starting` now and `running` soon.

        Raises:
            WorldError: `invalid` without a name or with odd user data, `quota_exceeded`,
                `no_capacity` in its zone, or `not_found` or `conflict` about a volume.
        """
        world.check_text("user_data", _decoded, order.user_data)
        if (before := self._before(order.token)) is not None:
            return before
        self._check_room(order.zone)
        self._volumes.check_free(order.volumes)
        fields = msgspec.structs.asdict(order)
        given = {name: fields[name] for name in world.NewInstance.__struct_fields__}
        made = self._instances.create(world.NewInstance(**given))
        self._volumes.attach(order.volumes, made.id)
        self._user_data[made.id] = order.user_data
        if order.token:
            self._by_token[order.token] = made.id
        return made

    def user_data(self, instance_id: str) -> UserData:
        """What an instance was ordered with.

        Raises:
            WorldError: `not_found`.
        """
        self._instances.get(instance_id)
        return UserData(user_data=self._user_data.get(instance_id, ""))

    def _before(self, token: str) -> world.Instance | None:
        """The living instance that was ordered with a token."""
        if token not in self._by_token:
            return None
        try:
            found = self._instances.get(self._by_token[token])
        except world.WorldError:
            return None
        return None if found.state in ("deleting", "deleted") else found

    def _check_room(self, zone: str) -> None:
        if not (self.quota or self.capacity):
            return
        living = self._instances.snapshot()
        if self.quota and len(living) >= self.quota:
            text = f"the quota is {self.quota} instances, and there are {len(living)}"
            raise world.WorldError("quota_exceeded", text)
        there = sum(one.zone == zone for one in living)
        if self.capacity and there >= self.capacity:
            text = f"zone {zone} holds {self.capacity} instances, and there are {there}"
            raise world.WorldError("no_capacity", text)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
