"""The private network of the cluster and the servers of the project, which several parts need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from ccm import cloud
from ccm.base import log
from ccm.base.clock import monotonic

from . import client

MAX_AGE_S = 60.0
"""Age at which names of servers are asked for anew, as in the vendor's manager."""

_log = log.logger("hcloud")

FRESH_S = 2.0
"""Age up to which a listing serves all nodes of a wave that have no address yet."""


class Network:
    """The network that the settings name, if they do.

    Args:
        api: calls of the API.
        word: its name or ID; empty: there is none.
        pods: ranges that routes will be made for in it.
    """

    def __init__(self, api: client.Client, word: str, pods: Sequence[Any] = ()) -> None:
        self._api = api
        self._word = word
        self._pods = pods
        self.known_id: int | None = None
        """Its ID, once it was asked for."""
        self._asking = asyncio.Lock()
        self._ip_range: Any = None
        self._servers: Sequence[client.Server] = ()
        self._listed_at = 0.0

    async def id(self) -> int | None:
        """Its ID; one request, once. None where the settings name none.

        Raises:
            FailedPrecondition: there is no such network.
        """
        async with self._asking:
            if self._word and self.known_id is None:
                await self._resolve()
        return self.known_id

    async def _resolve(self) -> None:
        try:
            found = await self._api.resolved("networks", "network", client.Network, self._word)
        except cloud.InvalidArgument as error:
            raise cloud.FailedPrecondition(f"HCLOUD_NETWORK: {error}") from error
        self.known_id, self._ip_range = found.id, cloud.parse_cidr(found.ip_range)
        outside = [str(one) for one in self._pods if not self._holds(one)]
        if outside:
            _log.warning(
                "--cluster-cidr lies outside the network: its servers send nothing there unless "
                "somebody gives each a route; choose a range within it",
                cluster_cidr=", ".join(outside),
                network=found.name,
                ip_range=found.ip_range,
            )

    def _holds(self, one: Any) -> bool:
        """Whether a range is part of it; one of IPv6 is nothing that it could hold."""
        whole = self._ip_range
        return one.version != 4 or (whole is not None and bool(one.subnet_of(whole)))

    def first_inside(self, addresses: Sequence[str]) -> str:
        """The first that is in the range of the network, once that is known; else the first."""
        inside = [one for one in addresses if self._ip_range and ip_address(one) in self._ip_range]
        return next(iter([*inside, *addresses]), "")

    async def now(self) -> client.Network:
        """What is in it; one request, and once one for its ID."""
        path = f"/networks/{await self.id()}"
        return await self._api.one(path, "network", client.Network)

    async def servers(self) -> tuple[Sequence[client.Server], int]:
        """All servers of the project and how many requests that took; one for each 50."""
        began = monotonic()
        found, requests = await self._api.all("servers", client.Server)
        self._servers, self._listed_at = found, began
        return found, requests

    async def gateways(self, network: client.Network) -> Mapping[str, client.Server]:
        """Private address -> server; the servers are listed anew where they may have changed."""
        known = {one.id for one in self._servers}
        is_old = monotonic() - self._listed_at > MAX_AGE_S
        if is_old or not set(network.servers) <= known:
            await self.servers()
        return {
            net.ip: server
            for server in self._servers
            if server.id in network.servers
            for net in server.private_net
            if net.network == network.id and net.ip
        }

    async def private_ip(self, name: str) -> str:
        """The address of a server in the network, by the server's name; one listing at most.

        Raises:
            Unavailable: there is no such server yet.
            FailedPrecondition: it is not in the network.
        """
        if not self._has(name) and monotonic() - self._listed_at > FRESH_S:
            await self.servers()
        if not self._has(name):
            raise cloud.Unavailable(f"no server is named {name}")
        for server in self._servers:
            for net in server.private_net:
                if server.name == name and net.network == self.known_id and net.ip:
                    return net.ip
        raise cloud.FailedPrecondition(
            f"server {name} has no address in the network, and nothing can be routed to it"
        )

    def _has(self, name: str) -> bool:
        return any(one.name == name for one in self._servers)
