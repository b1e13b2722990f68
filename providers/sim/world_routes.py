"""The simulated cloud's routes: one table for each cluster's network. No I/O.

A route sends a range of addresses to a gateway, which is the address of an instance. The
cloud shows which instance that is now; a route whose gateway belongs to nobody leads
nowhere, until an instance has that address (again). In one table a range has one route.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from . import changes, world


class NewRoute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order; `name` is for people."""

    destination: str
    gateway: str
    cluster: str = ""
    name: str = ""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route as the cloud shows it; `target` is the gateway's instance, null for nobody."""

    id: str
    name: str
    cluster: str
    destination: str
    gateway: str
    target: str | None = None
    target_name: str | None = None


class RouteChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the administrator may alter; what is left out stays."""

    gateway: str | msgspec.UnsetType = msgspec.UNSET
    destination: str | msgspec.UnsetType = msgspec.UNSET


Owners = Callable[[], Mapping[str, world.Instance]]
"""Says which instance has which address now."""


class RouteTable:
    """All routes of the simulated cloud.

    Args:
        rng: draws IDs.
        owners: the instances by address.
    """

    def __init__(self, rng: random.Random, owners: Owners) -> None:
        self.quota = 0
        """Most routes in one table; 0 = no limit."""
        self.revision = 0
        """Counts the writes."""
        self._rng = rng
        self._owners = owners
        self._by_id: dict[str, Route] = {}

    def create(self, order: NewRoute) -> Route:
        """Order a route.

        Raises:
            WorldError: `invalid`, `conflict` if the range has a route, or `quota_exceeded`.
        """
        _check(order.destination, order.gateway)
        table = [one for one in self._by_id.values() if one.cluster == order.cluster]
        if any(one.destination == order.destination for one in table):
            raise world.WorldError("conflict", f"there is a route to {order.destination}")
        if self.quota and len(table) >= self.quota:
            raise world.WorldError(
                "quota_exceeded", f"your quota of {self.quota} routes is used up"
            )
        made = Route(id=f"r-{self._rng.getrandbits(48):012x}", **msgspec.structs.asdict(order))
        self._by_id[made.id] = made
        self.revision += 1
        return self.get(made.id)

    def put_all(self, given: Sequence[Route]) -> None:
        """Place routes as they are: a saved state."""
        self._by_id |= {one.id: one for one in given}
        self.revision += 1

    def get(self, route_id: str) -> Route:
        """One route.

        Raises:
            WorldError: `not_found`.
        """
        found = self._by_id.get(route_id)
        if found is None:
            raise world.WorldError("not_found", f"no route with ID {route_id}")
        return _shown(found, self._owners())

    def list(self, *, cluster: str | None = None) -> list[Route]:
        """All in order of creation, or those of one table."""
        owners = self._owners()
        return [
            _shown(one, owners)
            for one in self._by_id.values()
            if cluster is None or one.cluster == cluster
        ]

    def change(self, route_id: str, change: RouteChange) -> Route:
        """Alter a route behind its customer's back.

        Raises:
            WorldError: `not_found` or `invalid`.
        """
        changed = changes.applied(self.get(route_id), change)
        _check(changed.destination, changed.gateway)
        self._by_id[route_id] = changed
        self.revision += 1
        return self.get(route_id)

    def delete(self, route_id: str) -> None:
        """Delete a route.

        Raises:
            WorldError: `not_found`.
        """
        self.get(route_id)
        del self._by_id[route_id]
        self.revision += 1


def _shown(route: Route, owners: Mapping[str, world.Instance]) -> Route:
    owner = owners.get(route.gateway)
    return msgspec.structs.replace(
        route, target=owner and owner.id, target_name=owner and owner.name
    )


def _check(destination: str, gateway: str) -> None:
    world.check_text("destination", ipaddress.ip_network, destination)
    world.check_text("gateway", ipaddress.ip_address, gateway)
