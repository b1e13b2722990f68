"""The client of the simulated cloud: its wire types, its words for errors, and its calls.

Everything about HTTP is done by `ccm.cloud.rest`. Each method raises `CloudError` classes only.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from ccm import cloud
from ccm.base.credentials import header_value
from ccm.cloud import rest


def parse_url(text: str) -> str:
    """The text without a slash at the end; ValueError if it is no address of an HTTP server."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(text)
    return text.rstrip("/")


def url_of(environ: Mapping[str, str]) -> str:
    """Return the address that `SIM_URL` has, where no cloud config says it. Raises ConfigError."""
    text = environ.get("SIM_URL", "")
    try:
        return parse_url(text)
    except ValueError:
        raise cloud.ConfigError(
            f"SIM_URL is {text!r}; it must look like http://host:port, as `python -m "
            "providers.sim` prints it"
        ) from None


class Config(cloud.Settings, frozen=True, kw_only=True):
    """A valid configuration."""

    url: Annotated[
        str,
        cloud.setting(
            "Where the API is, as `python -m providers.sim` prints it.",
            parse=parse_url,
            expects="look like http://host:port",
        ),
    ]
    token: Annotated[
        str,
        cloud.setting(
            "The bearer token, printed with the URL.",
            secret=True,
            file="token_file",
            parse=header_value,
        ),
    ]
    # Half the daemon's deadline for one question.
    timeout: Annotated[
        timedelta, cloud.setting("For one request, from connecting to the last byte.")
    ] = timedelta(seconds=30)
    connect_timeout: Annotated[timedelta, cloud.setting("For getting a connection.")] = timedelta(
        seconds=5
    )


PAGE_LIMIT = 500
"""Items to ask for at once; the most the cloud gives."""

MARKS = "kube-ccm/"
"""Labels below it say whose an instance is; they are no labels of a node."""

MARK_CLUSTER = f"{MARKS}cluster"
MARK_NAMESPACE = f"{MARKS}namespace"
MARK_POOL = f"{MARKS}pool"
MARK_NAME = f"{MARKS}name"
MARK_UID = f"{MARKS}uid"
MARK_VOLUME = f"{MARKS}volume"

CODES: Mapping[str, type[cloud.CloudError]] = {
    "not_found": cloud.NotFound,
    "busy": cloud.RetryAfter,
    "conflict": cloud.AlreadyExists,
    "protected": cloud.FailedPrecondition,
    "quota_exceeded": cloud.ResourceExhausted,
    "no_capacity": cloud.ResourceExhausted,
}
"""The cloud's own words that say more than the status."""


class Address(msgspec.Struct, frozen=True):
    """One address; kinds may come that we do not know."""

    kind: str
    value: str


class Server(msgspec.Struct, frozen=True):
    """An instance, with the fields we use; states may come that we do not know."""

    id: str
    name: str
    state: str
    type: str = ""
    zone: str = ""
    region: str = ""
    addresses: tuple[Address, ...] = ()
    labels: dict[str, str] = {}
    created: str = ""
    allowed_addresses: tuple[str, ...] = ()
    reason: str = ""


class ServerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new instance; an order with a `token` that was used already is the one before."""

    name: str
    type: str
    zone: str
    region: str
    labels: dict[str, str]
    token: str
    user_data: str
    volumes: Sequence[str]


class VolumeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new volume."""

    name: str
    size_gib: int
    labels: dict[str, str]


class Volume(VolumeOrder, frozen=True, kw_only=True):
    """A volume as it is; `instance` is the ID of the one that has it, or empty."""

    id: str
    instance: str = ""


class Listener(msgspec.Struct, frozen=True, order=True):
    """Traffic to `port` goes to `target_port` of a member."""

    protocol: str
    port: int
    target_port: int


class HealthCheck(msgspec.Struct, frozen=True):
    """HTTP GET of `path`, or without one a TCP connection."""

    port: int
    path: str = ""
    interval_s: float = 10.0


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a load balancer is made of, its members apart."""

    listeners: tuple[Listener, ...]
    health_check: HealthCheck | None = None
    source_ranges: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    internal: bool = False
    size: str = ""
    sticky_s: int = 0


class Order(Recipe, frozen=True, kw_only=True):
    """A new load balancer."""

    name: str
    cluster: str


class Ingress(msgspec.Struct, frozen=True):
    """One address of a load balancer."""

    family: str
    ip: str


class Balancer(Order, frozen=True, kw_only=True):
    """A load balancer as it is; states may come that we do not know."""

    id: str
    state: str
    reason: str = ""
    ready_in_s: float = 0.0
    ingress: tuple[Ingress, ...] = ()
    members: tuple[str, ...] = ()


class NewRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A new route."""

    destination: str
    gateway: str
    cluster: str
    name: str


class Route(NewRoute, frozen=True, kw_only=True):
    """A route as it is; without a target it leads nowhere."""

    id: str
    target_name: str | None


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    # One without this field is broken, lest a listing be cut short silently.
    next_cursor: str | None


class _Servers(_Page, frozen=True, kw_only=True):
    instances: tuple[Server, ...]


class _Volumes(_Page, frozen=True, kw_only=True):
    volumes: tuple[Volume, ...]


