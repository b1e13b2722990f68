"""The client of the Hetzner Cloud: its wire types, its words for errors, and its calls.

Everything about HTTP is done by `ccm.cloud.rest`. Each method raises `CloudError` classes only.
Unknown fields are skipped, and words of the API that may become more are read as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ccm import cloud
from ccm.base.clock import monotonic
from ccm.base.parsing import parse_digits
from ccm.cloud import rest

PER_PAGE = "50"
"""The most that the API gives."""


class Busy(cloud.RetryAfter):
    """An action about the same thing runs; it is not known how long."""


CODES: Mapping[str, type[cloud.CloudError]] = {
    "not_found": cloud.NotFound,
    "unauthorized": cloud.Unauthenticated,
    "forbidden": cloud.PermissionDenied,
    "token_readonly": cloud.PermissionDenied,
    "invalid_input": cloud.InvalidArgument,
    "json_error": cloud.InvalidArgument,
    "invalid_server_type": cloud.InvalidArgument,
    "invalid_load_balancer_type": cloud.InvalidArgument,
    "unsupported_error": cloud.InvalidArgument,
    "incompatible_network_type": cloud.InvalidArgument,
    "uniqueness_error": cloud.AlreadyExists,
    "source_port_used": cloud.AlreadyExists,
    "target_already_defined": cloud.AlreadyExists,
    "locked": Busy,
    "conflict": Busy,
    "protected": cloud.FailedPrecondition,
    "resource_locked": cloud.FailedPrecondition,
    "load_balancer_not_attached_to_network": cloud.FailedPrecondition,
    "server_not_attached_to_network": cloud.FailedPrecondition,
    "targets_without_use_private_ip": cloud.FailedPrecondition,
    "resource_in_use": Busy,
    "server_not_stopped": cloud.FailedPrecondition,
    "resource_limit_exceeded": cloud.ResourceExhausted,
    "resource_unavailable": cloud.ResourceExhausted,
    "placement_error": cloud.ResourceExhausted,
    "no_subnet_available": cloud.ResourceExhausted,
    "ip_not_available": cloud.ResourceExhausted,
    "rate_limit_exceeded": cloud.RetryAfter,
    "timeout": cloud.DeadlineExceeded,
    "server_error": cloud.Unavailable,
    "service_error": cloud.Unavailable,
    "bad_gateway": cloud.Unavailable,
    "maintenance": cloud.Unavailable,
    "robot_unavailable": cloud.Unavailable,
    "unknown_error": cloud.Unknown,
}
"""The API's own words."""


class Named(msgspec.Struct, frozen=True):
    """A thing of which the name counts."""

    id: int
    name: str


class Labelled(Named, frozen=True):
    """A thing with labels."""

    labels: dict[str, str] = {}


class Ip(msgspec.Struct, frozen=True):
    """A public address; an address of IPv6 of a server is a range."""

    ip: str | None = None
    dns_ptr: Any = None


class PublicNet(msgspec.Struct, frozen=True):
    """The public side of a server or load balancer."""

    ipv4: Ip | None = None
    ipv6: Ip | None = None
    enabled: bool = True


class PrivateNet(msgspec.Struct, frozen=True):
    """A network that something is in, and its address there."""

    network: int | None = None
    ip: str | None = None


class Datacenter(msgspec.Struct, frozen=True):
    """A part of a location, which the API is about to leave out."""

    location: Named | None = None


class Server(Labelled, frozen=True, kw_only=True):
    """A server, with the fields we use; there may be states that we do not know."""

    status: str
    server_type: Named
    public_net: PublicNet = PublicNet()
    private_net: tuple[PrivateNet, ...] = ()
    location: Named | None = None
    datacenter: Datacenter | None = None
    placement_group: Labelled | None = None
    created: str = ""

    @property
    def place(self) -> str:
        """The name of its location."""
        found = self.location or (self.datacenter and self.datacenter.location)
        return found.name if found else ""


