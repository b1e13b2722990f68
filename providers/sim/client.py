"""The client of the simulated cloud: wire types, paging and the error table.

Everything the cloud may answer becomes a value or a class of `ccm.cloud.errors`:
nothing of the HTTP library leaves this module. An absence is believed only where the
cloud says so in its own words (404 with the code `not_found`); a 404 of some proxy, an
empty or garbled body is a fault like any other, because an absence deletes nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from ccm import cloud

from . import config

T = TypeVar("T")

PAGE_LIMIT = 500
"""Items to ask for at once; the most the cloud gives."""

RETRY_AFTER_S = 1.0
"""Assumed where a 429 does not say, or not readably, when to come back."""

ERRORS: Mapping[int, type[cloud.CloudError]] = {
    400: cloud.InvalidArgument,
    401: cloud.Unauthenticated,
    403: cloud.PermissionDenied,
    408: cloud.DeadlineExceeded,
    409: cloud.Aborted,
    504: cloud.DeadlineExceeded,
}
"""HTTP status -> what it means; besides these 404 and 429 (below), other 5xx are
`Unavailable` and the rest is `Unknown`."""

CODES: Mapping[str, type[cloud.CloudError]] = {
    "conflict": cloud.AlreadyExists,
    "protected": cloud.FailedPrecondition,
    "quota_exceeded": cloud.ResourceExhausted,
}
"""The cloud's own words that say more than the status; `busy` is `RetryAfter`."""


SUCCESS: Mapping[str, int] = {"GET": 200, "POST": 201, "PUT": 200, "DELETE": 204}
"""Method -> the status that means success; any other is a fault, 200 with no body too."""


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


# A page without `next_cursor` is broken, lest a listing be cut short silently.


class _Servers(msgspec.Struct, frozen=True):
    instances: tuple[Server, ...]
    next_cursor: str | None


class _Balancers(msgspec.Struct, frozen=True):
    balancers: tuple[Balancer, ...]
    next_cursor: str | None


class _Routes(msgspec.Struct, frozen=True):
    routes: tuple[Route, ...]
    next_cursor: str | None


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error


