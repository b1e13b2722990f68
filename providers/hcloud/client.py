"""Client of the Hetzner Cloud: wire types, error codes and calls.

`ccm.cloud.rest` sends all HTTP requests. Every method raises only `CloudError` classes. Unknown
fields are ignored; enumerations that the API may extend are read as text.
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

from . import metrics

PER_PAGE = "50"
"""Page size of list requests: the API's maximum."""


class ResourceLocked(cloud.RetryAfter):
    """The resource is locked by another action, for an unknown time."""


class Protected(cloud.FailedPrecondition):
    """The resource is protected from deletion."""


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
    "source_port_already_used": cloud.AlreadyExists,
    "source_port_used": cloud.AlreadyExists,
    "target_already_defined": cloud.AlreadyExists,
    "locked": ResourceLocked,
    "conflict": ResourceLocked,
    "protected": Protected,
    "resource_locked": cloud.FailedPrecondition,
    "load_balancer_not_attached_to_network": cloud.FailedPrecondition,
    "server_not_attached_to_network": cloud.FailedPrecondition,
    "targets_without_use_private_ip": cloud.FailedPrecondition,
    "resource_in_use": ResourceLocked,
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
"""Error code of the API -> error class."""


class Named(msgspec.Struct, frozen=True):
    """Resource with ID and name."""

    id: int
    name: str


class Labelled(Named, frozen=True):
    """Resource with labels."""

    labels: dict[str, str] = {}


class Ip(msgspec.Struct, frozen=True):
    """Public address; a server's IPv6 address is a range."""

    ip: str | None = None
    dns_ptr: Any = None


class PublicNet(msgspec.Struct, frozen=True):
    """Public interface of a server or load balancer."""

    ipv4: Ip | None = None
    ipv6: Ip | None = None
    enabled: bool = True


class PrivateNet(msgspec.Struct, frozen=True):
    """Attachment of a server or load balancer to a network, with its address in that network."""

    network: int | None = None
    ip: str | None = None


class Datacenter(msgspec.Struct, frozen=True):
    """Part of a location. Deprecated: the API will remove the datacenter of servers."""

    location: Named | None = None


class Server(Labelled, frozen=True, kw_only=True):
    """Server; only the fields that the provider reads. `status` may have unknown values."""

    status: str
    server_type: Named
    public_net: PublicNet = PublicNet()
    private_net: tuple[PrivateNet, ...] = ()
    location: Named | None = None
    datacenter: Datacenter | None = None
    placement_group: Labelled | None = None
    created: str = ""

    @property
    def location_name(self) -> str:
        """Name of the location."""
        location = self.location or (self.datacenter and self.datacenter.location)
        return location.name if location else ""


class HttpCheck(msgspec.Struct, frozen=True):
    """Request and expected response of an HTTP health check."""

    domain: str | None = None
    path: str = "/"
    tls: bool = False
    status_codes: tuple[str, ...] = ()


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Health check of targets; times are in seconds."""

    protocol: str
    port: int
    interval: int = 15
    timeout: int = 10
    retries: int = 3
    http: HttpCheck | None = None


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP settings of a listener; times are in seconds."""

    cookie_name: str | None = None
    cookie_lifetime: int | None = None
    timeout_idle: int | None = None
    certificates: tuple[int, ...] = ()
    redirect_http: bool = False
    sticky_sessions: bool = False


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Listener of a load balancer, which the API calls a service."""

    protocol: str
    listen_port: int
    destination_port: int
    proxyprotocol: bool = False
    health_check: HealthCheck
    http: Http | None = None


class TargetServer(msgspec.Struct, frozen=True):
    """Server of a target."""

    id: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Target of a load balancer; `type` names the field that is set."""

    type: str
    server: TargetServer | None = None
    ip: dict[str, Any] | None = None
    use_private_ip: bool = False


class Deprecation(msgspec.Struct, frozen=True):
    """Announced end of a type; `unavailable_after` is the time from when it cannot be ordered."""

    unavailable_after: str = ""


class BalancerType(Named, frozen=True, kw_only=True):
    """Type of a load balancer, with its limits."""

    max_targets: int = 0
    deprecation: Deprecation | None = None


class Algorithm(msgspec.Struct, frozen=True):
    """Balancing algorithm."""

    type: str


class Protection(msgspec.Struct, frozen=True):
    """Protection of a resource; if `delete` is true, the API refuses to delete the resource."""

    delete: bool = False


