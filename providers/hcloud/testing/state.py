"""What the fake holds: things by kind and ID, and actions that change them when they end.

Everything is a dictionary in the form of the wire, so that a test reads and writes what the API
would show. Time passes when somebody looks: `Cloud.settle` ends what is due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ccm.base import clock
from ccm.model.selectors import BadSelectorError, parse_labels
from ccm.testing.fake_api import Refused


@dataclass(kw_only=True)
class Settings:
    """Times are seconds, limits are those of the real thing.

    Attributes:
        latency_s: before each answer.
        action_s: how long an action about a network, a volume or a load balancer takes.
        balancer_s: how long a new load balancer takes, until then it has no address.
        boot_s: how long a new server takes until it runs.
        removal_s: how long a server takes to go.
        requests: calls an hour and token; they come back one by one.
        page_size: the most items of a page, whatever is asked for.
        servers: quota of servers.
        balancers: quota of load balancers.
        network_servers: most servers of one network.
        network_routes: most routes of one network.
        group_servers: most servers of one spread group.
        told_deletions: the deletion of a load balancer is answered with an action, as the vendor's
            client of today wants it, in place of 204 as older documents have it.
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
    told_deletions: bool = False


Thing = dict[str, Any]

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
"""The API's words for errors and their statuses."""


class ApiError(Refused):
    """A call answered with an error of the one shape."""

    def __init__(
        self, code: str, message: str, *, status: int = 0, details: Thing | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or STATUSES.get(code, 500)
        self.body = {"error": {"code": code, "message": message, "details": details}}


class Cloud:
    """One project."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.servers: dict[int, Thing] = {}
        self.load_balancers: dict[int, Thing] = {}
        self.networks: dict[int, Thing] = {}
        self.ssh_keys: dict[int, Thing] = {}
        self.placement_groups: dict[int, Thing] = {}
        self.volumes: dict[int, Thing] = {}
        self.firewalls: dict[int, Thing] = {}
        self.certificates: dict[int, Thing] = {}
        self.actions: dict[int, Thing] = {}
        self.doomed: dict[tuple[str, int], str] = {}
        """(kind, ID) -> what the actions about it end with."""
        self._ids = itertools.count(1001)
        self._addresses = itertools.count(1)
        self._running: dict[int, tuple[float, Callable[[], None]]] = {}

    def new_id(self) -> int:
        """An ID that was never given out."""
        return next(self._ids)

    def new_address(self) -> tuple[str, str]:
        """A public IPv4 address, and the /64 of IPv6 beside it."""
        number = next(self._addresses)
        return f"203.0.{113 + number // 250}.{number % 250 + 1}", f"2001:db8:{number:x}::/64"

    def now(self) -> str:
        """The time, as the API writes it."""
        return clock.now().isoformat(timespec="seconds")

    # --- actions --------------------------------------------------------------------------------

    def act(
        self,
        command: str,
        resources: Iterable[tuple[str, int]],
        effect: Callable[[], None],
        *,
        takes_s: float | None = None,
    ) -> Thing:
        """Begin an action; its effect comes when it ends, at once where it takes no time."""
        about = list(resources)
        action: Thing = {
            "id": self.new_id(),
            "command": command,
            "status": "running",
            "progress": 0,
            "started": self.now(),
            "finished": None,
            "resources": [{"id": each, "type": kind} for kind, each in about],
            "error": None,
        }
        self.actions[action["id"]] = action
        takes = self.settings.action_s if takes_s is None else takes_s
        reason = next((self.doomed[one] for one in about if one in self.doomed), "")

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
        """End what is due, in the order in which it is due."""
        due = sorted(
            (at, number)
            for number, (at, _) in self._running.items()
            if all_of_them or at <= clock.monotonic()
        )
        for _, number in due:
            self._running.pop(number)[1]()

    def check_free(self, kind: str, number: int) -> None:
        """Refuse while an action about a thing runs."""
        for each in self._running:
            if {"id": number, "type": kind} in self.actions[each]["resources"]:
                raise ApiError("locked", f"{kind} {number} is locked by action {each}")

    def moment(self, seconds: float) -> str:
        """The time in so many seconds."""
        return (clock.now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def get(things: Mapping[int, Thing], number: int, kind: str) -> Thing:
    """One by its ID."""
    if number not in things:
        raise ApiError("not_found", f"{kind} with ID '{number}' not found")
    return things[number]


def unique(things: Mapping[int, Thing], name: str, kind: str, *, but: int = 0) -> None:
    """Refuse a name that is taken."""
    if any(one["name"] == name and one["id"] != but for one in things.values()):
        raise ApiError("uniqueness_error", f"{kind} name is already used")


def invalid(field: str, message: str) -> ApiError:
    """The error for a field that makes no sense."""
    details = {"fields": [{"name": field, "messages": [message]}]}
    return ApiError("invalid_input", f"invalid input in field '{field}'", details=details)


MOST_PER_PAGE = 50
DEFAULT_PER_PAGE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, read: the ID in its path, its query, its body."""

    id: int = 0
    query: Mapping[str, list[str]] = field(default_factory=dict)
    body: Thing = field(default_factory=dict)

    def one(self, name: str) -> str:
        """The last value of a parameter; empty without one."""
        return (self.query.get(name) or [""])[-1]


Answer = tuple[int, Thing | None]
Handler = Callable[[Cloud, Call], Answer]


def _number(call: Call, name: str, default: int) -> int:
    text = call.one(name)
    if not text:
        return default
    if not text.isdigit() or int(text) < 1:
        raise invalid(name, "must be a number above 0")
    return int(text)


def listing(cloud: Cloud, call: Call, key: str, things: Iterable[Thing]) -> Answer:
    """One page of what the query asks for."""
    found = list(things)
    if name := call.one("name"):
        found = [one for one in found if one["name"] == name]
    if selector := call.one("label_selector"):
        try:
            terms = parse_labels(selector.replace("==", "="))
        except BadSelectorError as error:
            raise invalid("label_selector", "label selector is malformed") from error
        found = [one for one in found if all(term.matches(one["labels"]) for term in terms)]
    page = _number(call, "page", 1)
    asked = min(_number(call, "per_page", DEFAULT_PER_PAGE), MOST_PER_PAGE)
    size = min(asked, cloud.settings.page_size)
    last = max(1, -(-len(found) // size))
    pagination = {
        "page": page,
        "per_page": size,
        "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None,
        "last_page": last,
        "total_entries": len(found),
    }
    cut = found[(page - 1) * size : page * size]
    return 200, {key: cut, "meta": {"pagination": pagination}}


def text(body: Thing, name: str, *, required: bool = True) -> str:
    """A field that has to be text."""
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise invalid(name, "must be text")
    return value


def labels(body: Thing) -> dict[str, str]:
    """The labels of an order; keys and values are those of Kubernetes."""
    given: Any = body.get("labels") or {}
    for key, value in given.items():
        try:
            parse_labels(f"{key}={value}")
        except BadSelectorError as error:
            raise invalid("labels", f"{key}: {value!r} is no label") from error
        if not isinstance(value, str) or len(value) > 63 or len(key.rpartition("/")[2]) > 63:
            raise invalid("labels", f"{key}: is too long")
    return dict(given)
