"""The simulated cloud as an HTTP service; `api` holds the table of its operations.

Theory: every row of the table gets the same shell. A call under `/v1` is logged, then
checked (token, rate limit), then judged by the fault script, then delayed; only then
does the operation itself run, in one step without waiting, so calls never interleave
inside the world. A call under `/admin` goes straight to the operation.

A caller that hangs up is noticed at once: an operation still waiting is not carried
out.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import hdrs, web

from ccm.base import tasks
from ccm.testing import fake_api

from . import api, faults, operation, simulation, traffic, world

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request; enough to place a hundred thousand instances at once."""


class ApiError(Exception):
    """A call answered with an error of the one shape."""

    def __init__(self, code: str, message: str, *, status: int = 0, retry_after_s: float = 0):
        super().__init__(message)
        self.code = code
        self.status = status or api.ERRORS[code]
        self.retry_after_s = retry_after_s


class Service(simulation.Simulation):
    """One simulated cloud, over HTTP.

    Args:
        token: the bearer token to ask for; empty draws one.
        seed: makes instance IDs repeatable; None makes them differ from run to run.
        settings: those to begin with.
    """

    def __init__(
        self, *, token: str = "", seed: int | None = None, settings: traffic.Settings | None = None
    ) -> None:
        self.token = token or secrets.token_hex(16)
        self.next_token = ""
        """Accepted too, if any: while a token is exchanged for another, both are valid."""
        self._requests = 0
        super().__init__(seed=seed, settings=settings)

    def app(self) -> web.Application:
        """The service as an aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._shape_errors])
        for row in api.OPERATIONS:
            app.router.add_route(row.method, row.path, self._shell(row))
        for path in ("/", "/docs", "/openapi.json"):
            app.router.add_get(path, _describe)
        return app

    def _shell(
        self, row: operation.Operation
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def admin(request: web.Request) -> web.StreamResponse:
            self._check_token(request)
            return _answer(row, self._run(row, await _read(row, request)))

        async def cloud(request: web.Request) -> web.StreamResponse:
            entry = self.calls.open(row.name, request.path_qs)
            try:
                response = await self._handle(row, request)
                entry.status = 0 if isinstance(response, _NoAnswer) else response.status
                return response
            except ApiError as error:
                entry.status = error.status
                raise
            finally:
                entry.status = entry.status or 0

        return cloud if row.is_cloud_call else admin

    async def _handle(self, row: operation.Operation, http: web.Request) -> web.StreamResponse:
        self._check_token(http)
        wait_s = self.rate_limit.take()
        if row.name == "create_instance":
            wait_s = wait_s or self.order_rate_limit.take()
        if wait_s:
            raise ApiError("rate_limited", "too many calls", retry_after_s=wait_s)
        request = await _read(row, http)
        verdict = self.script.judge(faults.Call(operation=row.name, instances=self._names(request)))
        delay_s = self.settings.latency_s + verdict.delay_s
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if verdict.fault is None:
            return _answer(row, self._run(row, request))
        if verdict.fault.kind == "novelty":
            answer = msgspec.to_builtins(self._run(row, request))
            return _answer(row, faults.novel(answer))
        if verdict.fault.kind in ("deaf", "doomed"):
            return _answer(row, self._spoiled(self._run(row, request), verdict.fault))
        if verdict.fault.applied:
            self._run(row, request)
        return await self._break(http, verdict.fault)

    async def _break(self, request: web.Request, fault: faults.Fault) -> web.StreamResponse:
        if fault.kind == "error":
            raise ApiError(fault.code, fault.message, status=fault.status or 500)
        if fault.kind == "rate_limit":
            raise ApiError("rate_limited", fault.message, retry_after_s=fault.retry_after_s)
        if fault.kind in ("garbage", "empty"):
            text = fault.body if fault.kind == "garbage" else ""
            return web.Response(
                text=text, status=fault.status or 200, content_type="application/json"
            )
        if fault.kind == "hang":
            limit_s = faults.HANG_S if fault.delay_s is None else fault.delay_s
            await tasks.first_of(self.released.wait(), asyncio.sleep(limit_s), name="hang")
        if request.transport:
            request.transport.abort()
        return _NoAnswer()

    def _spoiled(self, answer: object, fault: faults.Fault) -> object:
        """The instance of an answer, after something went wrong with it that nobody is told."""
        if not isinstance(answer, world.Instance):
            return answer
        wrong = world.Interference(joins=False)
        if fault.kind == "doomed":
            wrong = world.Interference(state="error", reason=fault.message)
        return self.world.update(answer.id, wrong)

    def _names(self, request: operation.Request) -> tuple[str, ...]:
        """The words by which a fault may name the thing a call is about."""
        if request.id:
            words = (request.id, self.worlds.name_of(request.id))
        else:
            words = (getattr(request.body, "name", ""), getattr(request.query, "name", ""))
        return tuple(word for word in words if word)

    def _check_token(self, request: web.Request) -> None:
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode()
        valid = [f"Bearer {token}".encode() for token in (self.token, self.next_token) if token]
        if not any(secrets.compare_digest(given, one) for one in valid):
            raise ApiError("unauthenticated", "the bearer token is missing or wrong")

    def _run(self, row: operation.Operation, request: operation.Request) -> object:
        try:
            return row.handler(self, request)
        except world.WorldError as error:
            raise ApiError(error.code, str(error)) from error

    @web.middleware
    async def _shape_errors(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            error = ApiError("no_such_path", f"no such path: {request.path}; see GET /docs")
        except web.HTTPMethodNotAllowed:
            error = ApiError("method_not_allowed", f"{request.method} is not offered here")
        except web.HTTPRequestEntityTooLarge:
            error = ApiError("invalid", "the body is too large", status=413)
        except ApiError as raised:
            error = raised
        self._requests += 1
        body = api.ErrorBody(
            code=error.code, message=str(error), request_id=f"req-{self._requests}"
        )
        headers: dict[str, str] = {}
        if error.retry_after_s:
            headers[hdrs.RETRY_AFTER] = str(math.ceil(error.retry_after_s))
        return _json(api.Error(error=body), error.status, headers)


serve = fake_api.serve


class _NoAnswer(web.Response):
    """Returned for a connection that was cut: there is nobody to send it to."""


async def _read(row: operation.Operation, request: web.Request) -> operation.Request:
    body = None
    try:
        query = msgspec.convert(dict(request.query), row.query, strict=False)
        if row.body:
            body = msgspec.json.decode(await request.read(), type=row.body)
    except msgspec.MsgspecError as error:
        raise ApiError("invalid", str(error)) from error
    return operation.Request(id=request.match_info.get("id", ""), query=query, body=body)


def _answer(row: operation.Operation, result: object) -> web.Response:
    if row.answer is None:
        return web.Response(status=row.status)
    return _json(result, row.status)


def _json(body: object, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        headers=headers,
        content_type="application/json",
    )


async def _describe(_: web.Request) -> web.Response:
    return _json(api.describe(), 200)
