"""Calls of Neutron: ports, networks and routers. See `client` for the conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from . import client

IDS_PER_REQUEST = 100
"""Maximum IDs in the query of one request; a URL may have 8 KiB."""


class FixedIp(msgspec.Struct, frozen=True):
    """Address of a port."""

    ip_address: str
    subnet_id: str = ""


class AddressPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """Further address, or CIDR, from which a port may send; without MAC address, the port's."""

    ip_address: str
    mac_address: str | None = None


class SubPort(msgspec.Struct, frozen=True):
    """Port of a network that a trunk carries."""

    port_id: str


class TrunkDetails(msgspec.Struct, frozen=True):
    """Trunk of a port."""

    sub_ports: tuple[SubPort, ...] = ()


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """Port; only the fields that the provider reads.

    `allowed_address_pairs` is None without the extension of that name.
    """

    id: str
    name: str = ""
    description: str = ""
    network_id: str = ""
    device_id: str = ""
    device_owner: str = ""
    status: str = ""
    fixed_ips: tuple[FixedIp, ...] = ()
    allowed_address_pairs: tuple[AddressPair, ...] | None = None
    port_security_enabled: bool = True
    security_groups: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    revision_number: int | None = None
    trunk_details: TrunkDetails | None = None


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """Network, subnet or other resource; only fields that the provider reads."""

    id: str
    name: str = ""
    cidr: str = ""
    tags: tuple[str, ...] = ()
    is_external: bool = msgspec.field(name="router:external", default=False)


class ExtraRoute(msgspec.Struct, frozen=True):
    """Route of a router: `destination` is a CIDR, `nexthop` an address in one of its subnets."""

    destination: str
    nexthop: str


class Router(msgspec.Struct, frozen=True, kw_only=True):
    """Router with its extra routes; `revision_number` is counted up by each change."""

    id: str
    name: str = ""
    routes: tuple[ExtraRoute, ...] = ()
    revision_number: int | None = None


class Neutron:
    """Calls of the network service."""

    def __init__(self, api: client.Client) -> None:
        self._keystone = api.keystone
        self._api = api.network

    async def ports(self, query: Mapping[str, str]) -> tuple[list[Port], int]:
        """Return the ports that match a query, and the number of requests."""
        return await self._api.list_all("/v2.0/ports", "ports", Port, query)

    async def project_ports(self) -> tuple[list[Port], int]:
        """Return all ports of the project, and the number of requests."""
        # An administrator would get the ports of all projects.
        return await self.ports({"project_id": await self._keystone.project_id()})

    async def ports_of(self, field: str, ids: Sequence[str]) -> tuple[list[Port], int]:
        """Return the ports whose field, such as `device_id`, has one of the values."""
        return await self.by_values("ports", Port, field, ids)

    async def by_values(
        self, table: str, kind: type[Any], field: str, ids: Sequence[str]
    ) -> tuple[list[Any], int]:
        """Return the resources whose field has one of the values: one request per 100 of these."""
        resources: list[Any] = []
        requests = 0
        for start in range(0, len(ids), IDS_PER_REQUEST):
            # The query is part of the path because the parameter is repeated.
            query = urlencode([(field, text) for text in ids[start : start + IDS_PER_REQUEST]])
            found, pages = await self._api.list_all(f"/v2.0/{table}?{query}", table, kind)
            resources += found
            requests += pages
        return resources, requests

    async def create_port(self, order: Mapping[str, Any]) -> Port:
        """Create a port."""
        return await self._api.send("POST", "/v2.0/ports", "port", order, Port)

    async def delete_port(self, port_id: str) -> None:
        """Delete a port; no error if it is gone."""
        await self._api.delete(f"/v2.0/ports/{client.part(port_id)}")

    async def set_description(self, port_id: str, text: str) -> None:
        """Set the description of a port."""
        order = {"description": text}
        await self._api.send("PUT", f"/v2.0/ports/{client.part(port_id)}", "port", order, Port)

    async def set_address_pairs(self, port: Port, pairs: Sequence[AddressPair]) -> None:
        """Set the further addresses of a port as read; they replace the existing ones.

        Raises:
            Aborted: the port was changed after it was read.
        """
        order = {"allowed_address_pairs": pairs}
        path, headers = f"/v2.0/ports/{client.part(port.id)}", _if_match(port)
        await self._api.send("PUT", path, "port", order, Port, headers)

    async def router(self, router_id: str) -> Router:
        """Return a router with its extra routes. Raises `NotFound`."""
        return await self._api.get(f"/v2.0/routers/{client.part(router_id)}", "router", Router)

    async def change_routes(
        self, router_id: str, action: str, routes: Sequence[ExtraRoute]
    ) -> None:
        """Add or remove routes: one request. Existing, or missing, routes are no error.

        Args:
            router_id: ID of the router.
            action: add_extraroutes or remove_extraroutes, of the extension extraroute-atomic.
            routes: the routes.

        Raises:
            UnknownPath: the extension is missing.
        """
        path = f"/v2.0/routers/{client.part(router_id)}/{action}"
        await self._api.send("PUT", path, "router", {"routes": routes}, Router)

    async def replace_routes(self, router: Router, routes: Sequence[ExtraRoute]) -> None:
        """Replace the routes of a router as read.

        Raises:
            Aborted: the router was changed after it was read.
        """
        path, headers = f"/v2.0/routers/{client.part(router.id)}", _if_match(router)
        await self._api.send("PUT", path, "router", {"routes": routes}, Router, headers)


def _if_match(read: Port | Router) -> Mapping[str, str]:
    """Return the header of a request that fails if the resource was changed after it was read."""
    number = read.revision_number
    return {} if number is None else {"If-Match": f"revision_number={number}"}