class HttpCheck(msgspec.Struct, frozen=True):
    """What a health check by HTTP looks at."""

    domain: str | None = None
    path: str = "/"
    tls: bool = False
    status_codes: tuple[str, ...] = ()


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How targets are looked at; times are seconds."""

    protocol: str
    port: int
    interval: int = 15
    timeout: int = 10
    retries: int = 3
    http: HttpCheck | None = None


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """What HTTP adds to a service; times are seconds."""

    cookie_name: str | None = None
    cookie_lifetime: int | None = None
    timeout_idle: int | None = None
    certificates: tuple[int, ...] = ()
    redirect_http: bool = False
    sticky_sessions: bool = False


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A service of a load balancer: where it listens, and where traffic goes."""

    protocol: str
    listen_port: int
    destination_port: int
    proxyprotocol: bool = False
    health_check: HealthCheck
    http: Http | None = None


class TargetServer(msgspec.Struct, frozen=True):
    """A server that is a target."""

    id: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where traffic goes; `type` says which of the others is there."""

    type: str
    server: TargetServer | None = None
    ip: dict[str, Any] | None = None
    use_private_ip: bool = False


class BalancerType(Named, frozen=True, kw_only=True):
    """What a load balancer may have."""

    max_targets: int = 0
    deprecated: str | None = None


class Algorithm(msgspec.Struct, frozen=True):
    """How a target is chosen."""

    type: str


class Protection(msgspec.Struct, frozen=True):
    """What may not be done."""

    delete: bool = False


class Balancer(Labelled, frozen=True, kw_only=True):
    """A load balancer, with the fields we use."""

    load_balancer_type: BalancerType
    algorithm: Algorithm
    public_net: PublicNet = PublicNet()
    private_net: tuple[PrivateNet, ...] = ()
    services: tuple[Listener, ...] = ()
    targets: tuple[Target, ...] = ()
    protection: Protection = Protection()


class Route(msgspec.Struct, frozen=True):
    """A range, and the private address that it is sent to."""

    destination: str
    gateway: str


class Network(Named, frozen=True, kw_only=True):
    """A private network."""

    ip_range: str = ""
    routes: tuple[Route, ...] = ()
    servers: tuple[int, ...] = ()


class Volume(Labelled, frozen=True, kw_only=True):
    """A volume, and the server that has it."""

    server: int | None = None


class Group(Labelled, frozen=True, kw_only=True):
    """A placement group, and the servers in it."""

    servers: tuple[int, ...] = ()


class ActionError(msgspec.Struct, frozen=True):
    """Why an action failed."""

    code: str = ""
    message: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the API does."""

    id: int
    command: str = ""
    status: str = ""
    error: ActionError | None = None


class _Pagination(msgspec.Struct, frozen=True):
    # One without this field is broken, lest a listing be cut short silently.
    next_page: int | None


class _Meta(msgspec.Struct, frozen=True):
    pagination: _Pagination


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: dict[str, Any]


N = TypeVar("N", bound=Named)
L = TypeVar("L", bound=Labelled)


def _refusal(body: bytes) -> rest.Refusal:
    """The API's words; with the fields that were wrong."""
    error = msgspec.json.decode(body, type=_ErrorAnswer).error
    details = error.get("details")
    fields = details.get("fields") if isinstance(details, dict) else None
    wrong = [
        f"{one.get('name')}: {', '.join(map(str, one.get('messages') or []))}"
        for one in fields or []
        if isinstance(one, dict)
    ]
    message = "; ".join([str(error.get("message", "")), *wrong])
    return rest.Refusal(code=str(error.get("code", "")), message=message)


@functools.cache
def _shape(*fields: Any) -> Any:
    """A Struct with these fields, as `msgspec.defstruct` takes them."""
    return msgspec.defstruct("_Answer", fields, frozen=True)


