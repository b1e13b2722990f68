"""The client of the simulated cloud: its wire types, its words for errors, and its calls.

Everything about HTTP is done by `ccm.cloud.rest`. Each method raises `CloudError` classes only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from ccm import cloud
from ccm.base.credentials import header_value
from ccm.base.parsing import parse_url
from ccm.cloud import rest


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


T = TypeVar("T")


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error


@functools.cache
def _page(items: Any) -> Any:
    # One without a cursor is broken, lest a listing be cut short silently.
    return msgspec.defstruct("_Page", [items, ("next_cursor", str | None)], frozen=True)


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
        return await self._all("instances", Server, query)

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
        return (await self._all("volumes", Volume, {"label": "=".join(label)}))[0]

    async def create_volume(self, order: VolumeOrder) -> Volume:
        """Order a volume."""
        return await self._http.send("POST", "/v1/volumes", order, Volume)

    async def delete_volume(self, volume_id: str) -> None:
        """Delete a volume; `NotFound` if it is gone, `RetryAfter` while it is attached."""
        await self._http.request("DELETE", f"/v1/volumes/{volume_id}")

    async def balancer(self, name: str) -> Balancer | None:
        """The load balancer of that name, whosever it is; None if there is none."""
        found, _ = await self._all("balancers", Balancer, {"name": name})
        return next(iter(found), None)

    async def balancers(self, cluster: str) -> list[Balancer]:
        """All load balancers of a cluster."""
        return (await self._all("balancers", Balancer, {"cluster": cluster}))[0]

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
        return (await self._all("routes", Route, {"cluster": cluster}))[0]

    async def create_route(self, order: NewRoute) -> Route:
        """Order a route; `AlreadyExists` if the range has one."""
        return await self._http.send("POST", "/v1/routes", order, Route)

    async def delete_route(self, route_id: str) -> None:
        """Delete a route; `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/routes/{quote(route_id, safe='')}")

    async def _all(
        self, table: str, kind: type[T], query: Mapping[str, str]
    ) -> tuple[list[T], int]:
        """All of a kind that the query asks for, and how many requests it took."""

        def after(page: Any) -> Mapping[str, str] | None:
            return None if page.next_cursor is None else {"cursor": page.next_cursor}

        query = {"limit": str(PAGE_LIMIT), **query}
        items: Any = (table, tuple.__class_getitem__((kind, ...)))
        pages = await self._http.pages(f"/v1/{table}", _page(items), query, after=after)
        return [one for page in pages for one in getattr(page, table)], len(pages)


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


def _refusal(body: bytes) -> rest.Refusal:
    said = msgspec.json.decode(body, type=_ErrorAnswer).error
    return rest.Refusal(said.code, f"{said.message} ({said.request_id})")
