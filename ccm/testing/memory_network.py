"""Load balancers and routes for the cloud in memory: the shortest providers of both.

`MemoryNetworkApi` is the cloud, `MemoryNetwork` translates. A load balancer takes two
writes, one for itself and one for its members, so that a crash can fall in between.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.services import (
    default_load_balancer_name,
    is_allow_all,
    load_balancer_source_ranges,
)
from ccm.cloud.types import Ingress, LoadBalancerRecord, Route, Status
from ccm.model import Node, Service
from ccm.testing.memory import (
    SCHEME,
    MemoryApi,
    MemoryApiError,
    MemoryProvider,
    translated,
)

PROTOCOLS = ("TCP", "UDP")

Ports = tuple[tuple[str, int, int], ...]


@dataclass(kw_only=True)
class MemoryBalancer:
    """One load balancer; `state` is `active`, `pending` or `failed: <reason>`."""

    name: str
    cluster: str
    ip: str
    ports: Ports
    members: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    state: str = "active"
    protected: bool = False


@dataclass(kw_only=True)
class MemoryRoute:
    """One route to an instance, by the instance's name."""

    id: str
    cluster: str
    cidr: str
    target: str


@dataclass(kw_only=True)
class MemoryNetworkApi(MemoryApi):
    """The cloud with a network.

    Attributes:
        writes: how many requests changed something.
        lost: the answer to the write of this number is lost; None = of none.
        slow: new load balancers stay `pending`.
        any_member: members need not be instances.
        balancers: by name.
        routes: by ID.
    """

    writes: int = 0
    lost: int | None = None
    slow: bool = False
    any_member: bool = False
    balancers: dict[str, MemoryBalancer] = field(default_factory=dict)
    routes: dict[str, MemoryRoute] = field(default_factory=dict)
    _serial: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def names(self) -> set[str]:
        """Names of the instances."""
        return {one.name for one in self.instances.values()}

    def heal(self) -> None:
        """End the fault."""
        self.lost = None
        super().heal()

    async def balancer(self, token: str, name: str) -> MemoryBalancer | None:
        """One load balancer. Raises MemoryApiError."""
        await self.request(token)
        return self.balancers.get(name)

    async def all_balancers(self, token: str) -> list[MemoryBalancer]:
        """All load balancers. Raises MemoryApiError."""
        await self.request(token)
        return list(self.balancers.values())

    async def put_balancer(
        self, token: str, name: str, cluster: str, ports: Ports, ranges: tuple[str, ...] = ()
    ) -> None:
        """Make a load balancer or change its ports and source ranges; another cluster's is 412.

        Raises MemoryApiError.
        """
        await self.request(token)
        found = self.balancers.get(name)
        if found is None:
            ip = f"192.0.2.{next(self._serial) % 250 + 1}"
            state = "pending" if self.slow else "active"
            made = MemoryBalancer(
                name=name, cluster=cluster, ip=ip, ports=ports, ranges=ranges, state=state
            )
            self.balancers[name] = made
        elif found.cluster != cluster:
            raise MemoryApiError(412)
        else:
            found.ports, found.ranges = ports, ranges
        self._written()

    async def put_members(self, token: str, name: str, members: tuple[str, ...]) -> None:
        """Replace members; one that is no instance is 422. Raises MemoryApiError."""
        await self.request(token)
        if name not in self.balancers:
            raise MemoryApiError(404)
        if not (self.any_member or self.names.issuperset(members)):
            raise MemoryApiError(422)
        self.balancers[name].members = members
        self._written()

    async def delete_balancer(self, token: str, name: str) -> None:
        """Delete a load balancer. Raises MemoryApiError."""
        await self.request(token)
        if name not in self.balancers:
            raise MemoryApiError(404)
        if self.balancers[name].protected:
            raise MemoryApiError(423)
        del self.balancers[name]
        self._written()

    async def all_routes(self, token: str) -> list[MemoryRoute]:
        """All routes. Raises MemoryApiError."""
        await self.request(token)
        return list(self.routes.values())

    async def put_route(self, token: str, cluster: str, cidr: str, target: str) -> None:
        """Make a route, or leave the same one; a taken range is 412. Raises MemoryApiError."""
        await self.request(token)
        for one in self.routes.values():
            if (one.cluster, one.cidr) == (cluster, cidr):
                if one.target != target:
                    raise MemoryApiError(412)
                return
        made = MemoryRoute(id=f"r-{next(self._serial)}", cluster=cluster, cidr=cidr, target=target)
        self.routes[made.id] = made
        self._written()

    async def delete_route(self, token: str, route_id: str) -> None:
        """Delete a route. Raises MemoryApiError."""
        await self.request(token)
        if self.routes.pop(route_id, None) is None:
            raise MemoryApiError(404)
        self._written()

    def _written(self) -> None:
        self.writes += 1
        if self.lost == self.writes:
            raise MemoryApiError(503)


class RefusedMembers(errors.Aborted):
    """The cloud refused some nodes; the others are members."""


