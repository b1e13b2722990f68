"""The fake over HTTP: what the Hetzner Cloud does otherwise than other APIs."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from aiohttp import hdrs, web

from ccm.base import clock
from ccm.testing import fake_api
from ccm.testing.fake_api import Row, Witness

from . import api
from .answers import Call
from .state import ApiError, Cloud, Settings

PREFIX = "/v1"
HOUR_S = 3600.0


class Service(fake_api.FakeApi):
    """One project over HTTP.

    Args:
        settings: how it behaves.
        token: the token to ask for; empty draws one of the vendor's length.
        witness: told of every call that got an answer of the API itself.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        token: str = "",
        witness: Witness | None = None,
    ) -> None:
        rows = [
            Row(
                method=one.method,
                path=one.path,
                prefix=PREFIX,
                pattern=r"\d+",
                handle=self._handler(one),
            )
            for one in api.OPERATIONS
        ]
        super().__init__(rows, witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.token = token or secrets.token_hex(32)
        self._left = float(self.settings.requests)
        self._counted_at = clock.monotonic()
        self._is_over = False

    @property
    def latency_s(self) -> float:
        """Before each answer."""
        return self.settings.latency_s

    def _handler(self, row: api.Operation) -> Callable[[web.Request, Any], tuple[int, Any]]:
        def handle(request: web.Request, order: Any) -> tuple[int, Any]:
            self.cloud.settle()
            query: dict[str, list[str]] = {}
            for name, value in request.query.items():
                query.setdefault(name, []).append(value)
            number = int(request.match_info.get("id", 0))
            return row.handler(self.cloud, Call(id=number, query=query, body=order or {}))

        return handle

    def admit(self, request: web.Request) -> None:
        """With the token, within the rate."""
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        if not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            raise ApiError("unauthorized", "unable to authenticate")
        if self._is_over:
            raise ApiError("rate_limit_exceeded", "limit of requests per hour reached")

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """As all errors of this API look."""
        return ApiError(fault.code or "server_error", fault.message, status=fault.status)

    def missing(self, request: web.Request, status: int) -> ApiError:
        """Likewise."""
        if status == 404:
            return ApiError("not_found", f"no such path: {request.path}")
        return ApiError("method_not_allowed", f"no {request.method} here")

    def spoiled(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """With servers that hibernate."""
        return fake_api.novel(answer, of_server="server_type", status="hibernating")

    def headers(self, request: web.Request) -> Mapping[str, str]:  # noqa: ARG002 - all are alike
        """Count a call; the headers that tell what is left."""
        most, now = self.settings.requests, clock.monotonic()
        self._left = min(most, self._left + (now - self._counted_at) * most / HOUR_S)
        self._counted_at = now
        self._is_over = self._left < 1
        self._left -= not self._is_over
        full_s = (most - self._left) * HOUR_S / most
        return {
            "RateLimit-Limit": str(most),
            "RateLimit-Remaining": str(max(0, math.floor(self._left))),
            "RateLimit-Reset": str(math.ceil(clock.now().timestamp() + full_s)),
        }


@contextlib.asynccontextmanager
async def serve(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the context is open; yields the endpoint, `/v1` included.

    Raises:
        OSError: the address is taken or not ours.
    """
    async with fake_api.serve(service, host=host, port=port) as url:
        yield f"{url}{PREFIX}"