class _Balancers(_Page, frozen=True, kw_only=True):
    balancers: tuple[Balancer, ...]


class _Routes(_Page, frozen=True, kw_only=True):
    routes: tuple[Route, ...]


P = TypeVar("P", bound=_Page)


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error


class Client:
    """Calls of the simulated cloud; use `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def server(self, instance_id: str) -> Server:
        """One instance by its ID, which must be safe in a path; `NotFound` if there is none."""
        found = await self._http.get(f"/v1/instances/{instance_id}", Server)
        if found.id != instance_id:
            raise cloud.Unknown(f"asked for instance {instance_id}, got {found.id!r}")
        return found

    async def servers(
        self, name: str | None = None, *, label: tuple[str, str] | None = None
    ) -> tuple[list[Server], int]:
        """All instances, those of one name or with one label, and how many requests it took."""
        query = {} if name is None else {"name": name}
        if label is not None:
            query["label"] = "=".join(label)
        pages = await self._pages("/v1/instances", _Servers, query)
        return [one for page in pages for one in page.instances], len(pages)

    async def create_server(self, order: ServerOrder) -> Server:
        """Order an instance; `ResourceExhausted` if there is no room."""
        return await self._http.send("POST", "/v1/instances", order, Server)

    async def allow_addresses(self, instance_id: str, ranges: Sequence[str]) -> Server:
        """Let an instance send from these ranges too; `RetryAfter` while it starts."""
        body = {"allowed_addresses": ranges}
        return await self._http.send("PATCH", f"/v1/instances/{instance_id}", body, Server)

    async def delete_server(self, instance_id: str) -> None:
        """Delete an instance, which may take a while; `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/instances/{instance_id}")

    async def volumes(self, label: tuple[str, str]) -> list[Volume]:
        """All volumes with one label."""
        pages = await self._pages("/v1/volumes", _Volumes, {"label": "=".join(label)})
        return [one for page in pages for one in page.volumes]

    async def create_volume(self, order: VolumeOrder) -> Volume:
        """Order a volume."""
        return await self._http.send("POST", "/v1/volumes", order, Volume)

    async def delete_volume(self, volume_id: str) -> None:
        """Delete a volume; `NotFound` if it is gone, `RetryAfter` while it is attached."""
        await self._http.request("DELETE", f"/v1/volumes/{volume_id}")

    async def balancer(self, name: str) -> Balancer | None:
        """The load balancer of that name, whosever it is; None if there is none."""
        pages = await self._pages("/v1/balancers", _Balancers, {"name": name})
        return next((one for page in pages for one in page.balancers), None)

    async def balancers(self, cluster: str) -> list[Balancer]:
        """All load balancers of a cluster."""
        pages = await self._pages("/v1/balancers", _Balancers, {"cluster": cluster})
        return [one for page in pages for one in page.balancers]

    async def create_balancer(self, order: Order) -> Balancer:
        """Order a load balancer; `AlreadyExists` if the name is taken."""
        return await self._http.send("POST", "/v1/balancers", order, Balancer)

    async def change_balancer(self, balancer_id: str, recipe: Recipe) -> Balancer:
        """Make a load balancer anew, its name and members apart."""
        return await self._http.send("PUT", f"/v1/balancers/{balancer_id}", recipe, Balancer)

    async def set_members(self, balancer_id: str, members: Sequence[str]) -> Balancer:
        """Replace the members of a load balancer."""
        path = f"/v1/balancers/{balancer_id}/members"
        return await self._http.send("PUT", path, {"members": members}, Balancer)

    async def delete_balancer(self, balancer_id: str) -> None:
        """Delete a load balancer; `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/balancers/{balancer_id}")

    async def routes(self, cluster: str) -> list[Route]:
        """All routes of a cluster."""
        pages = await self._pages("/v1/routes", _Routes, {"cluster": cluster})
        return [one for page in pages for one in page.routes]

    async def create_route(self, order: NewRoute) -> Route:
        """Order a route; `AlreadyExists` if the range has one."""
        return await self._http.send("POST", "/v1/routes", order, Route)

    async def delete_route(self, route_id: str) -> None:
        """Delete a route; `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/routes/{quote(route_id, safe='')}")

    async def _pages(self, path: str, page: type[P], query: Mapping[str, str]) -> list[P]:
        query = {"limit": str(PAGE_LIMIT), **query}
        return await self._http.pages(path, page, query, after=_after)


@contextlib.asynccontextmanager
async def open_client(settings: Config) -> AsyncIterator[Client]:
    """A client with its own pool of connections, closed with the context."""
    async with rest.open_client(
        settings.url,
        refusal=_refusal,
        codes=CODES,
        authorization=f"Bearer {settings.token}",
        timeout_s=settings.timeout.total_seconds(),
        connect_timeout_s=settings.connect_timeout.total_seconds(),
    ) as http:
        yield Client(http)


def _after(page: _Page) -> Mapping[str, str] | None:
    return None if page.next_cursor is None else {"cursor": page.next_cursor}


def _refusal(body: bytes) -> rest.Refusal:
    said = msgspec.json.decode(body, type=_ErrorAnswer).error
    return rest.Refusal(said.code, f"{said.message} ({said.request_id})")
