"""Client of the IaaS API: wire types and calls.

`ccm.cloud.rest` sends all HTTP requests. Every method raises only `CloudError` classes. Unknown
fields are ignored; enumerations that the API may extend are read as text. Listings are not paged.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ccm import cloud
from ccm.cloud import rest

from . import refusals

RETRY_S = 5.0
"""Retry delay, in seconds, while a server is created or deleted."""


class Nic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Network interface (NIC), as in a listing of NICs."""

    id: str
    network_id: str = ""
    ipv4: str | None = None
    ipv6: str | None = None
    allowed_addresses: tuple[str, ...] | None = None


class ServerNic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Network interface (NIC), as in the details of a server."""

    nic_id: str = ""
    network_id: str = ""
    network_name: str = ""
    ipv4: str | None = None
    ipv6: str | None = None
    public_ip: str | None = None
    allowed_addresses: tuple[str, ...] | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Server; only the fields that the provider reads. `status` may have unknown values."""

    id: str
    name: str
    status: str | None = None
    error_message: str | None = None
    machine_type: str | None = None
    availability_zone: str | None = None
    labels: dict[str, Any] | None = None
    nics: tuple[ServerNic, ...] | None = None
    created_at: str | None = None
    launched_at: str | None = None

    def label(self, name: str) -> str:
        """Return a label; empty if it is missing or not text."""
        text = (self.labels or {}).get(name)
        return text if isinstance(text, str) else ""


class Place(NamedTuple):
    """Project and region of servers."""

    project: str
    region: str

    @property
    def path(self) -> str:
        """Prefix of all API paths of the place."""
        return f"/v2/projects/{self.project}/regions/{self.region}"


class _Servers(msgspec.Struct, frozen=True):
    items: tuple[Server, ...]  # required: a response without it must not count as "no servers"


class _Nics(msgspec.Struct, frozen=True):
    items: tuple[Nic, ...]


class Client:
    """Client for the API; opened by `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def server(self, place: Place, server_id: str) -> Server:
        """Return a server, including its NICs. Raises `NotFound`."""
        path = f"{place.path}/servers/{server_id}"
        server = await self._http.get(path, Server, {"details": "true"})
        if server.id.lower() != server_id.lower():
            raise cloud.Unknown(f"requested server {server_id}, got {server.id}")
        return server

    async def servers(self, place: Place, labels: Mapping[str, str] | None = None) -> list[Server]:
        """Return all servers, or only those with the labels, including their NICs: one request."""
        query = {"details": "true"}
        if labels:
            query["label_selector"] = ",".join(f"{key}={text}" for key, text in labels.items())
        listing = await self._http.get(f"{place.path}/servers", _Servers, query)
        wanted = (labels or {}).items()
        return [
            server
            for server in listing.items
            if all(server.label(key) == text for key, text in wanted)
        ]

    async def create_server(self, place: Place, order: Mapping[str, Any]) -> Server:
        """Create a server.

        Raises:
            FailedPrecondition: a resource that the request references does not exist.
            ResourceExhausted: a quota is used up.
        """
        path = f"{place.path}/servers"
        with refusals.creation_errors():
            return await self._http.send("POST", path, order, Server)

    async def set_labels(self, place: Place, server_id: str, labels: Mapping[str, str]) -> Server:
        """Set the labels of a server; they replace all existing labels."""
        path = f"{place.path}/servers/{server_id}"
        return await self._http.send("PATCH", path, {"labels": labels}, Server)

    async def delete_server(self, place: Place, server_id: str) -> None:
        """Start the deletion of a server. Raises `NotFound` if it is gone."""
        await self._http.request("DELETE", f"{place.path}/servers/{server_id}")

    async def nics(self, place: Place, server_id: str) -> Sequence[Nic]:
        """Return the NICs of a server."""
        path = f"{place.path}/servers/{server_id}/nics"
        return (await self._http.get(path, _Nics)).items

    async def set_allowed_addresses(self, place: Place, nic: Nic, addresses: Sequence[str]) -> None:
        """Set the addresses from which a NIC may send; they replace all existing addresses."""
        path = f"{place.path}/networks/{nic.network_id}/nics/{nic.id}"
        await self._http.send("PATCH", path, {"allowedAddresses": list(addresses)}, Nic)

    async def exists(self, place: Place, path: str) -> bool:
        """Return whether a resource, such as `networks/<ID>`, exists; sends one request."""
        try:
            await self._http.request("GET", f"{place.path}/{path}")
        except cloud.NotFound:
            return False
        return True

    # --- waits: each call makes one request and never sleeps ------------------------------------

    async def wait_until_server_running(self, place: Place, server_id: str) -> Server:
        """Return the server if it is ACTIVE or ERROR: one request, without waiting.

        Raises:
            RetryAfter: the server is in another state; call again after the delay.
            NotFound: the server does not exist.
        """
        server = await self.server(place, server_id)
        if server.status not in ("ACTIVE", "ERROR"):
            text = f"server {server_id} is {server.status}, not ACTIVE yet"
            raise cloud.RetryAfter(text, seconds=RETRY_S)
        return server

    async def wait_until_server_deleted(self, place: Place, server_id: str) -> None:
        """Check that the server is gone: one request, without waiting.

        Raises:
            RetryAfter: the server still exists; call again after the delay.
        """
        try:
            server = await self.server(place, server_id)
        except cloud.NotFound:
            return
        if server.status != "DELETED":
            text = f"server {server_id} is {server.status}, not deleted yet"
            raise cloud.RetryAfter(text, seconds=RETRY_S)


@contextlib.asynccontextmanager
async def open_client(url: str, authorizer: rest.Authorizer) -> AsyncIterator[Client]:
    """Open a client with its own connection pool."""
    async with rest.open_client(
        url,
        refusal=refusals.iaas,
        codes=refusals.CODES,
        statuses=refusals.STATUSES,
        authorization=authorizer,
    ) as http:
        yield Client(http)
