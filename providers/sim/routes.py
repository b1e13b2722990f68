"""Routes of the simulated cloud.

A route sends a CIDR to a gateway, the private address of an instance. The cloud reports which
instance has that address. The route is a blackhole if no instance has the address, and leads to
another node if the address moved to the instance of that node. The route controller corrects both
cases.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ccm import cloud

from . import balancers, client


class SimRoutes:
    """Implementation of `cloud.Routes`."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    async def list_routes(self, cluster_name: str) -> Sequence[cloud.Route]:
        """Return the routes of the cluster, named by their IDs; one request per page of 500."""
        return [
            cloud.Route(
                destination_cidr=route.destination,
                target_node=route.target_name or "",
                name=route.id,
                target_addresses=(cloud.address("InternalIP", route.gateway),),
                blackhole=route.target_name is None,
            )
            for route in await self._api.routes(cluster_name)
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: cloud.Route) -> None:
        """Create a route: one request, and another for a node without addresses.

        Raises:
            InvalidArgument: the destination is not a CIDR.
            FailedPrecondition: the node has no private address of the CIDR's family.
            AlreadyExists: the CIDR has a route to another gateway.
        """
        network = cloud.parse_cidr(route.destination_cidr)
        if network is None:
            raise cloud.InvalidArgument(f"{route.destination_cidr!r} is not a CIDR")
        order = client.NewRoute(
            destination=str(network),
            gateway=await self._gateway(route, f"IPv{network.version}"),
            cluster=cluster_name,
            name=f"{name_hint}-{network}",
        )
        try:
            await self._api.create_route(order)
        except cloud.AlreadyExists:
            # If an earlier call created the route and lost the response, this call succeeds.
            for listed in await self._api.routes(cluster_name):
                if (listed.destination, listed.gateway) == (order.destination, order.gateway):
                    return
            raise

    async def delete_route(self, cluster_name: str, route: cloud.Route) -> None:  # noqa: ARG002 - IDs are unique
        """Delete a route by its ID: one request. A missing route is not an error.

        Raises:
            InvalidArgument: the route has no ID (`name`), so `list_routes` did not return it.
        """
        if not route.name:
            raise cloud.InvalidArgument(
                f"route to {route.destination_cidr} has no valid ID; pass a route from list_routes"
            )
        with contextlib.suppress(cloud.NotFound):
            await self._api.delete_route(route.name)

    async def _gateway(self, route: cloud.Route, family: str) -> str:
        gateway = balancers.internal_ip(route.target_addresses, family)
        if not gateway:
            servers, _ = await self._api.servers(route.target_node)
            addresses = [
                cloud.address("InternalIP", address.value)
                for server in servers
                for address in server.addresses
                if address.kind == "private" and server.state != "deleted"
            ]
            gateway = balancers.internal_ip(addresses, family)
        if not gateway:
            raise cloud.FailedPrecondition(
                f"node {route.target_node} has no private {family} address to route to"
            )
        return gateway
