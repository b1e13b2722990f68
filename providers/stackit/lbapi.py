"""The client of the load balancer API: its wire types, and its calls; see `iaas`."""

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


class Idle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """After what time an idle connection is closed, such as `3600s`."""

    idle_timeout: str | None = None


class Listener(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a load balancer listens, and which pool gets the traffic."""

    display_name: str | None = None
    port: int
    protocol: str
    target_pool: str | None = None
    tcp: Idle | None = None
    udp: Idle | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A member of a pool."""

    display_name: str | None = None
    ip: str | None = None


class Persistence(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether a client stays with its target."""

    use_source_ip_address: bool = False


class Pool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Targets, and the port where they listen."""

    name: str
    target_port: int
    targets: tuple[Target, ...] | None = None
    session_persistence: Persistence | None = None
    active_health_check: Any = None


class Network(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A network, and what a load balancer has there."""

    network_id: str
    role: str | None = None


class AccessControl(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who may use it; nobody named = everybody."""

    allowed_source_ranges: tuple[str, ...] | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where metrics go."""

    credentials_ref: str | None = None
    push_url: str | None = None


class Observability(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of it."""

    metrics: Metrics | None = None
    logs: Any = None


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything else."""

    access_control: AccessControl | None = None
    ephemeral_address: bool = False
    private_network_only: bool = False
    observability: Observability | None = None


class Trouble(msgspec.Struct, frozen=True):
    """What is wrong with a load balancer."""

    type: str = ""
    description: str = ""


class Balancer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A load balancer, with the fields we use."""

    name: str
    version: str | None = None
    status: str | None = None
    errors: tuple[Trouble, ...] | None = None
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
        """Where its metrics go."""
        said = self.options and self.options.observability
        return said.metrics if said else None

    def label(self, name: str) -> str:
        """A label; empty without one."""
        return (self.labels or {}).get(name, "")


class _Balancers(msgspec.Struct, frozen=True, rename="camel"):
    load_balancers: tuple[Balancer, ...]
    next_page_id: str | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Credentials of observability, without the password."""

    credentials_ref: str
    display_name: str | None = None
    username: str | None = None


class _Credentials(msgspec.Struct, frozen=True):
    credentials: tuple[Credential, ...]


class _Credential(msgspec.Struct, frozen=True):
    credential: Credential


class Client:
    """Calls of the API in one project and region; use `open_client`."""

    def __init__(self, http: rest.RestClient, project_id: str, region: str) -> None:
        self._http = http
        self._place = f"/v2/projects/{project_id}/regions/{region}"

    def _path(self, *parts: str) -> str:
        # Names of Services and their ports are in it, and stay one part each.
        return "/".join((self._place, *(quote(part, safe="") for part in parts)))

    async def balancer(self, name: str) -> Balancer | None:
        """One by its name; None if there is none. One request, or two where nothing is said."""
        try:
            found = await self._http.get(self._path("load-balancers", name), Balancer)
        except refusals.SilentAbsence:
            # A proxy may say as much. The listing is the API's own word.
            return next((one for one in await self.balancers() if one.name == name), None)
        except cloud.NotFound:
            return None
        if found.name != name:
            raise cloud.Unknown(f"asked for load balancer {name}, got {found.name}")
        return found

    async def balancers(self) -> list[Balancer]:
        """All of them; one request for each page."""

        def after(page: _Balancers) -> Mapping[str, str] | None:
            return {"pageId": page.next_page_id} if page.next_page_id else None

        path, query = f"{self._place}/load-balancers", {"pageSize": PAGE_SIZE}
        pages = await self._http.pages(path, _Balancers, query, after=after)
        return [one for page in pages for one in page.load_balancers]

    async def create(self, order: Mapping[str, Any]) -> Balancer:
        """Order one; `Aborted` if the name is taken."""
        path = f"{self._place}/load-balancers"
        with refusals.of_order():
            return await self._http.send("POST", path, order, Balancer, headers=_request_id())

    async def replace(self, name: str, order: Mapping[str, Any]) -> Balancer:
        """Give one everything anew; `Aborted` if its version is another by now."""
        return await self._http.send("PUT", self._path("load-balancers", name), order, Balancer)

    async def replace_pool(self, name: str, pool: Mapping[str, Any]) -> None:
        """Give one pool of it everything anew."""
        path = self._path("load-balancers", name, "target-pools", pool["name"])
        await self._http.send("PUT", path, pool, Pool)

    async def delete(self, name: str) -> None:
        """Begin to take one away; silent if it is gone."""
        with contextlib.suppress(cloud.NotFound):
            await self._http.request("DELETE", self._path("load-balancers", name))

    async def credentials(self) -> Sequence[Credential]:
        """All credentials of observability."""
        path = f"{self._place}/credentials"
        return (await self._http.get(path, _Credentials)).credentials

    async def create_credentials(self, said: Mapping[str, str]) -> str:
        """Put some down; their reference."""
        path = f"{self._place}/credentials"
        found = await self._http.send("POST", path, said, _Credential, headers=_request_id())
        return found.credential.credentials_ref

    async def replace_credentials(self, ref: str, said: Mapping[str, str]) -> None:
        """Give them another password."""
        await self._http.send("PUT", self._path("credentials", ref), said, _Credential)

    async def delete_credentials(self, ref: str) -> None:
        """Take them away; silent if they are gone."""
        with contextlib.suppress(cloud.NotFound):
            await self._http.request("DELETE", self._path("credentials", ref))


def _request_id() -> Mapping[str, str]:
    return {"X-Request-ID": str(uuid4())}


@contextlib.asynccontextmanager
async def open_client(
    url: str, authorizer: rest.Authorizer, *, project_id: str, region: str
) -> AsyncIterator[Client]:
    """A client with its own connections."""
    async with rest.open_client(
        url,
        refusal=refusals.balancers,
        codes=refusals.CODES,
        statuses=refusals.STATUSES,
        authorization=authorizer,
        success={"GET": 200, "POST": 200, "PUT": 200, "DELETE": 200},
    ) as http:
        yield Client(http, project_id, region)
