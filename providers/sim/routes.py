"""Routes of the simulated cloud, over its client.

The cloud sends a range to a gateway, the private address of an instance, and says whose
address that is. A gateway that is nobody's (any more) makes a blackhole; one that went over
to another instance makes a route of that instance. Both are then replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ccm import cloud

from . import balancers, client


class SimRoutes:
    """`Routes`."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    async def list_routes(self, cluster_name: str) -> Sequence[cloud.Route]:
        """All of this cluster, named by their IDs; one request for each page of 500."""
        return [
            cloud.Route(
                destination_cidr=one.destination,
                target_node=one.target_name or "",
                name=one.id,
                target_addresses=(cloud.address("InternalIP", one.gateway),),
                blackhole=one.target_name is None,
            )
            for one in await self._api.routes(cluster_name)
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: cloud.Route) -> None:
        """One request, and one more for a node that has no address yet.

        Raises:
            InvalidArgument: the range is none.
            FailedPrecondition: the node has no private address of the range's family.
            AlreadyExists: the range has a route to somebody else.
        """
        network = cloud.parse_cidr(route.destination_cidr)
        if network is None:
            raise cloud.InvalidArgument(f"{route.destination_cidr!r} is no CIDR")
        order = client.NewRoute(
            destination=str(network),
            gateway=await self._gateway(route, f"IPv{network.version}"),
            cluster=cluster_name,
            name=f"{name_hint}-{network}",
        )
        try:
            await self._api.create_route(order)
        except cloud.AlreadyExists:
            # Ordered already by a call whose answer was lost?
            for one in await self._api.routes(cluster_name):
                if (one.destination, one.gateway) == (order.destination, order.gateway):
                    return
            raise

    async def delete_route(self, cluster_name: str, route: cloud.Route) -> None:  # noqa: ARG002 - IDs are unique
        """One request.

        Raises:
            InvalidArgument: it is no listed route.
        """
        if not route.name:
            raise cloud.InvalidArgument(f"route to {route.destination_cidr} was never listed")
        with contextlib.suppress(cloud.NotFound):
            await self._api.delete_route(route.name)

    async def _gateway(self, route: cloud.Route, family: str) -> str:
        found = balancers.internal_ips(route.target_addresses, family)
        if not found:
            servers, _ = await self._api.servers(route.target_node)
            addresses = [
                cloud.address("InternalIP", address.value)
                for server in servers
                for address in server.addresses
                if address.kind == "private" and server.state != "deleted"
            ]
            found = balancers.internal_ips(addresses, family)
        if not found:
            raise cloud.FailedPrecondition(
                f"node {route.target_node} has no private {family} address to route to"
            )
        return found[0]
