"""Load balancers of the simulated cloud.

A load balancer is found by its name, which is derived from the Service's UID. Load balancers of
other clusters are ignored. Every call first reads the load balancer, so that the call continues
where an interrupted call stopped. While the cloud works on a load balancer, calls raise
`RetryAfter` with the remaining time.

One normalised form, `client.BalancerSpec`, describes the load balancer that a Service specifies
(`desired_spec`) and the load balancer in the cloud (`actual_spec`). A comparison of both shows
whether a change is necessary. The digest is a hash of this form and of the members.
"""

from __future__ import annotations

import asyncio
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

BUSY_STATES = ("provisioning", "updating")
"""States in which the cloud refuses changes. Unknown states are assumed to accept changes."""

FAILED_STATE = "error"

MIN_RETRY_S = 0.1
MAX_RETRY_S = 30.0
"""Limits, in seconds, for the retry delay that the cloud announces."""


class SimBalancers:
    """Implementation of `LoadBalancer` and of all optional interfaces of load balancers."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID says enough
        """Return the default name (`load_balancer_name`)."""
        return cloud.default_load_balancer_name(service)

    async def get_load_balancer(
        self, cluster_name: str, service: cloud.Service
    ) -> cloud.Status | None:
        """Return the status of the load balancer; None if it does not exist. Sends one request.

        The status has no addresses while the cloud provisions the load balancer.
        """
        balancer = await self._find(cluster_name, service)
        return None if balancer is None else _status(balancer)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """Create or update the load balancer.

        Sends one request to find it, and one for each necessary step: create, change, set members.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not offer.
            FailedPrecondition: a load balancer of another cluster has the name.
            RetryAfter: the cloud works on the load balancer.
            Aborted: the load balancer failed, or the cloud refused some members and accepted the
                others; the message has the cloud's reason.
        """
        recipe = desired_spec(service)
        balancer = await self._find(cluster_name, service)
        if balancer is None:
            balancer = await self._create(cluster_name, service, recipe)
        _check_usable(balancer)
        if actual_spec(balancer) != recipe:
            balancer = await self._api.change_balancer(balancer.id, recipe)
            _check_usable(balancer)
        return _status(await self._ensure_members(balancer, members(nodes, recipe.families)))

    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """Update the members: one request to find the load balancer, another if members differ.

        Raises:
            NotFound: the load balancer does not exist.
            RetryAfter: the cloud works on the load balancer.
            Aborted: the load balancer failed, or the cloud refused some members and accepted the
                others.
        """
        balancer = await self._find(cluster_name, service)
        if balancer is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        _check_usable(balancer)
        await self._ensure_members(balancer, members(nodes, balancer.families))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """Delete the load balancer: one request to find it, another to delete it.

        Raises:
            FailedPrecondition: the load balancer is protected from deletion.
        """
        name = self.get_load_balancer_name(cluster_name, service)
        await self.delete_load_balancer(cluster_name, name)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete a load balancer by name: one request to find it, another to delete it.

        Raises:
            FailedPrecondition: the load balancer is protected from deletion.
        """
        balancer = await self._api.balancer(name)
        if balancer is not None and balancer.cluster == cluster_name:
            with contextlib.suppress(cloud.NotFound):
                await self._api.delete_balancer(balancer.id)

    async def transfer_load_balancer(
        self, cluster_name: str, former: cloud.Service, service: cloud.Service
    ) -> None:
        """Rename the load balancer: two requests to find it, another to rename it.

        Raises:
            NotFound: neither Service has a load balancer.
            FailedPrecondition: `service` has another load balancer.
        """
        own = await self._find(cluster_name, service)
        balancer = await self._find(cluster_name, former)
        if balancer is None and own is None:
            raise cloud.NotFound(f"no load balancer for {former.key}")
        if balancer is not None and own is not None:
            raise cloud.FailedPrecondition(f"{service.key} has the load balancer {own.name}")
        if balancer is not None:
            name = self.get_load_balancer_name(cluster_name, service)
            await self._api.rename_balancer(balancer.id, name)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """Return the load balancers of the cluster: one request per page of 20."""
        records = []
        async for balancer in self._api.balancers(cluster_name):
            records.append(
                cloud.LoadBalancerRecord(
                    name=balancer.name, digest=_digest(balancer), status=_status(balancer)
                )
            )
            # The digest of thousands of members takes milliseconds, so let other tasks run.
            await asyncio.sleep(0)
        return records

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - listings are of one cluster
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> str:
        """Return the digest that the load balancer has after `ensure_load_balancer`."""
        recipe = desired_spec(service)
        return digest(recipe, _members_digest(nodes, recipe.families))

    async def _find(self, cluster_name: str, service: cloud.Service) -> client.Balancer | None:
        name = self.get_load_balancer_name(cluster_name, service)
        balancer = await self._api.balancer(name)
        return balancer if balancer is not None and balancer.cluster == cluster_name else None

    async def _create(
        self, cluster_name: str, service: cloud.Service, recipe: client.BalancerSpec
    ) -> client.Balancer:
        name = self.get_load_balancer_name(cluster_name, service)
        order = client.BalancerOrder(
            **msgspec.structs.asdict(recipe), name=name, cluster=cluster_name
        )
        try:
            return await self._api.create_balancer(order)
        except cloud.AlreadyExists as error:
            # An earlier call created it and lost the response, or another cluster has the name.
            balancer = await self._find(cluster_name, service)
            if balancer is None:
                raise cloud.FailedPrecondition(
                    f"load balancer {name} belongs to another cluster"
                ) from error
            return balancer

    async def _ensure_members(
        self, balancer: client.Balancer, members: Sequence[str]
    ) -> client.BalancerSummary:
        # The members are sorted, unlike those that an administrator may have set.
        if len(balancer.members) == len(members) and sorted(balancer.members) == list(members):
            return balancer
        try:
            changed = await self._api.set_members(balancer.id, members)
        except cloud.InvalidArgument as error:
            good = [member for member in members if is_address(member)]
            if len(good) == len(members):
                raise
            served = await self._ensure_members(balancer, good)
            raise cloud.Aborted(f"members refused: {error}").carrying(_status(served)) from error
        _check_usable(changed)
        return changed