class Balancer(Labelled, frozen=True, kw_only=True):
    """Load balancer; only the fields that the provider reads."""

    load_balancer_type: BalancerType
    algorithm: Algorithm
    public_net: PublicNet = PublicNet()
    private_net: tuple[PrivateNet, ...] = ()
    services: tuple[Listener, ...] = ()
    targets: tuple[Target, ...] = ()
    protection: Protection = Protection()


class ResourceReference(msgspec.Struct, frozen=True):
    """Another resource, such as a load balancer that uses a certificate."""

    id: int
    type: str


class Certificate(Labelled, frozen=True, kw_only=True):
    """Certificate, and the resources that use it."""

    used_by: tuple[ResourceReference, ...] = ()


class Route(msgspec.Struct, frozen=True):
    """Route of a network: `destination` is a CIDR, `gateway` the private address of a server."""

    destination: str
    gateway: str


class Subnet(msgspec.Struct, frozen=True):
    """Part of a network from which servers and load balancers get addresses."""

    ip_range: str = ""


class Network(Named, frozen=True, kw_only=True):
    """Private network."""

    ip_range: str = ""
    subnets: tuple[Subnet, ...] = ()
    routes: tuple[Route, ...] = ()
    servers: tuple[int, ...] = ()


class Volume(Labelled, frozen=True, kw_only=True):
    """Volume; `server` is the ID of the server it is attached to."""

    server: int | None = None


class PlacementGroup(Labelled, frozen=True, kw_only=True):
    """Placement group; `servers` are the IDs of its members."""

    servers: tuple[int, ...] = ()


