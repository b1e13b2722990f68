"""Private network of the cluster, and cache of the project's servers."""

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
"""Maximum age of the server cache in seconds, as in hcloud-cloud-controller-manager."""

_log = log.logger("hcloud")

MIN_REFRESH_S = 2.0
"""Minimum age of the server cache, in seconds, before an unknown server name causes a listing. One
listing thus serves many new nodes.
"""


class ClusterNetwork:
    """The private network in the settings, if any, and the cache of the project's servers.

    Args:
        api: calls of the API.
        word: name or ID of the network; empty = none.
        pods: Pod CIDRs that get routes in the network.
    """

    def __init__(self, api: client.Client, word: str, pods: Sequence[Any] = ()) -> None:
        self._api = api
        self._reference = word
        self._pods = pods
        self.known_id: int | None = None
        """ID of the network; None before the first lookup, or without a network."""
        self._resolve_lock = asyncio.Lock()
        self._ip_range: Any = None
        self._servers: Sequence[client.Server] = ()
        self._listed_at = 0.0

    async def id(self) -> int | None:
        """Return the network's ID; None = no network configured. The first call sends a request.

        Raises:
            FailedPrecondition: the network does not exist.
        """
        async with self._resolve_lock:
            if self._reference and self.known_id is None:
                await self._resolve()
        return self.known_id

    async def _resolve(self) -> None:
        try:
            network = await self._api.resolve(
                "networks", "network", client.Network, self._reference
            )
        except cloud.InvalidArgument as error:
            raise cloud.FailedPrecondition(f"HCLOUD_NETWORK: {error}") from error
        self.known_id, self._ip_range = network.id, cloud.parse_cidr(network.ip_range)
        outside = [str(cidr) for cidr in self._pods if not self._contains(cidr)]
        if outside:
            _log.warning(
                "--cluster-cidr is outside of the network, so by default servers have no routes to "
                "the Pods; use a CIDR inside the network",
                cluster_cidr=", ".join(outside),
                network=network.name,
                ip_range=network.ip_range,
            )

    def _contains(self, cidr: Any) -> bool:
        """Return whether the network contains a CIDR; always true for IPv6."""
        whole = self._ip_range
        return cidr.version != 4 or (whole is not None and bool(cidr.subnet_of(whole)))

    def first_inside(self, addresses: Sequence[str]) -> str:
        """Return the first address inside the network, or else the first address."""
        inside = [
            address
            for address in addresses
            if self._ip_range and ip_address(address) in self._ip_range
        ]
        return next(iter([*inside, *addresses]), "")

    async def read(self) -> client.Network:
        """Return the network with its routes and server IDs.

        Sends one request; the first call sends another, for the network's ID.
        """
        path = f"/networks/{await self.id()}"
        return await self._api.get(path, "network", client.Network)

    async def servers(self) -> tuple[Sequence[client.Server], int]:
        """Return all servers of the project and the number of requests: one per 50 servers."""
        began = monotonic()
        servers, requests = await self._api.list_all("servers", client.Server)
        self._servers, self._listed_at = servers, began
        return servers, requests

    async def gateways(self, network: client.Network) -> Mapping[str, client.Server]:
        """Return the servers of the network, by private address.

        Lists the servers again if the cache is outdated or lacks a server of the network.
        """
        known = {entry.id for entry in self._servers}
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
        """Return the address that the server of this name has in the network.

        Lists the servers at most once.

        Raises:
            Unavailable: no server of this name exists yet.
            FailedPrecondition: the server is not in the network.
        """
        if not self._has_server(name) and monotonic() - self._listed_at > MIN_REFRESH_S:
            await self.servers()
        if not self._has_server(name):
            raise cloud.Unavailable(f"no server is named {name}")
        for server in self._servers:
            for net in server.private_net:
                if server.name == name and net.network == self.known_id and net.ip:
                    return net.ip
        raise cloud.FailedPrecondition(
            f"server {name} has no address in the network; attach the server to the network"
        )

    def _has_server(self, name: str) -> bool:
        return any(server.name == name for server in self._servers)
