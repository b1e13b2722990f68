"""The client of the IaaS API: its wire types, and its calls.

Everything about HTTP is done by `ccm.cloud.rest`. Each method raises `CloudError` classes only.
Unknown fields are skipped, and words of the API that may become more are read as text. Nothing here
has pages: a listing is one answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ccm import cloud
from ccm.cloud import rest

from . import refusals

AGAIN_S = 5.0
"""After so long it is asked again whether a server is there, or gone."""


class Nic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network card, as a list of them has it."""

    id: str
    network_id: str = ""
    ipv4: str | None = None
    ipv6: str | None = None
    allowed_addresses: tuple[str, ...] | None = None


class ServerNic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network card, as its server has it when details are asked for."""

    nic_id: str = ""
    network_id: str = ""
    network_name: str = ""
    ipv4: str | None = None
    ipv6: str | None = None
    public_ip: str | None = None
    allowed_addresses: tuple[str, ...] | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A server, with the fields we use; there may be states that we do not know."""

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
        """A label; empty without one, or where it is no text."""
        found = (self.labels or {}).get(name)
        return found if isinstance(found, str) else ""


class Place(NamedTuple):
    """Where servers are."""

    project: str
    region: str

    @property
    def path(self) -> str:
        """What all paths there begin with."""
        return f"/v2/projects/{self.project}/regions/{self.region}"


class _Servers(msgspec.Struct, frozen=True):
    items: tuple[Server, ...]  # one without this field is broken, lest nothing be there


class _Nics(msgspec.Struct, frozen=True):
    items: tuple[Nic, ...]


class Client:
    """Calls of the API; use `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def server(self, place: Place, server_id: str) -> Server:
        """One server with its network cards; `NotFound` if there is none."""
        path = f"{place.path}/servers/{server_id}"
        found = await self._http.get(path, Server, {"details": "true"})
        if found.id.lower() != server_id.lower():
            raise cloud.Unknown(f"asked for server {server_id}, got {found.id}")
        return found

    async def servers(self, place: Place, labels: Mapping[str, str] | None = None) -> list[Server]:
        """All servers with their network cards, or those with labels; one request."""
        query = {"details": "true"}
        if labels:
            query["label_selector"] = ",".join(f"{key}={text}" for key, text in labels.items())
        found = await self._http.get(f"{place.path}/servers", _Servers, query)
        wanted = (labels or {}).items()
        return [one for one in found.items if all(one.label(key) == text for key, text in wanted)]

    async def create_server(self, place: Place, order: Mapping[str, Any]) -> Server:
        """Order a server.

        Raises:
            FailedPrecondition: something that the order names is not there.
            ResourceExhausted: a quota is used up.
        """
        path = f"{place.path}/servers"
        with refusals.of_order():
            return await self._http.send("POST", path, order, Server)

    async def delete_server(self, place: Place, server_id: str) -> None:
        """Begin to take a server away; `NotFound` if it is gone."""
        await self._http.request("DELETE", f"{place.path}/servers/{server_id}")

    async def nics(self, place: Place, server_id: str) -> Sequence[Nic]:
        """The network cards of a server."""
        path = f"{place.path}/servers/{server_id}/nics"
        return (await self._http.get(path, _Nics)).items

    async def allow(self, place: Place, nic: Nic, addresses: Sequence[str]) -> None:
        """Let a network card send from addresses, these and no others."""
        path = f"{place.path}/networks/{nic.network_id}/nics/{nic.id}"
        await self._http.send("PATCH", path, {"allowedAddresses": list(addresses)}, Nic)

    async def exists(self, place: Place, path: str) -> bool:
        """Whether a thing is there, such as `networks/<ID>`; one request."""
        try:
            await self._http.request("GET", f"{place.path}/{path}")
        except cloud.NotFound:
            return False
        return True

    # --- waits, each of one step ----------------------------------------------------------------

    async def wait_until_server_running(self, place: Place, server_id: str) -> Server:
        """The server, once it runs or has failed; one request, and nothing waits.

        Raises:
            RetryAfter: it is on its way; called again then.
            NotFound: it is gone.
        """
        found = await self.server(place, server_id)
        if found.status not in ("ACTIVE", "ERROR"):
            text = f"server {server_id} is {found.status}, not ACTIVE yet"
            raise cloud.RetryAfter(text, seconds=AGAIN_S)
        return found

    async def wait_until_server_deleted(self, place: Place, server_id: str) -> None:
        """Return once it is gone; one request, and nothing waits.

        Raises:
            RetryAfter: it is still there; called again then.
        """
        try:
            found = await self.server(place, server_id)
        except cloud.NotFound:
            return
        if found.status != "DELETED":
            text = f"server {server_id} is {found.status}, and not gone yet"
            raise cloud.RetryAfter(text, seconds=AGAIN_S)


@contextlib.asynccontextmanager
async def open_client(url: str, authorizer: rest.Authorizer) -> AsyncIterator[Client]:
    """A client with its own connections."""
    async with rest.open_client(
        url,
        refusal=refusals.iaas,
        codes=refusals.CODES,
        statuses=refusals.STATUSES,
        authorization=authorizer,
    ) as http:
        yield Client(http)