class ActionError(msgspec.Struct, frozen=True):
    """Reason for the failure of an action."""

    code: str = ""
    message: str = ""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Asynchronous operation of the API."""

    id: int
    command: str = ""
    status: str = ""
    error: ActionError | None = None


class _Pagination(msgspec.Struct, frozen=True):
    # Required: a page without this field must fail, not end the listing early.
    next_page: int | None


class _Meta(msgspec.Struct, frozen=True):
    pagination: _Pagination


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: dict[str, Any]


N = TypeVar("N", bound=Named)
L = TypeVar("L", bound=Labelled)


def parse_refusal(body: bytes) -> rest.Refusal:
    """Parse an error response; the message includes the invalid fields."""
    error = msgspec.json.decode(body, type=_ErrorResponse).error
    details = error.get("details")
    fields = details.get("fields") if isinstance(details, dict) else None
    wrong = [
        f"{field.get('name')}: {', '.join(map(str, field.get('messages') or []))}"
        for field in fields or []
        if isinstance(field, dict)
    ]
    message = "; ".join([str(error.get("message", "")), *wrong])
    return rest.Refusal(code=str(error.get("code", "")), message=message)


@functools.cache
def _response_type(*fields: Any) -> Any:
    """Return a Struct type; the fields have the form that `msgspec.defstruct` expects."""
    return msgspec.defstruct("_Answer", fields, frozen=True)


class Client:
    """Client for the API; opened by `open_client`."""

    def __init__(self, http: rest.RestClient) -> None:
        self._http = http

    async def get(self, path: str, key: str, kind: type[N]) -> N:
        """Return a resource by path, such as `/servers/42`. Raises `NotFound`."""
        answer: Any = await self._http.get(path, _response_type((key, kind)))
        thing: N = getattr(answer, key)
        if not path.endswith(f"/{thing.id}"):
            raise cloud.Unknown(f"requested {path}, got ID {thing.id}")
        return thing

    async def list_all(
        self, table: str, kind: type[N], query: Mapping[str, str] | None = None
    ) -> tuple[list[N], int]:
        """Return all resources of a kind that match a query, and the number of requests."""
        items: Any = (table, tuple.__class_getitem__((kind, ...)))
        page = _response_type(items, ("meta", _Meta))

        def after(answer: Any) -> Mapping[str, str] | None:
            number = answer.meta.pagination.next_page
            return {"page": str(number)} if number else None

        given = {**(query or {}), "per_page": PER_PAGE}
        listing = self._http.pages(f"/{table}", page, given, after=after)
        pages = [getattr(answer, table) async for answer in listing]
        return [item for page in pages for item in page], len(pages)

    async def list_by_labels(self, table: str, kind: type[N], labels: Mapping[str, str]) -> list[N]:
        """Return all resources of a kind with the given labels."""
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return (await self.list_all(table, kind, {"label_selector": selector}))[0]

    async def find_by_name(self, table: str, kind: type[N], name: str) -> N | None:
        """Return the resource with a name; None if there is none. Images may share a name."""
        query = {"name": name}
        if table == "images":
            query["include_deprecated"] = "true"  # they can still be used
        things, _ = await self.list_all(table, kind, query)
        return next((thing for thing in things if thing.name == name), None)

    async def resolve(self, table: str, key: str, kind: type[N], word: str) -> N:
        """Return a resource by its ID or its name. Raises `InvalidArgument` if there is none."""
        try:
            number = parse_digits(word)
            thing = (
                await self.find_by_name(table, kind, word)
                if number is None
                else await self.get(f"/{table}/{number}", key, kind)
            )
        except cloud.NotFound:
            thing = None
        if thing is None:
            raise cloud.InvalidArgument(f"{key} {word!r} does not exist; check the name or ID")
        return thing

    async def create(self, table: str, key: str, kind: type[N], order: object) -> tuple[N, Action]:
        """Create a resource; return it, and the action of the creation, which may have finished."""
        shape = _response_type((key, kind), ("action", Action | None, None))
        answer: Any = await self._http.send("POST", f"/{table}", order, shape)
        return getattr(answer, key), answer.action or Action(id=0, status="success")

    async def set_name_and_labels(
        self, table: str, key: str, thing: N, *, name: str, labels: Mapping[str, str]
    ) -> N:
        """Set name and labels of a resource; the labels replace all existing labels."""
        shape = _response_type((key, type(thing)))
        order = {"name": name, "labels": labels}
        answer: Any = await self._http.send("PUT", f"/{table}/{thing.id}", order, shape)
        changed: N = getattr(answer, key)
        return changed

    async def start_action(self, path: str, order: object = None) -> Action:
        """Start an action, such as `/networks/42/actions/add_route`."""
        answer: Any = await self._http.send(
            "POST", path, order or {}, _response_type(("action", Action))
        )
        action: Action = answer.action
        return action

    async def delete(self, path: str) -> Action | None:
        """Delete a resource; return the action, if any. Raises `NotFound`."""
        body = await self._http.request("DELETE", path)
        shape = _response_type(("action", Action | None, None))
        action: Action | None = (
            rest.decode_json(f"DELETE {path}", body, shape).action if body else None
        )
        return action

    async def get_actions(self, ids: Sequence[int]) -> list[Action]:
        """Return the current state of actions: one request per page."""
        shape = _response_type(("actions", tuple[Action, ...]))
        actions: list[Action] = []
        size = int(PER_PAGE)
        for start in range(0, len(ids), size):
            # The query is part of the path because the parameter `id` is repeated.
            query = "&".join(f"id={action_id}" for action_id in ids[start : start + size])
            path = f"/actions?{query}&per_page={PER_PAGE}"
            actions += (await self._http.get(path, shape)).actions
        return actions


@contextlib.asynccontextmanager
async def open_client(endpoint: str, token: str) -> AsyncIterator[Client]:
    """Open a client with its own connection pool and its own rate limiter."""
    async with rest.open_client(
        endpoint,
        refusal=parse_refusal,
        codes=CODES,
        authorization=f"Bearer {token}",
        timeout_s=15.0,  # as in hcloud-cloud-controller-manager
        quota=HeaderQuota(),
        success={"GET": 200, "POST": 201, "PUT": 200, "DELETE": (200, 204)},
    ) as http:
        http.session.trace_configs.append(metrics.request_tracing())
        yield Client(http)


HOUR_S = 3600.0

RESERVE_FRACTION = 0.1
"""Requests are paced while at most this fraction of the rate limit remains."""


class HeaderQuota:
    """Rate limiter for one API token, driven by the API's `RateLimit-*` headers."""

    def __init__(self) -> None:
        self._limit = 0
        self._remaining = 0
        self._next_at = 0.0
        self._lock = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait for the next slot if at most `RESERVE_FRACTION` of the rate limit remains."""
        if not self._limit or self._remaining > self._limit * RESERVE_FRACTION:
            self._remaining -= 1  # an estimate, until the response has the actual number
            return
        async with self._lock:
            wait_s = self._next_at - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._next_at = monotonic() + HOUR_S / self._limit

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Record `RateLimit-Limit` and `RateLimit-Remaining`, if present; 429: none remain."""
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