class Client:
    """Calls of the API; use `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def one(self, path: str, key: str, kind: type[N]) -> N:
        """One thing by its ID, such as `/servers/42`; `NotFound` if there is none."""
        answer: Any = await self._http.get(path, _shape((key, kind)))
        thing: N = getattr(answer, key)
        if not path.endswith(f"/{thing.id}"):
            raise cloud.Unknown(f"asked for {path}, got {thing.id}")
        return thing

    async def all(
        self, table: str, kind: type[N], query: Mapping[str, str] | None = None
    ) -> tuple[list[N], int]:
        """All things of a kind, or those that the query asks for, and how many requests it took."""
        items: Any = (table, tuple.__class_getitem__((kind, ...)))
        page = _shape(items, ("meta", _Meta))

        def after(read: Any) -> Mapping[str, str] | None:
            number = read.meta.pagination.next_page
            return {"page": str(number)} if number else None

        given = {**(query or {}), "per_page": PER_PAGE}
        pages = await self._http.pages(f"/{table}", page, given, after=after)
        return [one for read in pages for one in getattr(read, table)], len(pages)

    async def labelled(self, table: str, kind: type[N], labels: Mapping[str, str]) -> list[N]:
        """All things of a kind with these labels."""
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return (await self.all(table, kind, {"label_selector": selector}))[0]

    async def named(self, table: str, kind: type[N], name: str) -> N | None:
        """The thing of that name, which is unique; None if there is none."""
        found, _ = await self.all(table, kind, {"name": name})
        return next((one for one in found if one.name == name), None)

    async def resolved(self, table: str, key: str, kind: type[N], word: str) -> N:
        """A thing by its ID or its name. Raises InvalidArgument: there is none."""
        try:
            number = parse_digits(word)
            found = (
                await self.named(table, kind, word)
                if number is None
                else await self.one(f"/{table}/{number}", key, kind)
            )
        except cloud.NotFound:
            found = None
        if found is None:
            raise cloud.InvalidArgument(f"{key} {word!r} does not exist; give its name or its ID")
        return found

    async def create(self, table: str, key: str, kind: type[N], order: object) -> tuple[N, Action]:
        """Order a thing, and the action that makes it, which may be over."""
        shape = _shape((key, kind), ("action", Action | None, None))
        answer: Any = await self._http.send("POST", f"/{table}", order, shape)
        return getattr(answer, key), answer.action or Action(id=0, status="success")

    async def rename(self, number: int, *, name: str, labels: Mapping[str, str]) -> Balancer:
        """Give a load balancer its name and its labels, all of them."""
        answer: Any = await self._http.send(
            "PUT",
            f"/load_balancers/{number}",
            {"name": name, "labels": labels},
            _shape(("load_balancer", Balancer)),
        )
        found: Balancer = answer.load_balancer
        return found

    async def act(self, path: str, order: object = None) -> Action:
        """Begin an action, such as `/networks/42/actions/add_route`."""
        answer: Any = await self._http.send("POST", path, order or {}, _shape(("action", Action)))
        action: Action = answer.action
        return action

    async def delete(self, path: str) -> Action | None:
        """Take a thing away; `NotFound` if it is gone. What takes longer answers with an action."""
        body = await self._http.request("DELETE", path)
        shape = _shape(("action", Action | None, None))
        action: Action | None = rest.decoded(f"DELETE {path}", body, shape).action if body else None
        return action

    async def actions(self, ids: Sequence[int]) -> list[Action]:
        """How actions are getting on; one request."""
        # The query is written into the path: the same name comes several times.
        query = "&".join(f"id={each}" for each in ids)
        shape = _shape(("actions", tuple[Action, ...]))
        return list((await self._http.get(f"/actions?{query}", shape)).actions)


@contextlib.asynccontextmanager
async def open_client(endpoint: str, token: str) -> AsyncIterator[Client]:
    """A client with its own connections and its own account of the rate limit."""
    async with rest.open_client(
        endpoint,
        refusal=_refusal,
        codes=CODES,
        authorization=f"Bearer {token}",
        timeout_s=15.0,  # as the vendor's manager
        quota=HeaderQuota(),
        success={"GET": 200, "POST": 201, "PUT": 200, "DELETE": (200, 204)},
    ) as http:
        yield Client(http)


HOUR_S = 3600.0

RESERVE = 0.1
"""Part of the limit below which requests wait."""


class HeaderQuota:
    """What keeps the requests of one token to the rate limit."""

    def __init__(self) -> None:
        self._limit = 0
        self._remaining = 0
        self._next_at = 0.0
        self._line = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait where few requests are left."""
        if not self._limit or self._remaining > self._limit * RESERVE:
            self._remaining -= 1  # until the answer says how many there really are
            return
        async with self._line:
            wait_s = self._next_at - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._next_at = monotonic() + HOUR_S / self._limit

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Take note of `RateLimit-Limit` and `RateLimit-Remaining`, if they are there."""
        limit, remaining = (
            parse_digits(headers.get(f"RateLimit-{name}", "")) for name in ("Limit", "Remaining")
        )
        if limit is None or remaining is None:
            return
        if limit > 0:
            self._limit = limit
            self._remaining = remaining
        if status == 429 and self._limit:
            self._remaining = 0
            self._next_at = max(self._next_at, monotonic() + HOUR_S / self._limit)
