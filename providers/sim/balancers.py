"""Load balancers of the simulated cloud, over its client.

A load balancer is found by its name, which follows from the Service's UID; the mark of the
cluster keeps those of others out of reach. Every step first looks at what is there, so
whatever a call that was cut short left behind is adopted by the next. While the cloud works
on a load balancer, `RetryAfter` says for how long.

One form, `client.Recipe` in a fixed order, stands for what a Service asks for (`wanted`) and for
what the cloud holds (`held`). Comparing two of them says what to change; hashing one gives the
digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from ccm import cloud
from ccm.base import parsing
from ccm.cloud.annotations import truth

from . import client

ON_ITS_WAY = ("provisioning", "updating")
"""States in which the cloud takes no change; any state we do not know takes them."""

FAILED = "error"

SHORTEST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0
"""Bounds of the wait that the cloud announces."""


class SimBalancers:
    """`LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval` in one."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID says enough
        """`a` and the UID of the Service."""
        return cloud.default_load_balancer_name(service)

    async def get_load_balancer(
        self, cluster_name: str, service: cloud.Service
    ) -> cloud.Status | None:
        """Its status, without addresses while it is new; one request."""
        found = await self._find(cluster_name, service)
        return None if found is None else _status(found)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """One request to find it, and one for each step it needs: order, change, members.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not have.
            RetryAfter: the cloud works on it.
            Aborted: the cloud failed to make it, or refused members and the others are there; the
                message has the cloud's reason.
        """
        recipe = wanted(service)
        found = await self._find(cluster_name, service)
        if found is None:
            found = await self._create(cluster_name, service, recipe)
        _check_usable(found)
        if held(found) != recipe:
            found = await self._api.change_balancer(found.id, recipe)
            _check_usable(found)
        found = await self._with_members(found, members(nodes, recipe.families))
        return _status(found)

    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """One request to find it, another if the members differ.

        Raises:
            NotFound: there is none.
            RetryAfter: the cloud works on it.
            Aborted: the cloud refused members; the others are as they should be.
        """
        found = await self._find(cluster_name, service)
        if found is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        _check_usable(found)
        await self._with_members(found, members(nodes, found.families))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """One request to find it, another to delete it.

        Raises:
            FailedPrecondition: it is protected from deletion.
        """
        name = self.get_load_balancer_name(cluster_name, service)
        await self.delete_load_balancer(cluster_name, name)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """One request to find it, another to delete it.

        Raises:
            FailedPrecondition: it is protected from deletion.
        """
        found = await self._api.balancer(name)
        if found is not None and found.cluster == cluster_name:
            with contextlib.suppress(cloud.NotFound):
                await self._api.delete_balancer(found.id)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """All of this cluster; one request for each page of 500."""
        return [
            cloud.LoadBalancerRecord(name=one.name, digest=_digest(one), status=_status(one))
            for one in await self._api.balancers(cluster_name)
        ]

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - listings are of one cluster
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> str:
        """The digest of what `ensure_load_balancer` would make."""
        recipe = wanted(service)
        return digest(recipe, members(nodes, recipe.families))

    async def _find(self, cluster_name: str, service: cloud.Service) -> client.Balancer | None:
        name = self.get_load_balancer_name(cluster_name, service)
        found = await self._api.balancer(name)
        return found if found is not None and found.cluster == cluster_name else None

    async def _create(
        self, cluster_name: str, service: cloud.Service, recipe: client.Recipe
    ) -> client.Balancer:
        name = self.get_load_balancer_name(cluster_name, service)
        order = client.Order(**msgspec.structs.asdict(recipe), name=name, cluster=cluster_name)
        try:
            return await self._api.create_balancer(order)
        except cloud.AlreadyExists as error:
            # Ordered meanwhile by a call whose answer was lost, or by another cluster.
            found = await self._find(cluster_name, service)
            if found is None:
                raise cloud.FailedPrecondition(
                    f"load balancer {name} belongs to another cluster"
                ) from error
            return found

    async def _with_members(
        self, balancer: client.Balancer, members: Sequence[str]
    ) -> client.Balancer:
        if sorted(balancer.members) == sorted(members):
            return balancer
        try:
            changed = await self._api.set_members(balancer.id, members)
        except cloud.InvalidArgument as error:
            good = [one for one in members if is_address(one)]
            if len(good) == len(members):
                raise
            served = await self._with_members(balancer, good)
            raise cloud.Aborted(f"members refused: {error}").carrying(_status(served)) from error
        _check_usable(changed)
        return changed


def _check_usable(balancer: client.Balancer) -> None:
    """Raise what follows from a state that takes no changes."""
    if balancer.state == FAILED:
        raise cloud.Aborted(
            f"load balancer {balancer.name} failed: {balancer.reason or 'no reason'}"
        )
    if balancer.state in ON_ITS_WAY:
        raise cloud.RetryAfter(
            f"load balancer {balancer.name} is {balancer.state}",
            seconds=min(max(balancer.ready_in_s, SHORTEST_WAIT_S), LONGEST_WAIT_S),
        )


def _status(balancer: client.Balancer) -> cloud.Status:
    if balancer.state == "provisioning":
        return cloud.Status()
    return cloud.Status(ingress=tuple(cloud.Ingress(ip=one.ip) for one in balancer.ingress))


