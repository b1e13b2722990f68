"""State of the fake: resources by kind and ID, in the wire format of their services.

Tests read and write resources directly. No background task exists: `Cloud.settle` applies the
changes that are due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ccm.base import clock
from ccm.testing.fake_api import ErrorResponse

PROJECT = "9c2d3c1b7f6f4c1a8f0e5d6a7b8c9d0e"
REGION = "RegionOne"

EXTENSIONS = (
    "allowed-address-pairs",
    "extraroute",
    "extraroute-atomic",
    "port-security",
    "revision-if-match",
    "router",
    "security-group",
    "standard-attr-tag",
)
"""Extensions of Neutron in the lab of real services."""


@dataclass(kw_only=True)
class Settings:
    """Behaviour of the fake; times are in seconds.

    Attributes:
        latency_s: delay of each response.
        token_s: lifetime of a token.
        page_size: maximum page size, regardless of the query.
        microversion: newest microversion of Nova; empty = only 2.1, without embedded flavors.
        extensions: aliases of Neutron's extensions.
        boot_s: time a new server is BUILD.
        removal_s: time until a deleted server is gone.
        servers: maximum number of servers, a quota.
        router_routes: maximum number of extra routes of a router.
        services: service types in the catalogue.
        balancer_s: time until a new load balancer is ACTIVE.
        balancer_change_s: time until a changed load balancer is ACTIVE.
        balancer_removal_s: time until a load balancer is deleted.
        balancers: maximum number of load balancers.
        floating_ips: maximum number of floating IPs.
        octavia_minor: minor version of Octavia's API.
    """

    latency_s: float = 0.0
    token_s: float = 3600.0
    page_size: int = 1000
    microversion: str = "2.96"
    extensions: tuple[str, ...] = EXTENSIONS
    boot_s: float = 0.0
    removal_s: float = 0.0
    servers: int = 10000
    router_routes: int = 30
    services: tuple[str, ...] = ("compute", "network", "load-balancer", "image")
    balancer_s: float = 0.0
    balancer_change_s: float = 0.0
    balancer_removal_s: float = 0.0
    balancers: int = 1000
    floating_ips: int = 1000
    octavia_minor: int = 27


Resource = dict[str, Any]

STATUSES: Mapping[str, int] = {
    "badRequest": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "quota": 403,
    "itemNotFound": 404,
    "immutable": 409,
    "conflict": 409,
    "overLimit": 429,
    "unavailable": 503,
}
"""Code of an injected fault -> HTTP status."""

MESSAGES: Mapping[str, str] = {
    "quota": "Quota exceeded for instances: Requested 1, but already used 10 of 10 instances",
    "itemNotFound": "Resource could not be found.",
    "immutable": "Load Balancer 0 is immutable and cannot be updated.",
}
"""Code of an injected fault -> message, if the fault has none."""


class ApiError(ErrorResponse):
    """Error response; `shape` gives the body the form of a service.

    Args:
        code: error code, such as the type of a Neutron error.
        message: message for users.
        status: HTTP status; 0 = that of the code.
    """

    def __init__(self, code: str, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or STATUSES.get(code, 500)
        self.headers = {"Retry-After": "1"} if self.status == 429 else {}
        self.body: Any = None

    def shape(self, service: str) -> ApiError:
        """Set the body to the form of a service, and return the error."""
        if service == "network":
            self.body = {"NeutronError": {"type": self.code, "message": self.message, "detail": ""}}
        elif service == "load-balancer":
            server = "Server" if self.status >= 500 else "Client"
            self.body = {"faultcode": server, "faultstring": self.message, "debuginfo": None}
        elif service == "identity":
            title = {401: "Unauthorized", 404: "Not Found"}.get(self.status, self.code)
            error = {"code": self.status, "message": self.message, "title": title}
            self.body = {"error": error}
        else:
            code = "forbidden" if self.code == "quota" else self.code
            self.body = {code: {"code": self.status, "message": self.message}}
        return self


_OF_NEUTRON = ("admin_state_up", "project_id", "revision_number")

_LACKING: Mapping[str, Sequence[str]] = {
    "flavors": (*_OF_NEUTRON, "status", "tags", "tenant_id"),
    "floating_ips": ("admin_state_up", "name"),
    "security_groups": ("admin_state_up", "status"),
    "servers": _OF_NEUTRON,
    "subnets": ("admin_state_up", "status"),
}
"""Table -> fields of most resources that those of the table lack."""


class Cloud:
    """State of one project."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.flavors: dict[str, Resource] = {}
        self.servers: dict[str, Resource] = {}
        self.networks: dict[str, Resource] = {}
        self.subnets: dict[str, Resource] = {}
        self.ports: dict[str, Resource] = {}
        self.routers: dict[str, Resource] = {}
        self.floating_ips: dict[str, Resource] = {}
        self.security_groups: dict[str, Resource] = {}
        self.balancers: dict[str, Resource] = {}
        self.listeners: dict[str, Resource] = {}
        self.pools: dict[str, Resource] = {}
        self.monitors: dict[str, Resource] = {}
        self.members: dict[str, list[Resource]] = {}
        """ID of a pool -> its members."""
        self.protected: set[str] = set()
        """IDs of load balancers whose deletion is refused."""
        self.images: dict[str, Resource] = {}
        self.keypairs: dict[str, Resource] = {}
        self.server_groups: dict[str, Resource] = {}
        self.volumes: dict[str, Resource] = {}
        """Boot volumes; the API of Cinder is not part of the fake."""
        self._ids = itertools.count(1)
        self._pending: list[tuple[float, int, Callable[[], None]]] = []

    def new_id(self) -> str:
        """Return an unused UUID; later ones sort after earlier ones."""
        return str(UUID(int=(next(self._ids) << 80) | 0x4000_8000_0000_0000_0000))

    def new(self, table: str, name: str, **fields: Any) -> Resource:
        """Create a resource with the fields that all kinds share, and further ones."""
        number = self.new_id()
        common = {"id": number, "name": name, "status": "ACTIVE", "admin_state_up": True}
        owner = {"project_id": PROJECT, "tenant_id": PROJECT, "tags": [], "revision_number": 1}
        lacking = _LACKING.get(table, ())
        shared = {key: text for key, text in {**common, **owner}.items() if key not in lacking}
        resource: Resource = {**shared, **fields}
        getattr(self, table)[number] = resource
        return resource

    def now(self) -> str:
        """Return the current time in the format of Nova."""
        return clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def after(self, seconds: float, change: Callable[[], None]) -> None:
        """Apply a change after some time; at once without delay."""
        if seconds <= 0:
            change()
        else:
            self._pending.append((clock.monotonic() + seconds, len(self._pending), change))

    def settle(self, *, all_of_them: bool = False) -> None:
        """Apply the changes that are due, in order of time."""
        due = [entry for entry in self._pending if all_of_them or entry[0] <= clock.monotonic()]
        self._pending = [entry for entry in self._pending if entry not in due]
        for _, _, change in sorted(due, key=lambda entry: entry[:2]):
            change()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Decoded request: parameters of the path, query, body, headers and URL without query."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, list[str]] = field(default_factory=dict)
    body: Resource = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    url: str = ""


