"""State of the fake: resources by kind and ID, and actions that change them when they end.

Resources are dictionaries in the wire format, so that tests can read and write them directly. No
background task exists: `Cloud.settle` ends the actions that are due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ccm.base import clock
from ccm.model.selectors import BadSelectorError, parse_labels
from ccm.testing.fake_api import ErrorResponse


@dataclass(kw_only=True)
class Settings:
    """Behaviour of the fake; times are in seconds, limits default to the real ones.

    Attributes:
        latency_s: delay of each response.
        action_s: duration of an action on a network, a volume or a load balancer.
        balancer_s: time until a new load balancer has an address.
        boot_s: time until a new server runs.
        removal_s: time the deletion of a server takes.
        requests: calls per hour and token; the budget refills continuously.
        page_size: maximum page size, regardless of the query.
        servers: maximum number of servers.
        balancers: maximum number of load balancers.
        network_servers: maximum number of servers in a network.
        network_routes: maximum number of routes in a network.
        group_servers: maximum number of servers in a spread placement group.
        deletion_actions: whether the deletion of a load balancer returns an action, as the vendor's
            current client expects, instead of 204, as in older API documents.
    """

    latency_s: float = 0.0
    action_s: float = 0.0
    balancer_s: float = 0.0
    boot_s: float = 0.0
    removal_s: float = 0.0
    requests: int = 3600
    page_size: int = 50
    servers: int = 1000
    balancers: int = 100
    network_servers: int = 100
    network_routes: int = 100
    group_servers: int = 10
    deletion_actions: bool = False


Resource = dict[str, Any]

STATUSES: Mapping[str, int] = {
    "unauthorized": 401,
    "forbidden": 403,
    "resource_limit_exceeded": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "uniqueness_error": 409,
    "resource_unavailable": 412,
    "placement_error": 412,
    "invalid_input": 422,
    "json_error": 400,
    "service_error": 422,
    "protected": 423,
    "locked": 423,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "maintenance": 503,
}
"""Error code -> HTTP status."""


class ApiError(ErrorResponse):
    """Error response of the API."""

    def __init__(
        self, code: str, message: str, *, status: int = 0, details: Resource | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or STATUSES.get(code, 500)
        self.body = {"error": {"code": code, "message": message, "details": details}}


class Cloud:
    """State of one project."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.servers: dict[int, Resource] = {}
        self.load_balancers: dict[int, Resource] = {}
        self.networks: dict[int, Resource] = {}
        self.ssh_keys: dict[int, Resource] = {}
        self.placement_groups: dict[int, Resource] = {}
        self.volumes: dict[int, Resource] = {}
        self.firewalls: dict[int, Resource] = {}
        self.certificates: dict[int, Resource] = {}
        self.actions: dict[int, Resource] = {}
        self.failing_actions: dict[tuple[str, int], str] = {}
        """(kind, ID) -> error message with which actions on the resource fail."""
        self._ids = itertools.count(1001)
        self._addresses = itertools.count(1)
        self._running: dict[int, tuple[float, Callable[[], None]]] = {}

    def new_id(self) -> int:
        """Return an unused ID."""
        return next(self._ids)

    def new_address(self) -> tuple[str, str]:
        """Return a public IPv4 address and an IPv6 /64."""
        number = next(self._addresses)
        return f"203.0.{113 + number // 250}.{number % 250 + 1}", f"2001:db8:{number:x}::/64"

    def now(self) -> str:
        """Return the current time in the API's format."""
        return clock.now().isoformat(timespec="seconds")

    # --- actions --------------------------------------------------------------------------------

    def act(
        self,
        command: str,
        resources: Iterable[tuple[str, int]],
        effect: Callable[[], None],
        *,
        takes_s: float | None = None,
    ) -> Resource:
        """Start an action that applies `effect` when it ends; without duration, it ends at once."""
        about = list(resources)
        action: Resource = {
            "id": self.new_id(),
            "command": command,
            "status": "running",
            "progress": 0,
            "started": self.now(),
            "finished": None,
            "resources": [{"id": resource_id, "type": kind} for kind, resource_id in about],
            "error": None,
        }
        self.actions[action["id"]] = action
        takes = self.settings.action_s if takes_s is None else takes_s
        reason = next(
            (
                self.failing_actions[resource]
                for resource in about
                if resource in self.failing_actions
            ),
            "",
        )

        def end() -> None:
            if reason:
                action["error"] = {"code": "action_failed", "message": reason}
            else:
                effect()
            action["status"] = "error" if reason else "success"
            action["progress"] = 100
            action["finished"] = self.now()

        if takes <= 0:
            end()
        else:
            self._running[action["id"]] = (clock.monotonic() + takes, end)
        return dict(action)

    def settle(self, *, all_of_them: bool = False) -> None:
        """End the actions that are due, in order of their end times."""
        due = sorted(
            (at, number)
            for number, (at, _) in self._running.items()
            if all_of_them or at <= clock.monotonic()
        )
        for _, number in due:
            self._running.pop(number)[1]()

    def check_free(self, kind: str, number: int) -> None:
        """Raise `locked` while an action on a resource runs."""
        for action_id in self._running:
            if {"id": number, "type": kind} in self.actions[action_id]["resources"]:
                raise ApiError("locked", f"{kind} {number} is locked by action {action_id}")

    def time_in(self, seconds: float) -> str:
        """Return the time a number of seconds from now, in the API's format."""
        return (clock.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def get(things: Mapping[int, Resource], number: int, kind: str) -> Resource:
    """Return a resource by its ID. Raises `not_found`."""
    if number not in things:
        raise ApiError("not_found", f"{kind} with ID '{number}' not found")
    return things[number]


def unique(things: Mapping[int, Resource], name: str, kind: str, *, but: int = 0) -> None:
    """Raise `uniqueness_error` if a name is taken."""
    if any(thing["name"] == name and thing["id"] != but for thing in things.values()):
        raise ApiError("uniqueness_error", f"{kind} name is already used")


def invalid(field: str, message: str) -> ApiError:
    """Return the error for an invalid field."""
    details = {"fields": [{"name": field, "messages": [message]}]}
    return ApiError("invalid_input", f"invalid input in field '{field}'", details=details)


MAX_PER_PAGE = 50
DEFAULT_PER_PAGE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Decoded request: query, body, and the ID in the path (0 = none)."""

    id: int = 0
    query: Mapping[str, list[str]] = field(default_factory=dict)
    body: Resource = field(default_factory=dict)

    def parameter(self, name: str) -> str:
        """Return the last value of a parameter; empty if it is missing."""
        return (self.query.get(name) or [""])[-1]


Answer = tuple[int, Resource | None]
Handler = Callable[[Cloud, Call], Answer]


def _number(call: Call, name: str, default: int) -> int:
    text = call.parameter(name)
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise invalid(name, "must be a number above 0")
    return int(text)


def listing(cloud: Cloud, call: Call, key: str, things: Iterable[Resource]) -> Answer:
    """Return one page of the resources that match the query."""
    matching = list(things)
    if name := call.parameter("name"):
        matching = [thing for thing in matching if thing["name"] == name]
    if selector := call.parameter("label_selector"):
        try:
            terms = parse_labels(selector.replace("==", "="))
        except BadSelectorError as error:
            raise invalid("label_selector", "label selector is malformed") from error
        matching = [
            thing for thing in matching if all(term.matches(thing["labels"]) for term in terms)
        ]
    page = _number(call, "page", 1)
    asked = min(_number(call, "per_page", DEFAULT_PER_PAGE), MAX_PER_PAGE)
    size = min(asked, cloud.settings.page_size)
    last = max(1, -(-len(matching) // size))
    pagination = {
        "page": page,
        "per_page": size,
        "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None,
        "last_page": last,
        "total_entries": len(matching),
    }
    cut = matching[(page - 1) * size : page * size]
    return 200, {key: cut, "meta": {"pagination": pagination}}


def text(body: Resource, name: str, *, required: bool = True) -> str:
    """Return a text field of a body."""
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise invalid(name, "must be text")
    return value


def labels(body: Resource) -> dict[str, str]:
    """Return the labels of a request body; keys and values must be valid in Kubernetes."""
    given: Any = body.get("labels") or {}
    for key, value in given.items():
        try:
            parse_labels(f"{key}={value}")
        except BadSelectorError as error:
            raise invalid("labels", f"{key}: {value!r} is not a valid label") from error
        if not isinstance(value, str) or len(value) > 63 or len(key.rpartition("/")[2]) > 63:
            raise invalid("labels", f"{key}: is too long")
    return dict(given)
