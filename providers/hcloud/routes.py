"""Routes to Pods in the private network of the cluster.

A route sends a CIDR to a gateway, the private address of a server. The API returns all routes of a
network and the IDs of its servers, but not their names or addresses. A network accepts one change
at a time.

Routes have no labels, so only the CIDR shows which cluster owns a route. A route outside of the
cluster's Pod CIDRs is therefore never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from ccm import cloud
from ccm.cloud.helpers import is_pod_cidr

from . import client, names, networks

CHANGE_INTERVAL_S = 0.5
"""Seconds between two changes of a network: the API refuses a change while another one runs, and
the refused request counts against the rate limit."""


class HcloudRoutes:
    """Implementation of `cloud.Routes`.

    Args:
        api: calls of the API.
        network: network that has the routes.
        pods: Pod CIDRs of the cluster; empty = unknown.
        warn: emits a Warning event.
    """

    def __init__(
        self,
        api: client.Client,
        network: networks.ClusterNetwork,
        pods: Sequence[Any],
        warn: names.Warn,
    ) -> None:
        self._api = api
        self._network = network
        self._pods = pods
        self._warn = warn
        self._change_lock = asyncio.Lock()

    async def list_routes(self, cluster_name: str) -> Sequence[cloud.Route]:  # noqa: ARG002 - unmarked
        """Return all routes of the network.

        Sends one request, and one per 50 servers if the cache of servers is outdated.
        """
        network = await self._network.read()
        gateways = await self._network.gateways(network) if network.routes else {}
        return [
            cloud.Route(
                destination_cidr=listed.destination,
                target_node=gateways[listed.gateway].name if listed.gateway in gateways else "",
                name=f"{listed.gateway}-{listed.destination}",
                target_addresses=(cloud.address("InternalIP", listed.gateway),),
                blackhole=listed.gateway not in gateways,
            )
            for listed in network.routes
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: cloud.Route) -> None:  # noqa: ARG002
        """Create a route: one request, or two if the CIDR already has a route.

        Replacing a blackhole route takes two more requests. The servers may also be listed: for a
        node without an address, and to check whether a route is a blackhole.

        Raises:
            InvalidArgument: the destination is not an IPv4 CIDR.
            FailedPrecondition: the node's server is not in the network.
            AlreadyExists: the CIDR has a route to another node.
            ResourceExhausted: the network has its maximum number of routes.
        """
        cidr = cloud.parse_cidr(route.destination_cidr)
        if cidr is None or cidr.version != 4:
            raise cloud.InvalidArgument(
                f"{route.destination_cidr!r} is not an IPv4 CIDR; only IPv4 can be routed"
            )
        if not is_pod_cidr(str(cidr), self._pods):
            self._warn_of_range(route.target_node, str(cidr))
        number = await self._network.id()
        wanted = client.Route(destination=str(cidr), gateway=await self._gateway(route))
        try:
            await self._change(f"/networks/{number}/actions/add_route", wanted)
        except (cloud.InvalidArgument, cloud.AlreadyExists) as error:
            # The API has no error code for a duplicate. If an earlier call created the route and
            # its response was lost, this call succeeds.
            network = await self._network.read()
            same = [listed for listed in network.routes if listed.destination == wanted.destination]
            if wanted in same:
                return
            if not same:
                raise
            await self._replace(network, same[0], wanted, error)

    async def delete_route(self, cluster_name: str, route: cloud.Route) -> None:  # noqa: ARG002 - names are unique
        """Delete a route: one request. A missing route is not an error.

        Raises:
            InvalidArgument: `route.name` is malformed, so `list_routes` did not return it.
            FailedPrecondition: the route's CIDR is outside of the cluster's Pod CIDRs.
        """
        gateway, separator, destination = route.name.partition("-")
        if not separator:
            raise cloud.InvalidArgument(
                f"route to {route.destination_cidr} has no valid ID; pass a route from list_routes"
            )
        if not is_pod_cidr(destination, self._pods):
            raise cloud.FailedPrecondition(self._foreign_text(destination))
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
        """Replace a blackhole route in a Pod CIDR. Raises `AlreadyExists` for any other route."""
        holder = (await self._network.gateways(network)).get(there.gateway)
        if holder is not None:
            raise cloud.AlreadyExists(
                f"{wanted.destination} has a route to {holder.name} already"
            ) from error
        if not is_pod_cidr(there.destination, self._pods):
            raise cloud.AlreadyExists(self._foreign_text(there.destination)) from error
        await self._change(f"/networks/{network.id}/actions/delete_route", there)
        await self._change(f"/networks/{network.id}/actions/add_route", wanted)

    def _foreign_text(self, destination: str) -> str:
        ours = ", ".join(map(str, self._pods))
        return (
            f"the route to {destination} was not changed: it is outside of --cluster-cidr={ours} "
            "and may belong to another cluster; delete it manually if it is unused"
        )

    def _warn_of_range(self, node: str, destination: str) -> None:
        ours = ", ".join(map(str, self._pods))
        self._warn(
            cloud.ObjectReference(kind="Node", api_version="v1", name=node, uid=node),
            names.CLUSTER_CIDR,
            f"Pod CIDR {destination} is outside of --cluster-cidr={ours}: its route is created, "
            "but never deleted; set --cluster-cidr to the value of kube-controller-manager",
        )

    async def _gateway(self, route: cloud.Route) -> str:
        addresses = [
            address.address for address in route.target_addresses if address.type == "InternalIP"
        ]
        v4 = self._network.first_inside([address for address in addresses if ":" not in address])
        # A node may get a Pod CIDR before it is initialised; until then it has no address.
        return v4 or await self._network.private_ip(route.target_node)

    async def _change(self, path: str, route: client.Route) -> None:
        async with self._change_lock:
            action = await self._api.start_action(path, route)
            if action.status == "running":
                await asyncio.sleep(CHANGE_INTERVAL_S)
        if action.status == "error":
            reason = action.error.message if action.error else "no reason given"
            raise cloud.Aborted(f"{action.command} of {route.destination} failed: {reason}")
