"""Routes to Pods: extra routes of a router, and allowed address pairs of the nodes' ports.

A port drops packets whose sender is not one of its addresses, so each Pod range is also an allowed
address pair of its node's port. The pair exists whenever the route does: it is created before and
removed before the route, because a call is only repeated while the route is missing, or there.

Extra routes have no labels, so only the CIDR shows which cluster owns a route. A route outside of
the cluster's Pod CIDRs is therefore never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from weakref import WeakValueDictionary

from ccm import cloud
from ccm.cloud.helpers import is_pod_cidr
from ccm.model.cidr import Network
from ccm.model.ip import parse_ip

from . import client, metrics, neutron, nova


class OpenStackRoutes:
    """Implementation of `cloud.Routes`.

    Args:
        compute: calls of Nova.
        network: calls of Neutron.
        router_id: router that gets the routes.
        pods: Pod CIDRs of the cluster; empty = unknown.
    """

    def __init__(
        self,
        compute: nova.Nova,
        network: neutron.Neutron,
        router_id: str,
        pods: Collection[Network],
    ) -> None:
        self._compute = compute
        self._network = network
        self._router_id = router_id
        self._pods = pods
        self._nodes: dict[str, Sequence[str]] = {}
        self._is_atomic = True
        """Whether extraroute-atomic may exist, which changes single routes; since Stein (2019)."""
        self._router_lock = asyncio.Lock()
        self._port_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def set_informers(self, factory: cloud.InformerFactory) -> None:
        """Follow the nodes: `list_routes` finds the node of a route without a request."""
        factory.on_node(self._on_node)

    def _on_node(self, old: cloud.Node | None, new: cloud.Node | None) -> None:
        if old is not None:
            self._nodes.pop(old.name, None)
        if new is not None:
            self._nodes[new.name] = [address.address for address in new.addresses]

    async def list_routes(self, cluster_name: str) -> Sequence[cloud.Route]:  # noqa: ARG002 - unmarked
        """Return all extra routes of the router.

        Sends one request, and one per 1000 servers if a next hop is no address of a known node.
        """
        async with self._router_errors():
            router = await self._network.router(self._router_id)
        names = {ip: name for name, addresses in self._nodes.items() for ip in addresses}
        if any(route.nexthop not in names for route in router.routes):
            servers, _ = await self._compute.servers()
            names = {ip: server.name for server in servers for ip in server.fixed} | names
        return [
            cloud.Route(
                destination_cidr=route.destination,
                target_node=names.get(route.nexthop, ""),
                name=route.destination,
                target_addresses=(cloud.address("InternalIP", route.nexthop),),
                blackhole=route.nexthop not in names,
            )
            for route in router.routes
        ]

    @metrics.RECONCILES.observe("route_create")
    async def create_route(self, cluster_name: str, name_hint: str, route: cloud.Route) -> None:  # noqa: ARG002
        """Create a route and the allowed address pair of its node: three requests at most.

        Without the extension `extraroute-atomic` it takes four, and one more the first time.

        Raises:
            InvalidArgument: the destination is no CIDR, or the node is not in a subnet of the
                router.
            FailedPrecondition: the node has no address of the route's IP family.
            ResourceExhausted: the router has its maximum number of routes.
            Aborted: another client changed the router or the port at the same time.
        """
        cidr = cloud.parse_cidr(route.destination_cidr)
        if cidr is None:
            raise cloud.InvalidArgument(f"{route.destination_cidr!r} is not a CIDR")
        ip = _next_hop(route, cidr.version)
        await self._change_pair(route.target_node, ip, str(cidr), is_allowed=True)
        await self._change_routes(neutron.ExtraRoute(str(cidr), ip), is_added=True)

    @metrics.RECONCILES.observe("route_delete")
    async def delete_route(self, cluster_name: str, route: cloud.Route) -> None:  # noqa: ARG002
        """Delete a route and the allowed address pair of its node. A missing one is no error.

        Raises:
            FailedPrecondition: the route's CIDR is outside of the cluster's Pod CIDRs.
            Aborted: another client changed the router or the port at the same time.
        """
        cidr = cloud.parse_cidr(route.destination_cidr)
        if cidr is None or not is_pod_cidr(route.destination_cidr, self._pods):
            ours = ", ".join(map(str, self._pods))
            raise cloud.FailedPrecondition(
                f"the route to {route.destination_cidr} was not changed: it is outside of "
                f"--cluster-cidr={ours} and may belong to another cluster; delete it manually if "
                "it is unused"
            )
        ip = _next_hop(route, cidr.version)
        await self._change_pair(route.target_node, ip, str(cidr), is_allowed=False)
        await self._change_routes(neutron.ExtraRoute(route.destination_cidr, ip), is_added=False)

    async def _change_pair(self, node: str, ip: str, cidr: str, *, is_allowed: bool) -> None:
        """Add or remove an allowed address pair of the port with an address, if there is one."""
        # A node with two IP families gets two routes, whose pairs are on one port.
        async with self._port_locks.setdefault(node, asyncio.Lock()):
            for port in await self._ports(ip):
                held = port.allowed_address_pairs
                if held is None or not port.port_security_enabled:
                    continue
                others = [pair for pair in held if pair.ip_address != cidr]
                if (len(others) < len(held)) == is_allowed:
                    continue
                pairs = [*others, neutron.AddressPair(cidr)] if is_allowed else others
                await self._network.set_address_pairs(port, pairs)

    async def _ports(self, ip: str) -> Sequence[neutron.Port]:
        """Return the port of a server that has an address in a network of the router."""
        ports, _ = await self._network.ports({"fixed_ips": f"ip_address={ip}"})
        ports = [port for port in ports if port.device_owner.startswith("compute:")]
        if len(ports) > 1:  # networks may have equal ranges
            interfaces, _ = await self._network.ports_of("device_id", [self._router_id])
            networks = {port.network_id for port in interfaces}
            ports = [port for port in ports if port.network_id in networks]
        return ports

    async def _change_routes(self, route: neutron.ExtraRoute, *, is_added: bool) -> None:
        """Add or remove a route of the router."""
        async with self._router_errors():
            if self._is_atomic:
                action = "add_extraroutes" if is_added else "remove_extraroutes"
                with contextlib.suppress(client.UnknownPath):
                    await self._network.change_routes(self._router_id, action, [route])
                    return
                self._is_atomic = False
            async with self._router_lock:
                router = await self._network.router(self._router_id)
                others = [listed for listed in router.routes if listed != route]
                routes = [*others, route] if is_added else others
                if set(routes) != set(router.routes):
                    await self._network.replace_routes(router, routes)

    @contextlib.asynccontextmanager
    async def _router_errors(self) -> AsyncIterator[None]:
        try:
            yield
        except cloud.NotFound as error:
            raise cloud.FailedPrecondition(
                f"router {self._router_id} does not exist; correct router-id in section [Route] of "
                "the cloud config"
            ) from error


def _next_hop(route: cloud.Route, version: int) -> str:
    """Return the first internal address of an IP family among the addresses of a route."""
    for entry in route.target_addresses:
        ip = parse_ip(entry.address) if entry.type == "InternalIP" else None
        if ip is not None and ip.version == version:
            return str(ip)
    raise cloud.FailedPrecondition(
        f"node {route.target_node} has no internal IPv{version} address for the route to "
        f"{route.destination_cidr} yet"
    )
