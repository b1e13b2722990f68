"""State of the fake: resources by ID in the wire format, and effects that happen later.

Tests read and write the resources directly. No background task exists: `Cloud.settle` applies the
effects that are due.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ccm.base import clock
from ccm.testing.fake_api import ErrorResponse


@dataclass(kw_only=True)
class Settings:
    """Behaviour of the fake; times are in seconds, limits default to the known real ones.

    Attributes:
        latency_s: delay of each response.
        boot_s: time a new server is CREATING.
        removal_s: time a server is DELETING.
        power_s: time a server is STOPPING or STARTING.
        balancer_s: time a new load balancer is PENDING.
        balancer_removal_s: time a load balancer is TERMINATING.
        token_s: lifetime of a token.
        page_size: maximum number of load balancers in a page, regardless of the query.
        servers: maximum number of servers.
        balancers: maximum number of load balancers.
        hosts: number of servers that fit; a further server fails with "no valid host".
        silent_404: whether a 404 of the load balancer API has no body, as documented.
        no_auth: whether requests need no credentials.
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


Resource = dict[str, Any]

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
"""Error code of the fake -> HTTP status. The real APIs have numbers only."""

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
"""HTTP status -> gRPC code in the body of the load balancer API."""


class ApiError(ErrorResponse):
    """Error response, in the form of the IaaS API by default."""

    def __init__(self, code: str, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status or STATUSES.get(code, 500)
        self.body = {"code": self.status, "msg": message}

    def as_balancer_error(self, *, silent: bool) -> ApiError:
        """Convert to the form of the load balancer API; if `silent`, a 404 has no body."""
        self.body = {"code": GRPC.get(self.status, 2), "message": str(self), "details": []}
        if silent and self.status == 404:
            self.body = None
        return self


class Cloud:
    """State of one account; only servers have a project and a region."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.servers: dict[str, Resource] = {}
        self.nics: dict[str, Resource] = {}
        self.networks: dict[str, Resource] = {}
        self.images: dict[str, Resource] = {}
        self.volumes: dict[str, Resource] = {}
        self.balancers: dict[str, Resource] = {}
        self.credentials: dict[str, Resource] = {}
        self.passwords: dict[str, str] = {}
        """Reference of credentials -> password, which the API never returns."""
        self.places: dict[str, tuple[str, str]] = {}
        """Server ID -> project and region."""
        self.protected: set[str] = set()
        """Names of load balancers whose deletion is refused."""
        self.unreachable: set[str] = set()
        """Addresses that are refused as targets."""
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def new_id(self) -> str:
        """Return an unused ID."""
        return str(UUID(int=0x10000 + next(self._numbers), version=4))

    def number(self) -> int:
        """Return an unused number."""
        return next(self._numbers)

    def now(self) -> str:
        """Return the current time in the API's format."""
        return clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def schedule(self, seconds: float, effect: Callable[[], None]) -> None:
        """Schedule an effect after a delay; apply it at once for a delay of 0."""
        if seconds <= 0:
            effect()
        else:
            self._due.append((clock.monotonic() + seconds, next(self._numbers), effect))

    def settle(self, *, all_of_them: bool = False) -> None:
        """Apply the effects that are due, in order of their times."""
        at = clock.monotonic()
        due = sorted(entry for entry in self._due if all_of_them or entry[0] <= at)
        self._due = [entry for entry in self._due if entry not in due]
        for _, _, effect in due:
            effect()


Answer = tuple[int, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Decoded request: path parameters, query and body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Resource

    @property
    def place(self) -> tuple[str, str]:
        """Project and region."""
        return (self.path["projectId"], self.path["region"])


Handler = Callable[[Cloud, Call], Answer]


def invalid(field: str, message: str) -> ApiError:
    """Return the error for an invalid field."""
    return ApiError("bad_request", f"{field}: {message}")


def get(things: Mapping[str, Resource], key: str, kind: str) -> Resource:
    """Return a resource by its ID or name. Raises `not_found`."""
    if key not in things:
        raise ApiError("not_found", f"{kind} {key} not found")
    return things[key]
