"""Floating IPs of load balancers: calls of Neutron, and the choice of network and subnet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm import cloud

from . import balancer_specs, client, config, neutron, octavia
from . import service_annotations as ann

PATH = "/v2.0/floatingips"

DESCRIPTION = "Floating IP for Kubernetes external service"
"""Beginning of the description of a floating IP that was created for a Service."""

FORCED_INTERNAL = "LoadBalancerForcedInternal"
"""No external network was found, so that the load balancer gets no floating IP."""

SEARCH_FAILED = "LoadBalancerExternalNetworkSearchFailed"
"""The search for an external network failed."""

SKIPPED = "LoadBalancerFloatingIPSkipped"
"""The load balancer has an IPv6 address, and gets no floating IP."""


class FloatingIp(msgspec.Struct, frozen=True, kw_only=True):
    """Floating IP; `port_id` is the port that it is associated with."""

    id: str
    floating_ip_address: str
    port_id: str | None = None
    description: str | None = None

    @property
    def is_of_service(self) -> bool:
        """Whether it was created for a Service."""
        return (self.description or "").startswith(DESCRIPTION)


class FloatingIps:
    """Floating IPs of one project."""

    def __init__(self, api: client.Client, context: cloud.Context) -> None:
        self._api = api.network
        self._context = context
        self._external = ""
        """ID of the only external network; empty = not known."""
        self._cidrs: dict[str, str] = {}
        """ID of a subnet -> its CIDR, which never changes."""

    async def find(self, query: Mapping[str, str]) -> list[FloatingIp]:
        """Return the floating IPs that match a query."""
        listed, _ = await self._api.list_all(PATH, "floatingips", FloatingIp, query=query)
        return listed

    async def of_port(self, port_id: str) -> FloatingIp | None:
        """Return the floating IP of a port; None if it has none."""
        if not port_id:
            return None
        return next(iter(await self.find({"port_id": port_id})), None)

    async def subnet_cidr(self, subnet_id: str) -> str:
        """Return the CIDR of a subnet; the first call sends a request."""
        if subnet_id not in self._cidrs:
            path = f"/v2.0/subnets/{client.part(subnet_id)}"
            self._cidrs[subnet_id] = (await self._api.get(path, "subnet", neutron.Named)).cidr
        return self._cidrs[subnet_id]

    async def ensure(
        self, request: balancer_specs.Request, held: octavia.Balancer, *, is_owner: bool
    ) -> str:
        """Return the address of a load balancer, after adding or removing its floating IP.

        Sends one request, and one or more for each change.

        Raises:
            FailedPrecondition: the address that the Service asks for is in use, or the load
                balancer of another Service has no floating IP.
        """
        if ":" in held.vip_address:
            if not request.is_internal:
                text = "the load balancer has an IPv6 address, for which there are no floating IPs"
                self._context.warn(request.service.reference, SKIPPED, text)
            return held.vip_address
        existing = await self.of_port(held.vip_port_id)
        if request.is_internal:
            if existing is not None and is_owner:
                if existing.is_of_service and not request.read(ann.KEEP_FLOATING_IP, False):
                    await self._api.delete(f"{PATH}/{existing.id}")
                else:
                    await self._associate(existing, None)
            return held.vip_address
        if existing is None and not is_owner:
            raise cloud.FailedPrecondition(
                f"load balancer {held.name} has no floating IP, and only the Service that owns it "
                f"can add one; set {ann.INTERNAL.name} to false in that Service"
            )
        if existing is None:
            existing = await self._acquire(request, held)
        elif existing.is_of_service and is_owner:
            # An earlier call may have been interrupted before it recorded the floating IP.
            async with self._context.journal.part("floatingip", held.name) as part:
                part.created(existing.id)
        return existing.floating_ip_address if existing else held.vip_address

    async def release(self, held: octavia.Balancer, *, keep: bool) -> None:
        """Delete the floating IP of a load balancer if it was created for a Service."""
        existing = None if keep else await self.of_port(held.vip_port_id)
        if existing is not None and existing.is_of_service:
            await self._api.delete(f"{PATH}/{existing.id}")

    async def _associate(self, existing: FloatingIp, port_id: str | None) -> FloatingIp:
        order = {"port_id": port_id}
        return await self._api.send("PUT", f"{PATH}/{existing.id}", "floatingip", order, FloatingIp)

    async def _acquire(
        self, request: balancer_specs.Request, held: octavia.Balancer
    ) -> FloatingIp | None:
        """Associate the address that the Service asks for, or create a floating IP."""
        service, networks = request.service, request.networks
        wanted = service.spec.load_balancer_ip or ""
        for existing in await self.find({"floating_ip_address": wanted}) if wanted else ():
            if existing.port_id:
                raise cloud.FailedPrecondition(
                    f"spec.loadBalancerIP: floating IP {wanted} is in use by port "
                    f"{existing.port_id}; choose another, or release it"
                )
            return await self._associate(existing, held.vip_port_id)
        network = networks.floating_network_id or await self._find_external(service)
        if not network:
            text = (
                "no external network is configured or found, so that the load balancer is "
                f"internal; set floating-network-id or {ann.FLOATING_NETWORK.name}"
            )
            self._context.warn(service.reference, FORCED_INTERNAL, text)
            return None
        order: dict[str, Any] = {
            "floating_network_id": network,
            "port_id": held.vip_port_id,
            "description": f"{DESCRIPTION} {service.key} from cluster {self._context.cluster_name}",
        }
        if wanted:
            order["floating_ip_address"] = wanted
        async with self._context.journal.part("floatingip", held.name) as part:
            created = await self._create(order, await self._subnets(networks, network))
            part.created(created.id)
        return created

    async def _create(self, order: Mapping[str, Any], subnets: Sequence[str]) -> FloatingIp:
        """Create a floating IP in the first subnet with a free address; any without subnets."""
        orders = [{**order, "subnet_id": subnet} for subnet in subnets] or [dict(order)]
        for attempt in orders[:-1]:
            with contextlib.suppress(cloud.ResourceExhausted):
                return await self._api.send("POST", PATH, "floatingip", attempt, FloatingIp)
        return await self._api.send("POST", PATH, "floatingip", orders[-1], FloatingIp)

    async def _subnets(self, networks: config.BalancerClass, network: str) -> Sequence[str]:
        """Return the IDs of the subnets that are asked for; empty = any."""
        if networks.floating_subnet_id:
            return [networks.floating_subnet_id]
        if not (networks.floating_subnet or networks.floating_subnet_tags):
            return ()
        query = {"network_id": network}
        listed, _ = await self._api.list_all("/v2.0/subnets", "subnets", neutron.Named, query=query)
        subnets = [
            subnet.id
            for subnet in listed
            if balancer_specs.subnet_matches(subnet.name, subnet.tags, networks)
        ]
        if not subnets:
            name, tags = networks.floating_subnet, networks.floating_subnet_tags
            raise cloud.InvalidArgument(
                f"network {network} has no subnet that matches floating-subnet {name!r} and "
                f"floating-subnet-tags {tags!r}; correct {ann.FLOATING_SUBNET.name} or "
                f"{ann.FLOATING_SUBNET_TAGS.name}"
            )
        return subnets

    async def _find_external(self, service: cloud.Service) -> str:
        """Return the ID of the only external network; empty without one.

        With several networks, the result is empty too, and a Warning event names them.
        """
        if self._external:
            return self._external
        listed, _ = await self._api.list_all(
            "/v2.0/networks", "networks", neutron.Named, query={"router:external": "true"}
        )
        if len(listed) == 1:
            self._external = listed[0].id
        elif listed:
            names = ", ".join(sorted(f"{network.name} ({network.id})" for network in listed))
            text = f"several external networks exist: {names}; set {ann.FLOATING_NETWORK.name}"
            self._context.warn(service.reference, SEARCH_FAILED, text)
        return self._external
