"""Everything the simulated cloud holds: instances, load balancers, routes, volumes. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from . import traffic, world, world_balancers, world_orders, world_routes, world_volumes


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a cloud, as it is kept across restarts."""

    instances: tuple[world.GivenInstance, ...] = ()
    balancers: tuple[world_balancers.Balancer, ...] = ()
    routes: tuple[world_routes.Route, ...] = ()
    volumes: tuple[world_volumes.Volume, ...] = ()


class Worlds:
    """The parts of one cloud.

    Args:
        rng: draws IDs.
    """

    def __init__(self, rng: random.Random) -> None:
        self.instances = world.World(rng)
        self.volumes = world_volumes.Volumes(rng, self.instances.is_there)
        self.orders = world_orders.Orders(self.instances, self.volumes)
        self.balancers = world_balancers.Balancers(rng)
        self.routes = world_routes.RouteTable(rng, self._owners)
        self._owned: tuple[int, Mapping[str, world.Instance]] = (-1, {})

    @property
    def revision(self) -> int:
        """Counts the writes, so that a saver knows whether there is something new."""
        parts = (self.instances, self.balancers, self.routes, self.volumes)
        return sum(part.revision for part in parts)

    def use(self, settings: traffic.Settings) -> None:
        """Take on new settings."""
        self.instances.transition_s = settings.transition_s
        self.instances.removal_s = settings.removal_s
        self.instances.linger_s = settings.linger_s
        self.orders.quota = settings.instance_quota
        self.orders.capacity = settings.zone_capacity
        self.balancers.provision_s = settings.provision_s
        self.balancers.change_s = settings.change_s
        self.balancers.quota = settings.balancer_quota
        self.routes.quota = settings.route_quota

    def snapshot(self) -> Saved:
        """Everything as it is now."""
        instances = msgspec.convert(
            msgspec.to_builtins(self.instances.snapshot()), tuple[world.GivenInstance, ...]
        )
        return Saved(
            instances=instances,
            balancers=tuple(self.balancers.list()),
            routes=tuple(self.routes.list()),
            volumes=tuple(self.volumes.list()),
        )

    def load(self, saved: Saved) -> None:
        """Place what was saved.

        Raises:
            WorldError: it cannot be.
        """
        self.instances.put_all(saved.instances)
        self.balancers.put_all(saved.balancers)
        self.routes.put_all(saved.routes)
        self.volumes.put_all(saved.volumes)

    def name_of(self, object_id: str) -> str:
        """The name of the thing with that ID; empty when none has it."""
        parts = (self.instances, self.balancers, self.routes, self.volumes)
        for find in (part.get for part in parts):
            try:
                return find(object_id).name
            except world.WorldError:
                continue
        return ""

    def _owners(self) -> Mapping[str, world.Instance]:
        revision, owners = self._owned
        if revision != self.instances.revision:
            owners = {
                address.value: instance
                for instance in self.instances.snapshot()
                for address in instance.addresses
            }
            self._owned = (self.instances.revision, owners)
        return owners