def _digest(balancer: client.Balancer) -> str:
    """Of what the cloud holds; empty for one that is not finished or damaged."""
    if balancer.state == FAILED or balancer.state in ON_ITS_WAY:
        return ""
    return digest(held(balancer), balancer.members)


# --- what a Service asks for --------------------------------------------------------------------

PROTOCOLS = ("TCP", "UDP")
DEFAULT_STICKY_S = 10800
"""How long a client stays with one member where the Service does not say (Kubernetes API)."""


def wanted(service: cloud.Service) -> client.Recipe:
    """The load balancer that a Service asks for.

    Raises:
        InvalidArgument: it asks for something the cloud does not have.
    """
    return _ordered(
        client.Recipe(
            listeners=tuple(_listener(port) for port in service.ports),
            health_check=_health_check(service),
            source_ranges=_source_ranges(service),
            families=tuple(service.spec.ip_families or ("IPv4",)),
            internal=INTERNAL.read(service),
            size=SIZE.read(service),
            sticky_s=_sticky_s(service),
        )
    )


def held(balancer: client.Balancer) -> client.Recipe:
    """The same of a load balancer that is there."""
    fields = {name: getattr(balancer, name) for name in client.Recipe.__struct_fields__}
    return _ordered(client.Recipe(**fields))


def members(nodes: Iterable[cloud.Node], families: Sequence[str]) -> tuple[str, ...]:
    """The addresses of nodes as members: of each family a node's first InternalIP."""
    found: set[str] = set()
    for node in nodes:
        for family in families:
            found.update(internal_ips(node.addresses, family)[:1])
    return tuple(sorted(found))


def internal_ips(addresses: Iterable[cloud.NodeAddress], family: str) -> list[str]:
    """The InternalIPs of one family, in their order."""
    # Parsing each address would be most of the work of an update of members.
    is_6 = family == "IPv6"
    return [
        one.address
        for one in addresses
        if one.type == "InternalIP" and (":" in one.address) == is_6
    ]


def is_address(text: str) -> bool:
    """Return whether the cloud takes a text as a member; a kubelet may report any."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def digest(recipe: client.Recipe, members_: Sequence[str]) -> str:
    """A text that is equal exactly when recipe and members are."""
    content = msgspec.json.encode([recipe, sorted(members_)])
    return hashlib.sha256(content).hexdigest()[:32]


def _ordered(recipe: client.Recipe) -> client.Recipe:
    return msgspec.structs.replace(
        recipe,
        listeners=tuple(sorted(recipe.listeners)),
        source_ranges=tuple(sorted(recipe.source_ranges)),
        families=tuple(sorted(recipe.families)),
    )


def _listener(port: cloud.ServicePort) -> client.Listener:
    if port.protocol not in PROTOCOLS:
        raise cloud.InvalidArgument(
            f"port {port.port}: the cloud has no load balancers for {port.protocol}; "
            f"expected {' or '.join(PROTOCOLS)}"
        )
    # Without a node port, traffic arrives at the node as it was sent to the load balancer.
    return client.Listener(port.protocol, port.port, port.node_port or port.port)


def _health_check(service: cloud.Service) -> client.HealthCheck | None:
    interval_s = HEALTH_CHECK_INTERVAL.read(service).total_seconds()
    path, port = cloud.health_check_path_port(service)
    if port:
        return client.HealthCheck(port, path, interval_s)
    tcp = [_listener(each).target_port for each in service.ports if each.protocol == "TCP"]
    return client.HealthCheck(min(tcp), "", interval_s) if tcp else None


def _source_ranges(service: cloud.Service) -> tuple[str, ...]:
    ranges = cloud.load_balancer_source_ranges(service)
    return () if cloud.is_allow_all(ranges) else tuple(str(one) for one in ranges)


def _sticky_s(service: cloud.Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    return seconds or DEFAULT_STICKY_S


# --- annotations of Services --------------------------------------------------------------------

PREFIX = "load-balancer.sim.cloud/"
"""What the names of all of them begin with. A promise to old clusters."""

SIZES = ("small", "large")
SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_INTERVAL = timedelta(minutes=5)


def _size(text: str) -> str:
    if text not in SIZES:
        raise ValueError(text)
    return text


def _interval(text: str) -> timedelta:
    found = parsing.parse_duration(text)
    if not SHORTEST_INTERVAL <= found <= LONGEST_INTERVAL:
        raise ValueError(text)
    return found


INTERNAL = cloud.ServiceAnnotation(
    name=PREFIX + "internal",
    expects="true or false",
    default=False,
    shown="false",
    help="Give the load balancer an address that only the private network can reach.",
    parse=truth,
)
SIZE = cloud.ServiceAnnotation(
    name=PREFIX + "size",
    expects="small or large",
    default="small",
    shown="small",
    help="How much traffic the load balancer is made for.",
    parse=_size,
)
HEALTH_CHECK_INTERVAL = cloud.ServiceAnnotation(
    name=PREFIX + "health-check-interval",
    expects="a duration from 1s to 5m",
    default=timedelta(seconds=10),
    shown="10s",
    help="Time between two checks of one member.",
    parse=_interval,
)

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = (
    INTERNAL,
    SIZE,
    HEALTH_CHECK_INTERVAL,
)
"""All of them."""
