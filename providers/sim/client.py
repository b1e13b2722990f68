"""Client of the simulated cloud: wire types, error codes and calls.

`ccm.cloud.rest` sends all HTTP requests. Every method raises only `CloudError` classes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from ccm import cloud
from ccm.base.credentials import check_header_value
from ccm.base.parsing import parse_url
from ccm.cloud import rest


def read_url(environ: Mapping[str, str]) -> str:
    """Return the address in `SIM_URL`, for use without a cloud config. Raises ConfigError."""
    text = environ.get("SIM_URL", "")
    try:
        return parse_url(text)
    except ValueError:
        raise cloud.ConfigError(
            f"SIM_URL is {text!r}; it must look like http://host:port, as printed by "
            "`python -m providers.sim`"
        ) from None


class Config(cloud.Settings, frozen=True, kw_only=True):
    """Cloud config of the simulated cloud."""

    url: Annotated[
        str,
        cloud.setting(
            "URL of the API, as printed by `python -m providers.sim`.",
            parse=parse_url,
            expects="look like http://host:port",
        ),
    ]
    token: Annotated[
        str,
        cloud.setting(
            "Bearer token, printed with the URL.",
            secret=True,
            file="token_file",
            parse=check_header_value,
        ),
    ]
    # Half the daemon's deadline for one call.
    timeout: Annotated[
        timedelta, cloud.setting("Timeout of a request, from connecting to the last byte.")
    ] = timedelta(seconds=30)
    connect_timeout: Annotated[timedelta, cloud.setting("Timeout of connecting.")] = timedelta(
        seconds=5
    )


PAGE_LIMIT = 500
"""Page size of list requests: the cloud's maximum."""

BALANCER_PAGE_LIMIT = 20
"""The same for load balancers: one with 15,000 members has 250 KB."""

MARK_PREFIX = "kube-ccm/"
"""Prefix of the labels that record which machine owns an instance. They never become node labels.
"""

MARK_CLUSTER = f"{MARK_PREFIX}cluster"
MARK_NAMESPACE = f"{MARK_PREFIX}namespace"
MARK_POOL = f"{MARK_PREFIX}pool"
MARK_NAME = f"{MARK_PREFIX}name"
MARK_UID = f"{MARK_PREFIX}uid"
MARK_VOLUME = f"{MARK_PREFIX}volume"

CODES: Mapping[str, type[cloud.CloudError]] = {
    "not_found": cloud.NotFound,
    "busy": cloud.RetryAfter,
    "conflict": cloud.AlreadyExists,
    "protected": cloud.FailedPrecondition,
    "quota_exceeded": cloud.ResourceExhausted,
    "no_capacity": cloud.ResourceExhausted,
}
"""Error codes of the cloud that are more specific than the HTTP status."""


class Address(msgspec.Struct, frozen=True):
    """Address of an instance. `kind` may have unknown values."""

    kind: str
    value: str


class Server(msgspec.Struct, frozen=True):
    """Instance; only the fields that the provider reads. `state` may have unknown values."""

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
    """Request that creates an instance.

    While the instance exists, another request with the same `token` returns that instance.
    """

    name: str
    type: str
    zone: str
    region: str
    labels: dict[str, str]
    token: str
    user_data: str
    volumes: Sequence[str]


class VolumeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Request that creates a volume."""

    name: str
    size_gib: int
    labels: dict[str, str]


class Volume(VolumeOrder, frozen=True, kw_only=True):
    """Volume; `instance` is the ID of the instance it is attached to, or empty."""

    id: str
    instance: str = ""


class Listener(msgspec.Struct, frozen=True, order=True):
    """Forwarding rule: traffic to `port` goes to `target_port` of a member."""

    protocol: str
    port: int
    target_port: int


class HealthCheck(msgspec.Struct, frozen=True):
    """Health check of members: HTTP GET of `path`, or a TCP connection if `path` is empty."""

    port: int
    path: str = ""
    interval_s: float = 10.0


class BalancerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a load balancer, without its members."""

    listeners: tuple[Listener, ...]
    health_check: HealthCheck | None = None
    source_ranges: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    internal: bool = False
    size: str = ""
    sticky_s: int = 0


class BalancerOrder(BalancerSpec, frozen=True, kw_only=True):
    """Request that creates a load balancer."""

    name: str
    cluster: str


class Ingress(msgspec.Struct, frozen=True):
    """Address of a load balancer."""

    family: str
    ip: str


class BalancerSummary(BalancerOrder, frozen=True, kw_only=True):
    """Load balancer without its members. `state` may have unknown values."""

    id: str
    state: str
    reason: str = ""
    ready_in_s: float = 0.0
    ingress: tuple[Ingress, ...] = ()


class Balancer(BalancerSummary, frozen=True, kw_only=True):
    """Load balancer."""

    members: tuple[str, ...] = ()


class NewRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Request that creates a route."""

    destination: str
    gateway: str
    cluster: str
    name: str


class Route(NewRoute, frozen=True, kw_only=True):
    """Route; a route without `target_name` is a blackhole."""

    id: str
    target_name: str | None


T = TypeVar("T")


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: _Error


@functools.cache
def _page(items: Any) -> Any:
    # `next_cursor` is required: a page that lacks it must fail, not end the listing early.
    return msgspec.defstruct("_Page", [items, ("next_cursor", str | None)], frozen=True)


class Client:
    """Client for the API of the simulated cloud; opened by `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def server(self, instance_id: str) -> Server:
        """Return the instance with an ID, which must be safe in a URL path. Raises `NotFound`."""
        server = await self._http.get(f"/v1/instances/{instance_id}", Server)
        if server.id != instance_id:
            raise cloud.Unknown(f"requested instance {instance_id}, got {server.id!r}")
        return server

    async def servers(
        self, name: str | None = None, *, label: tuple[str, str] | None = None
    ) -> tuple[list[Server], int]:
        """Return all instances, or those with a name or label, and the number of requests."""
        query = {} if name is None else {"name": name}
        if label is not None:
            query["label"] = "=".join(label)
        return await self._list("instances", Server, query)

    async def create_server(self, order: ServerOrder) -> Server:
        """Create an instance. Raises `ResourceExhausted` if quota or zone capacity is used up."""
        return await self._http.send("POST", "/v1/instances", order, Server)

    async def allow_addresses(self, instance_id: str, ranges: Sequence[str]) -> Server:
        """Set the CIDRs from which an instance may send, besides its own addresses.

        Raises `RetryAfter` while the instance starts.
        """
        body = {"allowed_addresses": ranges}
        return await self._http.send("PATCH", f"/v1/instances/{instance_id}", body, Server)

    async def set_labels(self, instance_id: str, labels: Mapping[str, str]) -> Server:
        """Set labels of an instance; other labels stay."""
        return await self._http.send(
            "PATCH", f"/v1/instances/{instance_id}", {"labels": labels}, Server
        )

    async def delete_server(self, instance_id: str) -> None:
        """Start the deletion of an instance. Raises `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/instances/{instance_id}")

    async def volumes(self, label: tuple[str, str]) -> list[Volume]:
        """Return all volumes with a label."""
        return (await self._list("volumes", Volume, {"label": "=".join(label)}))[0]

    async def create_volume(self, order: VolumeOrder) -> Volume:
        """Create a volume."""
        return await self._http.send("POST", "/v1/volumes", order, Volume)

    async def delete_volume(self, volume_id: str) -> None:
        """Delete a volume. Raises `NotFound` if it is gone, `RetryAfter` while it is attached."""
        await self._http.request("DELETE", f"/v1/volumes/{volume_id}")

    async def balancer(self, name: str) -> Balancer | None:
        """Return the load balancer with a name, of any cluster; None if there is none."""
        balancers, _ = await self._list("balancers", Balancer, {"name": name})
        return next(iter(balancers), None)

    async def balancers(self, cluster: str) -> AsyncIterator[Balancer]:
        """Yield all load balancers of a cluster."""
        query = {"limit": str(BALANCER_PAGE_LIMIT), "cluster": cluster}
        page_type = _page(("balancers", tuple[Balancer, ...]))
        async for page in self._http.pages("/v1/balancers", page_type, query, after=_after):
            for balancer in page.balancers:
                yield balancer

    async def create_balancer(self, order: BalancerOrder) -> Balancer:
        """Create a load balancer. Raises `AlreadyExists` if the name is taken."""
        return await self._http.send("POST", "/v1/balancers", order, Balancer)

    async def change_balancer(self, balancer_id: str, recipe: BalancerSpec) -> Balancer:
        """Replace the configuration of a load balancer; name, cluster and members stay."""
        return await self._http.send("PUT", f"/v1/balancers/{balancer_id}", recipe, Balancer)

    async def set_members(self, balancer_id: str, members: Iterable[str]) -> BalancerSummary:
        """Replace the members of a load balancer."""
        path = f"/v1/balancers/{balancer_id}/members"
        # The members in the response are not decoded: there may be thousands.
        return await self._http.send("PUT", path, _members_body(members), BalancerSummary)

    async def rename_balancer(self, balancer_id: str, name: str) -> Balancer:
        """Rename a load balancer. Raises `AlreadyExists` if the name is taken."""
        path = f"/v1/balancers/{balancer_id}/name"
        return await self._http.send("PUT", path, {"name": name}, Balancer)

    async def delete_balancer(self, balancer_id: str) -> None:
        """Delete a load balancer. Raises `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/balancers/{balancer_id}")

    async def routes(self, cluster: str) -> list[Route]:
        """Return all routes of a cluster."""
        return (await self._list("routes", Route, {"cluster": cluster}))[0]

    async def create_route(self, order: NewRoute) -> Route:
        """Create a route. Raises `AlreadyExists` if the destination has a route."""
        return await self._http.send("POST", "/v1/routes", order, Route)

    async def delete_route(self, route_id: str) -> None:
        """Delete a route. Raises `NotFound` if it is gone."""
        await self._http.request("DELETE", f"/v1/routes/{quote(route_id, safe='')}")

    async def _list(
        self, table: str, kind: type[T], query: Mapping[str, str]
    ) -> tuple[list[T], int]:
        """Return all items that match a query, and the number of requests."""
        query = {"limit": str(PAGE_LIMIT), **query}
        items: Any = (table, tuple.__class_getitem__((kind, ...)))
        listing = self._http.pages(f"/v1/{table}", _page(items), query, after=_after)
        pages = [getattr(page, table) async for page in listing]
        return [item for page in pages for item in page], len(pages)


@cloud.cached_for_nodes
def _members_body(members: Iterable[str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"members": members}))


def _after(page: Any) -> Mapping[str, str] | None:
    return None if page.next_cursor is None else {"cursor": page.next_cursor}


@contextlib.asynccontextmanager
async def open_client(settings: Config) -> AsyncIterator[Client]:
    """Open a client with its own connection pool; the context closes it."""
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
    error = msgspec.json.decode(body, type=_ErrorResponse).error
    return rest.Refusal(error.code, f"{error.message} ({error.request_id})")