def _check_usable(balancer: client.BalancerSummary) -> None:
    """Raise `Aborted` or `RetryAfter` in states that accept no changes."""
    if balancer.state == FAILED_STATE:
        raise cloud.Aborted(
            f"load balancer {balancer.name} failed: {balancer.reason or 'no reason given'}"
        )
    if balancer.state in BUSY_STATES:
        raise cloud.RetryAfter(
            f"load balancer {balancer.name} is {balancer.state}",
            seconds=min(max(balancer.ready_in_s, MIN_RETRY_S), MAX_RETRY_S),
        )


def _status(balancer: client.BalancerSummary) -> cloud.Status:
    if balancer.state == "provisioning":
        return cloud.Status()
    return cloud.Status(ingress=tuple(cloud.Ingress(ip=ingress.ip) for ingress in balancer.ingress))


def _digest(balancer: client.Balancer) -> str:
    """Return the digest; empty if the load balancer is busy or failed, to force an update."""
    if balancer.state == FAILED_STATE or balancer.state in BUSY_STATES:
        return ""
    return digest(actual_spec(balancer), _hash(sorted(balancer.members)))


# --- specification of a Service -----------------------------------------------------------------

PROTOCOLS = ("TCP", "UDP")
DEFAULT_STICKY_S = 10800
"""Kubernetes' default of the `ClientIP` session affinity time-out, in seconds."""


def desired_spec(service: cloud.Service) -> client.BalancerSpec:
    """Return the configuration that a Service specifies.

    Raises:
        InvalidArgument: the Service asks for something the cloud does not offer.
    """
    return _sort_spec(
        client.BalancerSpec(
            listeners=tuple(_listener(port) for port in service.ports),
            health_check=_health_check(service),
            source_ranges=_source_ranges(service),
            families=tuple(service.spec.ip_families or ("IPv4",)),
            internal=INTERNAL.read(service),
            size=SIZE.read(service),
            sticky_s=_sticky_s(service),
        )
    )


def actual_spec(balancer: client.Balancer) -> client.BalancerSpec:
    """Return the configuration of an existing load balancer."""
    fields = {name: getattr(balancer, name) for name in client.BalancerSpec.__struct_fields__}
    return _sort_spec(client.BalancerSpec(**fields))