class MemoryNetwork:
    """`LoadBalancer` with digests, and `Routes`."""

    def __init__(self, api: MemoryNetworkApi) -> None:
        self.api = api
        self._token = api.token

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:  # noqa: ARG002 - the UID says enough
        """From the UID."""
        return default_load_balancer_name(service)

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        """Its address."""
        found = await self._find(cluster_name, service)
        return None if found is None else _status(found)

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        """Ports and source ranges first, then members; each only if it differs.

        Raises:
            RefusedMembers: with the status of the load balancer, which serves.
        """
        name = self.get_load_balancer_name(cluster_name, service)
        wanted = _ports(service), _ranges(service)
        found = await self._find(cluster_name, service)
        if found is None or (found.ports, found.ranges) != wanted:
            if found is not None:
                _check(found)
            await translated(self.api.put_balancer(self._token, name, cluster_name, *wanted))
        refused: RefusedMembers | None = None
        try:
            await self.update_load_balancer(cluster_name, service, nodes)
        except RefusedMembers as error:
            refused = error
        found = await self._find(cluster_name, service)
        if found is None:
            raise errors.Aborted(f"load balancer {name} is gone again")
        if refused is not None:
            raise refused.carrying(_status(found))
        return _status(found)

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        """Members, if they differ; without those that the cloud refuses, which an error names."""
        found = await self._find(cluster_name, service)
        if found is None:
            raise errors.NotFound("no such load balancer")
        _check(found)
        wanted = _members(nodes)
        try:
            await self._put_members(found, wanted)
        except errors.InvalidArgument as error:
            listing = await MemoryProvider(self.api).list_instances()
            living = {one.name for one in listing.instances}
            await self._put_members(found, tuple(name for name in wanted if name in living))
            refused = ", ".join(name for name in wanted if name not in living)
            raise RefusedMembers(
                f"load balancer {found.name}: {refused} are no instances; delete their nodes"
            ) from error

    async def _put_members(self, balancer: MemoryBalancer, members: tuple[str, ...]) -> None:
        if balancer.members != members:
            await translated(self.api.put_members(self._token, balancer.name, members))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        """Delete what is there."""
        name = self.get_load_balancer_name(cluster_name, service)
        await self.delete_load_balancer(cluster_name, name)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete what is there."""
        found = await translated(self.api.balancer(self._token, name))
        if found is not None and found.cluster == cluster_name:
            with suppress(errors.NotFound):
                await translated(self.api.delete_balancer(self._token, name))

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        """All of the cluster."""
        found = await translated(self.api.all_balancers(self._token))
        return [
            LoadBalancerRecord(
                name=one.name,
                digest=_digest(one.ports, one.ranges, one.members),
                status=_status(one),
            )
            for one in found
            if one.cluster == cluster_name
        ]

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - listings are of one cluster
        service: Service,
        nodes: Sequence[Node],
    ) -> str:
        """Of ports, source ranges and members."""
        return _digest(_ports(service), _ranges(service), _members(nodes))

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        """All of the cluster; without an instance a route leads nowhere."""
        found = await translated(self.api.all_routes(self._token))
        living = self.api.names
        return [
            Route(
                destination_cidr=one.cidr,
                target_node=one.target if one.target in living else "",
                name=one.id,
                blackhole=one.target not in living,
            )
            for one in found
            if one.cluster == cluster_name
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:  # noqa: ARG002 - routes have no names
        """Make it."""
        cidr, target = route.destination_cidr, route.target_node
        await translated(self.api.put_route(self._token, cluster_name, cidr, target))

    async def delete_route(self, cluster_name: str, route: Route) -> None:  # noqa: ARG002 - IDs are unique
        """Delete it."""
        with suppress(errors.NotFound):
            await translated(self.api.delete_route(self._token, route.name))

    async def _find(self, cluster_name: str, service: Service) -> MemoryBalancer | None:
        name = self.get_load_balancer_name(cluster_name, service)
        found = await translated(self.api.balancer(self._token, name))
        return found if found is not None and found.cluster == cluster_name else None


@asynccontextmanager
async def open_memory_network(
    api: MemoryNetworkApi, *, network: type[MemoryNetwork] = MemoryNetwork
) -> AsyncIterator[Cloud]:
    """A provider with instances, load balancers and routes."""
    offered = network(api)
    yield Cloud(
        name=SCHEME,
        instances=MemoryProvider(api),
        load_balancer=offered,
        routes=offered,
        has_cluster_id=True,
    )


def _check(balancer: MemoryBalancer) -> None:
    if balancer.state == "pending":
        raise errors.RetryAfter(f"load balancer {balancer.name} is pending", seconds=1.0)
    if balancer.state != "active":
        raise errors.Aborted(f"load balancer {balancer.name} {balancer.state}")


def _ports(service: Service) -> Ports:
    for port in service.ports:
        if port.protocol not in PROTOCOLS:
            raise errors.InvalidArgument(
                f"port {port.port}: no load balancers for {port.protocol}; use TCP or UDP"
            )
    return tuple(sorted((port.protocol, port.port, port.node_port) for port in service.ports))


def _ranges(service: Service) -> tuple[str, ...]:
    found = load_balancer_source_ranges(service)
    return () if is_allow_all(found) else tuple(sorted(map(str, found)))


def _members(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(sorted(node.name for node in nodes if node.addresses))


def _digest(ports: Ports, ranges: Sequence[str], members: Sequence[str]) -> str:
    return repr((ports, sorted(ranges), sorted(members)))


def _status(balancer: MemoryBalancer) -> Status:
    return Status(ingress=(Ingress(ip=balancer.ip),))
