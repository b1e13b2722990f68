"""Fake of the Robot web service: dedicated servers, login and limits of requests.

Requests and responses follow the vendor's public documentation
(https://robot.hetzner.com/doc/webservice/en.html); there is no schema.
"""

from __future__ import annotations

import contextlib
import secrets
from base64 import b64encode
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from aiohttp import hdrs, web

from ccm.base import clock
from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Witness

from .state import Resource

INTERVAL_S = 3600
LIMITS: Mapping[str, int] = {"server": 200, "reset": 500}
"""First part of the path -> requests in `INTERVAL_S`."""

STATUSES: Mapping[str, int] = {
    "UNAUTHORIZED": 401,
    "RATE_LIMIT_EXCEEDED": 403,
    "SERVER_NOT_FOUND": 404,
    "RESET_NOT_AVAILABLE": 404,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "MAINTENANCE": 503,
}
"""Error code -> HTTP status."""


class RobotError(fake_api.ErrorResponse):
    """Error response of the web service."""

    def __init__(self, code: str, message: str, *, status: int = 0, **more: int) -> None:
        super().__init__(message)
        self.status = status or STATUSES.get(code, 500)
        self.body = {
            "error": {"status": self.status, "code": code, "message": message, **more},
        }


class RobotService(fake_api.FakeApi):
    """Fake web service of one account over HTTP.

    Attributes:
        user: user of the web service.
        password: its password.
        limits: first part of the path -> requests in an hour, the real ones by default.
        servers: number -> server in the wire format.
        statuses: number -> operating status; a server without one has no reset option.
    """

    def __init__(
        self, *, user: str = "#ws+fake", password: str = "", witness: Witness | None = None
    ) -> None:
        rows = [
            self._row("/server", lambda _: [self._shown(number) for number in self._numbers()]),
            self._row("/server/{id}", self._shown),
            self._row("/reset/{id}", self._reset),
        ]
        super().__init__(rows, witness)
        self.user = user
        self.password = password or secrets.token_hex(16)
        self.limits = dict(LIMITS)
        self.servers: dict[int, Resource] = {}
        self.statuses: dict[int, str] = {}
        self._requests: defaultdict[str, deque[float]] = defaultdict(deque)

    def add_server(self, name: str, *, product: str = "AX41-NVMe", dc: str = "FSN1-DC8") -> int:
        """Add a running server and return its number."""
        number = max(self.servers, default=321000) + 1
        address, network = f"198.51.100.{number % 250 + 1}", f"2001:db8:f:{number % 65536:x}::"
        self.servers[number] = {
            "server_ip": address,
            "server_ipv6_net": network,
            "server_number": number,
            "server_name": name,
            "product": product,
            "dc": dc,
            "traffic": "unlimited",
            "status": "ready",
            "cancelled": False,
            "paid_until": "2027-12-31",
            "ip": [address],
            "subnet": [{"ip": network, "mask": "64"}],
        }
        self.statuses[number] = "running"
        return number

    def remove_server(self, number: int) -> None:
        """Remove a server, as at the end of its contract."""
        del self.servers[number]
        self.statuses.pop(number, None)

    # --- operations -------------------------------------------------------------------------------

    def _row(self, path: str, answer: Callable[[int], Any]) -> Endpoint:
        def handle(request: web.Request, _: Any) -> tuple[int, Any]:
            return 200, answer(int(request.match_info.get("id", 0)))

        return Endpoint(method="GET", path=path, pattern=r"\d+", handle=handle)

    def _numbers(self) -> list[int]:
        if not self.servers:
            raise RobotError("SERVER_NOT_FOUND", "No server found")
        return sorted(self.servers)

    def _server(self, number: int) -> Resource:
        if number not in self.servers:
            raise RobotError("SERVER_NOT_FOUND", "Server not found")
        return self.servers[number]

    def _shown(self, number: int) -> Resource:
        return {"server": self._server(number)}

    def _reset(self, number: int) -> Resource:
        server = self._server(number)
        if number not in self.statuses:
            raise RobotError("RESET_NOT_AVAILABLE", "The server has no reset option")
        fields = ("server_ip", "server_ipv6_net", "server_number")
        return {
            "reset": {
                **{name: server[name] for name in fields},
                "type": ["sw", "hw", "man"],
                "operating_status": self.statuses[number],
            }
        }

    # --- `FakeApi` --------------------------------------------------------------------------------

    def admit(self, request: web.Request) -> None:
        """Check the login and the limit of requests."""
        login = b64encode(f"{self.user}:{self.password}".encode())
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        if not secrets.compare_digest(given, b"Basic " + login):
            raise RobotError("UNAUTHORIZED", "Unauthorized")
        kind = request.path.split("/")[1]
        requests, now = self._requests[kind], clock.monotonic()
        while requests and requests[0] <= now - INTERVAL_S:
            requests.popleft()
        if len(requests) >= self.limits[kind]:
            raise self._limit_error(kind)
        requests.append(now)

    def _limit_error(self, kind: str) -> RobotError:
        limit = self.limits[kind]
        return RobotError(
            "RATE_LIMIT_EXCEEDED", "rate limit exceeded", max_request=limit, interval=INTERVAL_S
        )

    def refusal(self, fault: fake_api.Fault) -> RobotError:
        """Return the error response of an injected fault."""
        return RobotError(fault.code or "INTERNAL_ERROR", fault.message, status=fault.status)

    def rejection(self, request: web.Request, status: int) -> RobotError:
        """Return the error response for an unknown path, a wrong method or a large body."""
        if status == 404:
            return RobotError("NOT_FOUND", f"no such path: {request.path}")
        return RobotError("METHOD_NOT_ALLOWED", f"no {request.method} here", status=status)

    def altered_answer(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """Return a response with unknown fields and an unknown server status."""
        return fake_api.with_unknown_fields(answer, of_server="product", status="hibernating")


@contextlib.asynccontextmanager
async def serve(
    service: RobotService, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve while the context is open; yields the endpoint.

    Raises:
        OSError: the address is in use or not available.
    """
    async with fake_api.serve(service, host=host, port=port) as url:
        yield url