Answer = tuple[int, Resource | None]
Handler = Callable[[Cloud, Call], Answer]
Operation = tuple[str, str, Handler]
"""Method, path below the URL in the catalogue, and handler."""


def get(things: Mapping[str, Resource], number: str, kind: str) -> Resource:
    """Return a resource by its ID. Raises the error of its service."""
    if number not in things:
        code = "itemNotFound" if kind in ("Instance", "Flavor", "Keypair") else f"{kind}NotFound"
        raise ApiError(code, f"{kind} {number} could not be found.", status=404)
    return things[number]


def readable(table: str, key: str, *, prefix: str) -> list[Operation]:
    """Return the operations that read resources of a kind: a list, and one of them."""

    def show(cloud: Cloud, call: Call) -> Answer:
        return 200, {key: get(getattr(cloud, table), call.path["id"], key.title())}

    path = f"{prefix}/{table}"
    return [("GET", path, list_handler(table)), ("GET", f"{path}/{{id}}", show)]


def remover(table: str, kind: str) -> Handler:
    """Return a handler that deletes a resource."""

    def handler(cloud: Cloud, call: Call) -> Answer:
        things = getattr(cloud, table)
        del things[get(things, call.path["id"], kind)["id"]]
        return 204, None

    return handler


def list_handler(table: str, key: str = "") -> Handler:
    """Return a handler that lists the resources of a kind that match the query.

    `key` is the name of the listing in the answer, unless it is that of the table.
    """
    return lambda cloud, call: listing(
        cloud, call, key or table, filtered(getattr(cloud, table).values(), call.query)
    )


_NO_FILTERS = frozenset({"limit", "marker", "fields", "sort_key", "sort_dir", "is_public"})


def filtered(things: Iterable[Resource], query: Mapping[str, list[str]]) -> list[Resource]:
    """Return the resources whose fields have one of the values in the query."""
    return [
        thing
        for thing in things
        if all(
            any(_has(thing, name, text) for text in texts)
            for name, texts in query.items()
            if name not in _NO_FILTERS
        )
    ]


def _has(thing: Resource, name: str, text: str) -> bool:
    if name == "fixed_ips":
        key, _, wanted = text.partition("=")
        return any(entry.get(key) == wanted for entry in thing["fixed_ips"])
    if name == "tags":
        return set(text.split(",")) <= set(thing.get("tags") or ())
    value = thing.get(name)
    if isinstance(value, list):
        return text in value
    return str(value) == text or (isinstance(value, bool) and str(value).lower() == text.lower())


def listing(cloud: Cloud, call: Call, key: str, things: Iterable[Resource]) -> Answer:
    """Return one page of resources, and a link to the next page if there may be one."""
    resources = list(things)
    if marker := (call.query.get("marker") or [""])[0]:
        ids = [str(thing["id"]) for thing in resources]
        if marker not in ids:
            raise ApiError("badRequest", f"marker [{marker}] not found", status=400)
        resources = resources[ids.index(marker) + 1 :]
    asked = int((call.query.get("limit") or ["0"])[0]) or cloud.settings.page_size
    size = min(asked, cloud.settings.page_size)
    page = resources[:size]
    answer: Resource = {key: page}
    if len(page) == size:  # as the services do, even if no more follow
        href = f"{call.url}?limit={size}&marker={page[-1]['id']}"
        answer[f"{key}_links"] = [{"rel": "next", "href": href}]
    return 200, answer