@cloud.cached_for_nodes
def members(nodes: Iterable[cloud.Node], families: tuple[str, ...]) -> tuple[str, ...]:
    """Return the members, sorted: the first InternalIP of each node for each family."""
    ips = {internal_ip(node.addresses, family) for node in nodes for family in families}
    return tuple(sorted(ips - {""}))


def internal_ip(addresses: Iterable[cloud.NodeAddress], family: str) -> str:
    """Return the first InternalIP of a family; empty = none."""
    # No `ipaddress` here: parsing would dominate the cost of a member update.
    is_6 = family == "IPv6"
    for address in addresses:
        if address.type == "InternalIP" and (":" in address.address) == is_6:
            return address.address
    return ""


def is_address(text: str) -> bool:
    """Return whether the cloud accepts a text as a member; a kubelet may report any text."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def digest(recipe: client.BalancerSpec, members_digest: str) -> str:
    """Return a hash of the configuration and of the digest of the members."""
    return _hash([recipe, members_digest])


@cloud.cached_for_nodes
def _members_digest(nodes: Iterable[cloud.Node], families: tuple[str, ...]) -> str:
    return _hash(members(nodes, families))


def _hash(content: object) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:32]


def _sort_spec(recipe: client.BalancerSpec) -> client.BalancerSpec:
    return msgspec.structs.replace(
        recipe,
        listeners=tuple(sorted(recipe.listeners)),
        source_ranges=tuple(sorted(recipe.source_ranges)),
        families=tuple(sorted(recipe.families)),
    )


def _listener(port: cloud.ServicePort) -> client.Listener:
    if port.protocol not in PROTOCOLS:
        raise cloud.InvalidArgument(
            f"port {port.port}: protocol {port.protocol} is not supported; "
            f"use {' or '.join(PROTOCOLS)}"
        )
    # Without a node port, members get traffic at the Service's port.
    return client.Listener(port.protocol, port.port, port.node_port or port.port)


def _health_check(service: cloud.Service) -> client.HealthCheck | None:
    interval_s = HEALTH_CHECK_INTERVAL.read(service).total_seconds()
    path, port = cloud.health_check_path_port(service)
    if port:
        return client.HealthCheck(port, path, interval_s)
    tcp = [_listener(entry).target_port for entry in service.ports if entry.protocol == "TCP"]
    return client.HealthCheck(min(tcp), "", interval_s) if tcp else None


def _source_ranges(service: cloud.Service) -> tuple[str, ...]:
    ranges = cloud.load_balancer_source_ranges(service)
    return () if cloud.is_allow_all(ranges) else tuple(str(source_range) for source_range in ranges)


def _sticky_s(service: cloud.Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    config = service.spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    return seconds or DEFAULT_STICKY_S


# --- annotations of Services --------------------------------------------------------------------

PREFIX = "load-balancer.sim.cloud/"
"""Prefix of the annotation names. Services store them: never change it."""

SIZES = ("small", "large")
MIN_INTERVAL = timedelta(seconds=1)
MAX_INTERVAL = timedelta(minutes=5)


def _size(text: str) -> str:
    if text not in SIZES:
        raise ValueError(text)
    return text


def _interval(text: str) -> timedelta:
    interval = parsing.parse_duration(text)
    if not MIN_INTERVAL <= interval <= MAX_INTERVAL:
        raise ValueError(text)
    return interval


INTERNAL = cloud.ServiceAnnotation(
    name=PREFIX + "internal",
    expects="true or false",
    default=False,
    shown="false",
    help="Internal load balancer: its address is reachable from the private network only.",
    parse=truth,
)
SIZE = cloud.ServiceAnnotation(
    name=PREFIX + "size",
    expects="small or large",
    default="small",
    shown="small",
    help="Size of the load balancer.",
    parse=_size,
)
HEALTH_CHECK_INTERVAL = cloud.ServiceAnnotation(
    name=PREFIX + "health-check-interval",
    expects="a duration from 1s to 5m",
    default=timedelta(seconds=10),
    shown="10s",
    help="Time between health checks of a member.",
    parse=_interval,
)

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = (INTERNAL, SIZE, HEALTH_CHECK_INTERVAL)
"""All annotations."""