class Client:
    """Calls of the simulated cloud; use `open_client`.

    Every method raises `CloudError` classes only: those of `ERRORS`, `RetryAfter` on 429,
    `DeadlineExceeded` when the cloud is too slow, `Unavailable` when it cannot be reached,
    `Unknown` when its answer makes no sense.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def server(self, instance_id: str) -> Server:
        """One instance by its ID, which must be safe in a path; `NotFound` if there is none."""
        found = await self._get(f"/v1/instances/{instance_id}", {}, Server)
        if found.id != instance_id:
            raise cloud.Unknown(f"asked for instance {instance_id}, got {found.id!r}")
        return found

    async def servers(self, name: str | None = None) -> tuple[list[Server], int]:
        """All instances, or those of one name, and the number of requests it took."""
        query = {} if name is None else {"name": name}
        pages = await self._pages("/v1/instances", query, _Servers)
        return [one for page in pages for one in page.instances], len(pages)

    async def balancer(self, name: str) -> Balancer | None:
        """The load balancer of that name, whosever it is; None if there is none."""
        pages = await self._pages("/v1/balancers", {"name": name}, _Balancers)
        return next((one for page in pages for one in page.balancers), None)

    async def balancers(self, cluster: str) -> list[Balancer]:
        """All load balancers of a cluster."""
        pages = await self._pages("/v1/balancers", {"cluster": cluster}, _Balancers)
        return [one for page in pages for one in page.balancers]

    async def create_balancer(self, order: Order) -> Balancer:
        """Order a load balancer; `AlreadyExists` if the name is taken."""
        return await self._send("POST", "/v1/balancers", order, Balancer)

    async def change_balancer(self, balancer_id: str, recipe: Recipe) -> Balancer:
        """Make a load balancer anew, its name and members apart."""
        return await self._send("PUT", f"/v1/balancers/{balancer_id}", recipe, Balancer)

    async def set_members(self, balancer_id: str, members: Sequence[str]) -> Balancer:
        """Replace the members of a load balancer."""
        path = f"/v1/balancers/{balancer_id}/members"
        return await self._send("PUT", path, {"members": members}, Balancer)

    async def delete_balancer(self, balancer_id: str) -> None:
        """Delete a load balancer; `NotFound` if it is gone."""
        await self._request("DELETE", f"/v1/balancers/{balancer_id}")

    async def routes(self, cluster: str) -> list[Route]:
        """All routes of a cluster."""
        pages = await self._pages("/v1/routes", {"cluster": cluster}, _Routes)
        return [one for page in pages for one in page.routes]

    async def create_route(self, order: NewRoute) -> Route:
        """Order a route; `AlreadyExists` if the range has one."""
        return await self._send("POST", "/v1/routes", order, Route)

    async def delete_route(self, route_id: str) -> None:
        """Delete a route; `NotFound` if it is gone."""
        await self._request("DELETE", f"/v1/routes/{quote(route_id, safe='')}")

    async def _pages(self, path: str, query: Mapping[str, str], answer: type[P]) -> list[P]:
        found: list[P] = []
        asked = {"limit": str(PAGE_LIMIT), **query}
        cursors: set[str] = set()
        while True:
            page = await self._get(path, asked, answer)
            found.append(page)
            if page.next_cursor is None:
                return found
            if page.next_cursor in cursors:
                raise cloud.Unknown(f"the listing never ends: cursor {page.next_cursor!r} again")
            cursors.add(page.next_cursor)
            asked["cursor"] = page.next_cursor

    async def _get(self, path: str, query: Mapping[str, str], answer: type[T]) -> T:
        body = await self._request("GET", path, query=query)
        return _decoded(f"GET {path}", body, answer)

    async def _send(self, method: str, path: str, content: object, answer: type[T]) -> T:
        body = await self._request(method, path, data=msgspec.json.encode(content))
        return _decoded(f"{method} {path}", body, answer)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> bytes:
        """The body of the one answer that means success."""
        what = f"{method} {path}"
        try:
            async with self._session.request(
                method, self._url + path, params=query, data=data, allow_redirects=False
            ) as response:
                body = await response.read()
        except TimeoutError as error:
            raise cloud.DeadlineExceeded(f"{what}: no answer in time") from error
        except aiohttp.ClientError as error:
            raise cloud.Unavailable(f"{what}: {str(error) or type(error).__name__}") from error
        if response.status != SUCCESS[method]:
            raise _failure(what, response, body)
        return body


@contextlib.asynccontextmanager
async def open_client(settings: config.Config) -> AsyncIterator[Client]:
    """A client with its own pool of connections, closed with the context."""
    timeout = aiohttp.ClientTimeout(
        total=settings.timeout.total_seconds(), connect=settings.connect_timeout.total_seconds()
    )
    headers = {"Authorization": f"Bearer {settings.token}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=False) as session:
        yield Client(session, settings.url)


def _decoded(what: str, body: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        raise cloud.Unknown(f"{what}: unreadable answer: {error}") from error


def _failure(what: str, response: aiohttp.ClientResponse, body: bytes) -> cloud.CloudError:
    """The error for an answer that is none of success."""
    said = _explanation(body)
    status = response.status
    text = f"{what}: HTTP {status}"
    if said.code:
        text += f" {said.code}: {said.message} ({said.request_id})"
    if status == 429:
        return cloud.RetryAfter(text, seconds=_retry_after(response))
    if said.code == "busy":
        return cloud.RetryAfter(text, seconds=RETRY_AFTER_S)
    if said.code in CODES:
        return CODES[said.code](text)
    if status == 404 and said.code == "not_found":
        return cloud.NotFound(text)
    otherwise = cloud.Unavailable if status >= 500 else cloud.Unknown
    return ERRORS.get(status, otherwise)(text)


def _explanation(body: bytes) -> _Error:
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer).error
    except msgspec.MsgspecError:
        return _Error()


def _retry_after(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else RETRY_AFTER_S
