"""The fake over HTTP.

A call is counted, then checked (token, rate limit), then judged by the fault script, then delayed;
only then does the operation itself run, in one step without waiting. Whoever wants to check what
goes over the wire gives a witness, which is told of each call and its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import hdrs, web

from ccm.base import clock, tasks

from . import api, faults
from .answers import Call
from .settings import Settings
from .state import ApiError, Cloud

HOUR_S = 3600.0
SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A call and its answer, as they went over the wire."""

    operation: str
    method: str
    path: str
    query: list[tuple[str, str]]
    request: bytes
    status: int
    answer: bytes


Witness = Callable[[Exchange], None]


class Service:
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
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.token = token or secrets.token_hex(32)
        self.script = faults.Script()
        self.calls: Counter[str] = Counter()
        self.log: list[str] = []
        self._witness = witness
        self._released = asyncio.Event()
        self._left = float(self.settings.requests)
        self._counted_at = clock.monotonic()
        self._is_over = False

    @property
    def writes(self) -> int:
        """How many calls changed something, or tried to."""
        return sum(number for name, number in self.calls.items() if not name.startswith("GET"))

    def heal(self) -> None:
        """No more faults; whoever hangs is let go."""
        self.script.clear()
        self._released.set()
        self._released = asyncio.Event()

    def app(self) -> web.Application:
        """As an aiohttp application."""
        app = web.Application(middlewares=[self._shape_errors])
        for row in api.OPERATIONS:
            path = row.path.replace("{id}", r"{id:\d+}")
            app.router.add_route(row.method, f"/v1{path}", self._shell(row), name=None)
        return app

    def _shell(self, row: api.Operation) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self.calls[row.name] += 1
            self.log.append(f"{request.method} {request.path_qs}")
            headers = self._limited()
            body = await request.read()
            try:
                response = await self._handle(row, request, body)
            except ApiError as error:
                response = _failed(error)
            response.headers.update(headers)
            if self._witness is not None and isinstance(response, _Told):
                self._witness(_exchange(row, request, body, response))
            return response

        return handle

    async def _handle(self, row: api.Operation, request: web.Request, body: bytes) -> web.Response:
        self._check_token(request)
        if self._is_over:
            raise ApiError("rate_limit_exceeded", "limit of requests per hour reached")
        fault = self.script.judge(row.name)
        if self.settings.latency_s > 0:
            await asyncio.sleep(self.settings.latency_s)
        if fault is not None and fault.kind != "novelty":
            if fault.applied:
                self._run(row, request, body)
            return await self._break(request, fault)
        status, answer = self._run(row, request, body)
        if fault is not None:
            return _answer(status, faults.novel(deepcopy(answer)))
        return _answer(status, answer)

    def _run(self, row: api.Operation, request: web.Request, body: bytes) -> tuple[int, Any]:
        self.cloud.settle()
        try:
            order = msgspec.json.decode(body) if body else {}
        except msgspec.MsgspecError as error:
            raise ApiError("json_error", "the body is no JSON") from error
        query: dict[str, list[str]] = {}
        for name, value in request.query.items():
            query.setdefault(name, []).append(value)
        number = int(request.match_info.get("id", 0))
        return row.handler(self.cloud, Call(id=number, query=query, body=order))

    async def _break(self, request: web.Request, fault: faults.Fault) -> web.Response:
        if fault.kind == "error":
            raise ApiError(fault.code, fault.message, status=fault.status)
        if fault.kind in ("garbage", "empty"):
            text = "<html>" if fault.kind == "garbage" else ""
            return web.Response(
                text=text, status=fault.status or 200, content_type="application/json"
            )
        if fault.kind == "hang":
            await tasks.first_of(self._released.wait(), asyncio.sleep(HOUR_S), name="hang")
        if request.transport:
            request.transport.abort()
        return web.Response()

    def _check_token(self, request: web.Request) -> None:
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        if not secrets.compare_digest(given, f"Bearer {self.token}".encode()):
            raise ApiError("unauthorized", "unable to authenticate")

    def _limited(self) -> dict[str, str]:
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

    @web.middleware
    async def _shape_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _failed(ApiError("not_found", f"no such path: {request.path}"))
        except web.HTTPMethodNotAllowed:
            return _failed(ApiError("method_not_allowed", f"no {request.method} here"))


class _Told(web.Response):
    """An answer of the API itself."""


def _answer(status: int, answer: Any) -> web.Response:
    body = None if answer is None else msgspec.json.encode(answer)
    return _Told(body=body, status=status, content_type="application/json" if body else None)


def _failed(error: ApiError) -> web.Response:
    told = {"code": error.code, "message": str(error), "details": error.details}
    return _answer(error.status, {"error": told})


def _exchange(
    row: api.Operation, request: web.Request, body: bytes, response: web.Response
) -> Exchange:
    return Exchange(
        operation=row.name,
        method=request.method,
        path=request.path.removeprefix("/v1"),
        query=list(request.query.items()),
        request=body,
        status=response.status,
        answer=bytes(response.body or b""),  # type: ignore[arg-type]  # it is bytes or nothing
    )


@contextlib.asynccontextmanager
async def serve(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the context is open; yields the endpoint, `/v1` included.

    Raises:
        OSError: the address is taken or not ours.
    """
    runner = web.AppRunner(
        service.app(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound = runner.addresses[0]
        yield f"http://{bound[0]}:{bound[1]}/v1"
    finally:
        service.heal()
        await runner.cleanup()
