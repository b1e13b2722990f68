"""Routes to Pods in the private network of the cluster.

A route sends a range to a gateway, the private address of a server. The API says of a network with
one request all routes and the IDs of its servers, but neither names nor addresses of these. A
network takes one change at a time.

Routes have no labels: whose one is, only its range says. So none is taken away whose range lies
outside of those of our Pods, whatever is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from ccm import cloud

from . import client, names, networks

SETTLE_S = 0.5
"""How long a change of a network is given before the next one; another that comes too early is
refused and costs a request."""


class HcloudRoutes:
    """`Routes`.

    Args:
        api: calls of the API.
        network: where they are.
        pods: the ranges of our Pods; empty: nobody says.
        warn: makes an event.
    """

    def __init__(
        self, api: client.Client, network: networks.Network, pods: Sequence[Any], warn: names.Warn
    ) -> None:
        self._api = api
        self._network = network
        self._pods = pods
        self._warn = warn
        self._one_at_a_time = asyncio.Lock()

    async def list_routes(self, cluster_name: str) -> Sequence[cloud.Route]:  # noqa: ARG002 - unmarked
        """All of the network; one request, and one for each 50 servers where these have changed."""
        network = await self._network.now()
        gateways = await self._network.gateways(network) if network.routes else {}
        return [
            cloud.Route(
                destination_cidr=one.destination,
                target_node=gateways[one.gateway].name if one.gateway in gateways else "",
                name=f"{one.gateway}-{one.destination}",
                target_addresses=(cloud.address("InternalIP", one.gateway),),
                blackhole=one.gateway not in gateways,
            )
            for one in network.routes
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: cloud.Route) -> None:  # noqa: ARG002
        """One request; two more where the range has a route already, and a listing of servers where
        the node has no address yet.

        Raises:
            InvalidArgument: the range is not of IPv4.
            FailedPrecondition: the node's server is not in the network.
            AlreadyExists: the range has a route to another node.
            ResourceExhausted: the network has as many routes as it may have.
        """
        found = cloud.parse_cidr(route.destination_cidr)
        if found is None or found.version != 4:
            raise cloud.InvalidArgument(
                f"{route.destination_cidr!r} is no range of IPv4, and others cannot be routed"
            )
        if not self._is_ours(str(found)):
            self._warn_of_range(route.target_node, str(found))
        number = await self._network.id()
        wanted = client.Route(destination=str(found), gateway=await self._gateway(route))
        try:
            await self._change(f"/networks/{number}/actions/add_route", wanted)
        except (cloud.InvalidArgument, cloud.AlreadyExists) as error:
            # Made already by a call whose answer was lost? The API has no word of its own for it.
            network = await self._network.now()
            same = [one for one in network.routes if one.destination == wanted.destination]
            if wanted in same:
                return
            if not same:
                raise
            await self._replace(network, same[0], wanted, error)

    async def delete_route(self, cluster_name: str, route: cloud.Route) -> None:  # noqa: ARG002 - names are unique
        """One request.

        Raises:
            InvalidArgument: it is no listed route.
            FailedPrecondition: its range is not of our Pods.
        """
        gateway, separator, destination = route.name.partition("-")
        if not separator:
            raise cloud.InvalidArgument(f"route to {route.destination_cidr} was never listed")
        if not self._is_ours(destination):
            raise cloud.FailedPrecondition(self._foreign(destination))
        number = await self._network.id()
        with contextlib.suppress(cloud.NotFound):
            await self._change(
                f"/networks/{number}/actions/delete_route",
                client.Route(destination=destination, gateway=gateway),
            )

    async def _replace(
        self,
        network: client.Network,
        there: client.Route,
        wanted: client.Route,
        error: cloud.CloudError,
    ) -> None:
        """Take over a range whose route leads nowhere; one that leads to a server is left alone."""
        holder = (await self._network.gateways(network)).get(there.gateway)
        if holder is not None:
            raise cloud.AlreadyExists(
                f"the range {wanted.destination} has a route to {holder.name}"
            ) from error
        if not self._is_ours(there.destination):
            raise cloud.AlreadyExists(self._foreign(there.destination)) from error
        await self._change(f"/networks/{network.id}/actions/delete_route", there)
        await self._change(f"/networks/{network.id}/actions/add_route", wanted)

    def _is_ours(self, text: str) -> bool:
        """Whether a range is of our Pods."""
        found: Any = cloud.parse_cidr(text)
        same = [one for one in self._pods if found is not None and one.version == found.version]
        return not self._pods or any(found.subnet_of(one) for one in same)

    def _foreign(self, destination: str) -> str:
        ours = ", ".join(map(str, self._pods))
        return (
            f"the route to {destination} is left alone: --cluster-cidr is {ours}, and another "
            "cluster may have made it; if nobody needs it, delete it by hand"
        )

    def _warn_of_range(self, node: str, destination: str) -> None:
        ours = ", ".join(map(str, self._pods))
        self._warn(
            cloud.ObjectReference(kind="Node", api_version="v1", name=node, uid=node),
            names.CLUSTER_CIDR,
            f"its range of Pods {destination} lies outside of --cluster-cidr={ours}: the route to "
            "it is made, and will never be taken away; give --cluster-cidr the value that "
            "kube-controller-manager has",
        )

    async def _gateway(self, route: cloud.Route) -> str:
        found = [one.address for one in route.target_addresses if one.type == "InternalIP"]
        v4 = self._network.first_inside([one for one in found if ":" not in one])
        # A node may have a range before it is initialised, and no address until then.
        return v4 or await self._network.private_ip(route.target_node)

    async def _change(self, path: str, route: client.Route) -> None:
        async with self._one_at_a_time:
            action = await self._api.act(path, route)
            if action.status == "running":
                await asyncio.sleep(SETTLE_S)
        if action.status == "error":
            reason = action.error.message if action.error else "no reason"
            raise cloud.Aborted(f"{action.command} of {route.destination} failed: {reason}")
