"""What the fake holds: things by ID, in the form of the wire, and what happens to them in time.

A test reads and writes what the API would show. Time passes when somebody looks: `Cloud.settle`
does what is due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ccm.base import clock
from ccm.testing.fake_api import Refused


@dataclass(kw_only=True)
class Settings:
    """Times are seconds, limits are those of the real thing where they are known.

    Attributes:
        latency_s: before each answer.
        boot_s: how long a new server is CREATING.
        removal_s: how long a server is DELETING.
        power_s: how long a server is STOPPING or STARTING.
        balancer_s: how long a new load balancer is PENDING.
        balancer_removal_s: how long one is TERMINATING.
        token_s: how long a token is good.
        page_size: the most load balancers of a page, whatever is asked for.
        servers: quota of servers.
        balancers: quota of load balancers.
        hosts: room for servers; one more fails for want of a valid host.
        silent_404: the load balancer API says nothing with its 404, as its document has it.
        no_auth: no credentials are asked for.
    """

    latency_s: float = 0.0
    boot_s: float = 0.0
    removal_s: float = 0.0
    power_s: float = 0.0
    balancer_s: float = 0.0
    balancer_removal_s: float = 0.0
    token_s: float = 600.0
    page_size: int = 100
    servers: int = 10000
    balancers: int = 1000
    hosts: int = 100000
    silent_404: bool = False
    no_auth: bool = False


Thing = dict[str, Any]

PROJECT = "5b2c1a30-7f4e-4c39-9a61-0d9e3b8f2c11"
REGION = "eu01"

STATUSES: Mapping[str, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "quota": 413,
    "too_many_requests": 429,
    "server_error": 500,
    "unavailable": 503,
}
"""Our words for errors; the APIs have none, but numbers."""

GRPC: Mapping[int, int] = {
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    409: 10,
    413: 8,
    429: 8,
    500: 13,
    503: 14,
}
"""HTTP status -> the number that the load balancer API has in its body."""


class ApiError(Refused):
    """A call answered with an error; the shape is that of the API it comes from."""

    def __init__(self, code: str, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status or STATUSES.get(code, 500)
        self.body = {"code": self.status, "msg": message}

    def of_balancers(self, *, silent: bool) -> ApiError:
        """As the load balancer API says it."""
        self.body = {"code": GRPC.get(self.status, 2), "message": str(self), "details": []}
        if silent and self.status == 404:
            self.body = None
        return self


class Cloud:
    """One account; each thing is in a project and a region."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.servers: dict[str, Thing] = {}
        self.nics: dict[str, Thing] = {}
        self.networks: dict[str, Thing] = {}
        self.images: dict[str, Thing] = {}
        self.volumes: dict[str, Thing] = {}
        self.balancers: dict[str, Thing] = {}
        self.credentials: dict[str, Thing] = {}
        self.passwords: dict[str, str] = {}
        """Reference -> password, which the API never shows."""
        self.places: dict[str, tuple[str, str]] = {}
        """ID of a server -> project and region."""
        self.protected: set[str] = set()
        """Names of load balancers that cannot be deleted just now."""
        self.unreachable: set[str] = set()
        """Addresses that no load balancer may have as targets."""
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def new_id(self) -> str:
        """An ID that was never given out."""
        return str(UUID(int=0x10000 + next(self._numbers), version=4))

    def number(self) -> int:
        """A number that was never given out."""
        return next(self._numbers)

    def now(self) -> str:
        """The time, as the API writes it."""
        return clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def later(self, seconds: float, effect: Callable[[], None]) -> None:
        """Do something after a time; at once where that is none."""
        if seconds <= 0:
            effect()
        else:
            self._due.append((clock.monotonic() + seconds, next(self._numbers), effect))

    def settle(self, *, all_of_them: bool = False) -> None:
        """Do what is due, in the order in which it is due."""
        at = clock.monotonic()
        due = sorted(one for one in self._due if all_of_them or one[0] <= at)
        self._due = [one for one in self._due if one not in due]
        for _, _, effect in due:
            effect()


Answer = tuple[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, read: what stands in its path, its query, its body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Thing

    @property
    def place(self) -> tuple[str, str]:
        """Project and region."""
        return (self.path["projectId"], self.path["region"])


Handler = Callable[[Cloud, Call], Answer]


def invalid(field: str, message: str) -> ApiError:
    """The error for a field that makes no sense."""
    return ApiError("bad_request", f"{field}: {message}")


def get(things: Mapping[str, Thing], key: str, kind: str) -> Thing:
    """One by its ID or name."""
    if key not in things:
        raise ApiError("not_found", f"{kind} {key} not found")
    return things[key]
