"""Calls of Nova: servers and flavors. See `client` for the conventions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ccm import cloud

from . import client

T = TypeVar("T")

MICROVERSION = "2.47"
"""Version from which a server has the name of its flavor; since OpenStack Pike (2017)."""

CREATION_MICROVERSION = "2.52"
"""Version from which a server can be created with tags; since OpenStack Pike (2017)."""

VOLUME_TYPE_MICROVERSION = "2.67"
"""Version from which a boot volume has a type; since OpenStack Stein (2019)."""


class Flavor(msgspec.Struct, frozen=True):
    """Flavor of a server: `original_name` since `MICROVERSION`, `id` before; or a listed flavor."""

    id: str = ""
    name: str = ""
    original_name: str = ""


class Address(msgspec.Struct, frozen=True):
    """Address of a server: `kind` is fixed or floating."""

    addr: str
    kind: str = msgspec.field(name="OS-EXT-IPS:type", default="fixed")


class Fault(msgspec.Struct, frozen=True):
    """Reason of the status ERROR."""

    message: str = ""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Server; only the fields that the provider reads. `status` may have unknown values.

    `addresses` are listed by the name of their network.
    """

    id: str
    name: str
    status: str = ""
    flavor: Flavor = Flavor()
    addresses: dict[str, tuple[Address, ...]] = {}
    access_ipv4: str | None = msgspec.field(name="accessIPv4", default=None)
    access_ipv6: str | None = msgspec.field(name="accessIPv6", default=None)
    metadata: dict[str, str] = {}
    zone: str | None = msgspec.field(name="OS-EXT-AZ:availability_zone", default=None)
    task_state: str | None = msgspec.field(name="OS-EXT-STS:task_state", default=None)
    created: str = ""
    launched_at: str | None = msgspec.field(name="OS-SRV-USG:launched_at", default=None)
    fault: Fault | None = None

    @property
    def listed(self) -> Sequence[tuple[str, Address]]:
        """All addresses with their networks, by the names of these."""
        return [(name, one) for name in sorted(self.addresses) for one in self.addresses[name]]

    @property
    def fixed(self) -> Sequence[str]:
        """Fixed addresses in all networks."""
        return [entry.addr for _, entry in self.listed if entry.kind == "fixed"]


class Nova:
    """Calls of the compute service."""

    def __init__(self, api: client.Client) -> None:
        self._api = api.compute
        self._api.headers = {"OpenStack-API-Version": f"compute {MICROVERSION}"}
        self._flavors: dict[str, Flavor] = {}

    async def server(self, server_id: str) -> Server:
        """Return a server. Raises `NotFound`."""
        path = f"/servers/{client.part(server_id)}"
        server = await self._versioned(lambda: self._api.get(path, "server", Server))
        if server.id.lower() != server_id.lower():
            raise cloud.Unknown(f"requested server {server_id}, got {server.id}")
        return server

    async def servers(self, query: Mapping[str, str] | None = None) -> tuple[list[Server], int]:
        """Return all servers of the project that match a query, and the number of requests."""
        return await self._versioned(
            lambda: self._api.list_all("/servers/detail", "servers", Server, query)
        )

    async def servers_named(self, name: str) -> Sequence[Server]:
        """Return all servers with a name; names are not unique."""
        # The filter is a regular expression of the database, whose escapes are few.
        pattern = re.sub(r"[^A-Za-z0-9-]", r"\\\g<0>", name)
        servers, _ = await self.servers({"name": f"^{pattern}$"})
        return [server for server in servers if server.name == name]

    async def create_server(self, order: Mapping[str, Any], hints: Mapping[str, str]) -> str:
        """Create a server and return its ID; `hints` are for the scheduler.

        Raises:
            FailedPrecondition: Nova is too old for the order.
        """
        volumes = order.get("block_device_mapping_v2", ())
        has_type = any("volume_type" in volume for volume in volumes)
        version = VOLUME_TYPE_MICROVERSION if has_type else CREATION_MICROVERSION
        headers = {"OpenStack-API-Version": f"compute {version}"}
        beside = {"os:scheduler_hints": hints} if hints else None
        try:
            created = await self._api.send(
                "POST", "/servers", "server", order, client.Reference, headers, beside
            )
        except cloud.Unimplemented as error:
            what = "a type of the boot volume" if has_type else "the creation of servers"
            text = f"Nova is too old: {what} needs microversion {version}: {error}"
            raise cloud.FailedPrecondition(text) from error
        return created.id

    async def delete_server(self, server_id: str) -> None:
        """Start the deletion of a server; no error if it is gone."""
        await self._api.delete(f"/servers/{client.part(server_id)}")

    async def set_metadata(self, server_id: str, items: Mapping[str, str]) -> None:
        """Add or replace metadata of a server; other metadata stay."""
        path = f"/servers/{client.part(server_id)}/metadata"
        await self._api.call("POST", path, {"metadata": items})

    async def has_keypair(self, name: str) -> bool:
        """Return whether the user has a key pair."""
        try:
            await self._api.call("GET", f"/os-keypairs/{client.part(name)}")
        except cloud.NotFound:
            return False
        return True

    async def flavor(self, flavor: Flavor) -> Flavor:
        """Return a server's flavor with ID and name; unchanged if no such flavor exists any more.

        Lists the flavors if it is not among those of the last listing.
        """
        key = flavor.id or flavor.original_name
        if key not in self._flavors:
            query = {"is_public": "None"}
            flavors, _ = await self._api.list_all("/flavors/detail", "flavors", Flavor, query)
            self._flavors = {word: entry for entry in flavors for word in (entry.name, entry.id)}
            self._flavors.setdefault(key, flavor)
        return self._flavors[key]

    async def _versioned(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call Nova again without microversion if it is too old for that."""
        try:
            return await call()
        except cloud.Unimplemented:
            if not self._api.headers:
                raise
            self._api.headers = {}  # servers have only the ID of their flavor
            return await call()
