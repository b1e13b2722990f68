"""Client of the load balancer API: wire types and calls. See `iaas` for the conventions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec

from ccm import cloud
from ccm.cloud import rest

from . import refusals

PAGE_SIZE = "100"


class IdleTimeout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Idle time-out of connections, such as `3600s`."""

    idle_timeout: str | None = None


class Listener(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Listener, and the name of its target pool."""

    display_name: str | None = None
    port: int
    protocol: str
    target_pool: str | None = None
    tcp: IdleTimeout | None = None
    udp: IdleTimeout | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Member of a target pool."""

    display_name: str | None = None
    ip: str | None = None


class Persistence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Session affinity by source address."""

    use_source_ip_address: bool = False


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Target pool, with the port of its targets."""

    name: str
    target_port: int
    targets: tuple[Target, ...] | None = None
    session_persistence: Persistence | None = None
    active_health_check: Any = None


class Network(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Network of a load balancer, and the role of the load balancer there."""

    network_id: str
    role: str | None = None


class AccessControl(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Allowed source ranges; empty = all sources."""

    allowed_source_ranges: tuple[str, ...] | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Destination of the metrics."""

    credentials_ref: str | None = None
    push_url: str | None = None


class Observability(msgspec.Struct, frozen=True, kw_only=True):
    """Export of metrics and logs."""

    metrics: Metrics | None = None
    logs: Any = None


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Further options of a load balancer."""

    access_control: AccessControl | None = None
    ephemeral_address: bool = False
    private_network_only: bool = False
    observability: Observability | None = None


class BalancerError(msgspec.Struct, frozen=True):
    """Error of a load balancer."""

    type: str = ""
    description: str = ""


class Balancer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Load balancer; only the fields that the provider reads."""

    name: str
    version: str | None = None
    status: str | None = None
    errors: tuple[BalancerError, ...] | None = None
    external_address: str | None = None
    private_address: str | None = None
    labels: dict[str, str] | None = None
    listeners: tuple[Listener, ...] | None = None
    networks: tuple[Network, ...] | None = None
    options: Options | None = None
    plan_id: str | None = None
    target_pools: tuple[Pool, ...] | None = None
    disable_target_security_group_assignment: bool | None = None

    @property
    def metrics(self) -> Metrics | None:
        """Destination of the load balancer's metrics, if any."""
        observability = self.options and self.options.observability
        return observability.metrics if observability else None

    def label(self, name: str) -> str:
        """Return a label; empty if it is missing."""
        return (self.labels or {}).get(name, "")


class _Balancers(msgspec.Struct, frozen=True, rename="camel"):
    load_balancers: tuple[Balancer, ...]
    next_page_id: str | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Credentials for pushing a load balancer's metrics, without the password."""

    credentials_ref: str
    display_name: str | None = None
    username: str | None = None


class _Credentials(msgspec.Struct, frozen=True):
    credentials: tuple[Credential, ...]


class _CredentialResponse(msgspec.Struct, frozen=True):
    credential: Credential


class Client:
    """Client for the API in one project and region; opened by `open_client`."""

    def __init__(self, http: rest.RestClient, project_id: str, region: str) -> None:
        self._http = http
        self._place = f"/v2/projects/{project_id}/regions/{region}"

    def _path(self, *parts: str) -> str:
        # Names contain Service names; quoting keeps each name one path segment.
        return "/".join((self._place, *(quote(part, safe="") for part in parts)))

    async def balancer(self, name: str) -> Balancer | None:
        """Return the load balancer with a name; None if there is none.

        Sends one request; after a 404 without body, it also lists the load balancers.
        """
        try:
            balancer = await self._http.get(self._path("load-balancers", name), Balancer)
        except refusals.UnconfirmedNotFound:
            # A proxy may also send a 404 without body. Only the listing proves the absence.
            return next((listed for listed in await self.balancers() if listed.name == name), None)
        except cloud.NotFound:
            return None
        if balancer.name != name:
            raise cloud.Unknown(f"requested load balancer {name}, got {balancer.name}")
        return balancer

    async def balancers(self) -> list[Balancer]:
        """Return all load balancers: one request per page."""

        def after(page: _Balancers) -> Mapping[str, str] | None:
            return {"pageId": page.next_page_id} if page.next_page_id else None

        path, query = f"{self._place}/load-balancers", {"pageSize": PAGE_SIZE}
        pages = self._http.pages(path, _Balancers, query, after=after)
        return [balancer async for page in pages for balancer in page.load_balancers]

    async def create(self, order: Mapping[str, Any]) -> Balancer:
        """Create a load balancer. Raises `Aborted` if the name is taken."""
        path = f"{self._place}/load-balancers"
        with refusals.creation_errors():
            return await self._http.send("POST", path, order, Balancer, headers=_request_id())

    async def replace(self, name: str, order: Mapping[str, Any]) -> Balancer:
        """Replace a load balancer. Raises `Aborted` if the version is outdated."""
        return await self._http.send("PUT", self._path("load-balancers", name), order, Balancer)

    async def replace_pool(self, name: str, pool: Mapping[str, Any]) -> None:
        """Replace one target pool of a load balancer."""
        path = self._path("load-balancers", name, "target-pools", pool["name"])
        await self._http.send("PUT", path, pool, Pool)

    async def delete(self, name: str) -> None:
        """Start the deletion of a load balancer; a missing one is not an error."""
        with contextlib.suppress(cloud.NotFound):
            await self._http.request("DELETE", self._path("load-balancers", name))

    async def credentials(self) -> Sequence[Credential]:
        """Return all credentials for pushing metrics."""
        path = f"{self._place}/credentials"
        return (await self._http.get(path, _Credentials)).credentials

    async def create_credentials(self, body: Mapping[str, str]) -> str:
        """Create credentials and return their reference."""
        path = f"{self._place}/credentials"
        created = await self._http.send(
            "POST", path, body, _CredentialResponse, headers=_request_id()
        )
        return created.credential.credentials_ref

    async def replace_credentials(self, ref: str, body: Mapping[str, str]) -> None:
        """Replace name, user and password of credentials."""
        await self._http.send("PUT", self._path("credentials", ref), body, _CredentialResponse)

    async def delete_credentials(self, ref: str) -> None:
        """Delete credentials; missing credentials are not an error."""
        with contextlib.suppress(cloud.NotFound):
            await self._http.request("DELETE", self._path("credentials", ref))


def _request_id() -> Mapping[str, str]:
    return {"X-Request-ID": str(uuid4())}


@contextlib.asynccontextmanager
async def open_client(
    url: str, authorizer: rest.Authorizer, *, project_id: str, region: str
) -> AsyncIterator[Client]:
    """Open a client with its own connection pool."""
    async with rest.open_client(
        url,
        refusal=refusals.balancers,
        codes=refusals.CODES,
        statuses=refusals.STATUSES,
        authorization=authorizer,
        success={"GET": 200, "POST": 200, "PUT": 200, "DELETE": 200},
    ) as http:
        yield Client(http, project_id, region)
