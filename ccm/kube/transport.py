"""The wire to the API server: bytes in, bytes out.

One `Transport` per process, shared by all clients. Each attempt of a request takes a
turn at the client's rate limiter, asks for the current credential, is sent, and is
counted. Repeated are only (client-go's rules): answers 429 and 5xx with a numeric
Retry-After header, a GET that was cut, and once any request whose rejected credential
could be renewed. There are no redirects, cookies or proxies. Beside `connections` no other
module of this package sends or reads by aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Self
from urllib.parse import quote, urlencode

from yarl import URL

from ccm.base import clock, lease_guard
from ccm.base.log import logger
from ccm.base.throttle import Limiter, Unlimited
from ccm.base.wire import HttpProcessingError, aiohttp, reason
from ccm.kube import errors, metrics
from ccm.kube.config import ClusterConfig
from ccm.kube.connections import ConcurrencyLimiter, PooledSession, Response, Sessions
from ccm.kube.credentials import Credential
from ccm.kube.errors import Trouble

MAX_RETRIES = 10
"""Repetitions of one request (client-go, rest request)."""

CUT_RETRY_S = 1.0
"""Pause before a GET that was cut is sent again (client-go, rest request)."""

WATCH_START_TIMEOUT_S = 30.0

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one watch line; an object is at most a few MiB, so more is garbage."""

_SLOW_TURN_S = 0.05
"""A wait for the rate limiter above this is logged (client-go)."""

_UNLIMITED = contextlib.nullcontext()
_READS_ONLY = "this program only looks, and never writes"

_TROUBLE = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)


@dataclass(slots=True, kw_only=True)  # not frozen, which costs at each request
class _Call:
    """One request, apart from its credential."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_s: float
    limiter: Limiter
    retry: bool = True
    urgent: bool = False
    streamed: bool = False
    silence_s: float | None = None


_Answer = tuple[Response, bytes, PooledSession]
"""What came back, and the body; a stream that was accepted keeps its response and its session."""


class Transport:
    """The wire; use it as an async context manager.

    Args:
        config: where the server is and who we are.
        user_agent: the process' name for the server's logs; clients append their own.
        reads_only: refuse to send anything but GET, which lists and watches are too.

    Attributes:
        clock: the server's.
    """

    def __init__(
        self, config: ClusterConfig, *, user_agent: str = "ccm", reads_only: bool = False
    ) -> None:
        self._log = logger("kube")
        self._reads_only = reads_only
        self.config = config
        self.user_agent = user_agent
        self.clock = ServerClock()
        server = URL(config.server)
        self.host = server.authority
        self._root = server.raw_path.rstrip("/")
        self._encoding = "identity" if config.disable_compression else "gzip"
        self._concurrency = ConcurrencyLimiter()
        self._sessions = Sessions(config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.close()

    def adopt(self, config: ClusterConfig) -> None:
        """Use other credentials and TLS material from the next request on; the server stays."""
        assert config.server == self.config.server
        self.config = config
        self._sessions.adopt(config)

    async def do(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = 30.0,
        limiter: Limiter | None = None,
        user_agent: str | None = None,
        retry: bool = True,
        urgent: bool = False,
    ) -> bytes:
        """Send a request and return the body of its answer.

        Args:
            method: HTTP method.
            path: encoded already.
            query: parameters, not encoded.
            body: what to send.
            content_type: type of the body.
            timeout_s: limit of each attempt.
            limiter: waits for a turn before each attempt.
            user_agent: instead of the process' own.
            retry: False: one attempt, apart from a renewed credential.
            urgent: waits behind no other request, and for no lease that holds: it is about one.

        Raises:
            errors.ApiError: the server answered with an error.
            errors.Unreachable: there was no answer.
            errors.WriteRefused: it would write, and this wire only reads.
        """
        headers = self._headers(user_agent, self._encoding)
        if body is not None:
            headers["Content-Type"] = content_type
        call = _Call(
            method=method,
            path=f"{self._root}{path}",
            query=_encoded(query),
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            limiter=limiter or Unlimited(),
            retry=retry,
            urgent=urgent,
        )
        return (await self._run(call))[1]

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        limiter: Limiter | None = None,
        idle_timeout_s: float,
        user_agent: str | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a GET and read its answer line by line, for as long as the server sends.

        `idle_timeout_s` is the longest silence. Leaving the context closes the connection.

        Raises:
            errors.ApiError: the server answered with an error.
            errors.Unreachable: there was no answer, it was cut, or it fell silent.
        """
        call = _Call(
            method="GET",
            path=f"{self._root}{path}",
            query=_encoded(query),
            headers=self._headers(user_agent, "identity"),
            body=None,
            timeout_s=WATCH_START_TIMEOUT_S,
            limiter=limiter or Unlimited(),
            streamed=True,
            silence_s=idle_timeout_s,
        )
        response, _, pooled = await self._run(call)
        try:
            async with contextlib.aclosing(self._lines(response)) as lines:
                yield lines
        finally:
            response.close()
            await self._sessions.release(pooled)

    async def _run(self, call: _Call) -> _Answer:
        """Attempts until one succeeds or the rules say no."""
        if self._reads_only and call.method != "GET":
            raise errors.WriteRefused(f"{call.method} {call.path} is not sent: {_READS_ONLY}")
        # A stream would hold its slot for ever.
        slot = _UNLIMITED if call.streamed or call.urgent else self._concurrency
        renewed = False
        attempt = 0
        while True:
            waited = await call.limiter.acquire()
            metrics.limiter_duration(call.method, self.host).observe(waited)
            if waited > _SLOW_TURN_S:
                self._log.debug("waited for the rate limiter", waited_s=round(waited, 3))
            credential = await self.config.credentials.current()
            sent_at = clock.monotonic()
            problem: errors.KubeError
            try:
                async with slot:
                    answer = await self._exchange(call, credential, is_retry=attempt > 0)
            except errors.Unreachable as cut:
                problem = cut
                delay = CUT_RETRY_S if call.method == "GET" and cut.kind == "reset" else None
            else:
                response, body, _ = answer
                if response.status < 300:
                    return answer
                problem = errors.from_response(response.status, response.headers, body)
                may_repeat = response.status == 429 or response.status >= 500
                delay = errors.retry_after_seconds(response.headers) if may_repeat else None
            is_rejected = isinstance(problem, errors.Unauthorized) and not renewed
            if is_rejected and await self.config.credentials.rejected(credential, sent_at):
                renewed = True
                attempt += 1
                continue
            if delay is None or not call.retry or attempt >= MAX_RETRIES:
                raise problem
            self._log.debug("request is repeated", after_s=delay, error=str(problem))
            await asyncio.sleep(delay)
            attempt += 1

    async def _exchange(self, call: _Call, credential: Credential, *, is_retry: bool) -> _Answer:
        """One attempt, counted.

        Raises:
            errors.Unreachable: there was no whole answer.
        """
        pooled = await self._sessions.acquire(credential)
        code, started, is_kept = metrics.ERROR_CODE, clock.monotonic(), False
        try:
            async with _limit(call):
                headers = call.headers
                if credential.header is not None:
                    headers = {**headers, "Authorization": credential.header}
                response = await pooled.connections.send(
                    call.method,
                    call.path + call.query,
                    headers,
                    call.body,
                    silence_s=call.silence_s,
                )
                code = str(response.status)
                self.clock.note(response.headers.get("Date"))
                is_kept = call.streamed and response.status < 300
                body = b"" if is_kept else await response.read()
            if not is_kept:
                metrics.response_size(call.method, self.host).observe(len(body))
            return response, body, pooled
        except _TROUBLE as problem:
            raise self._trouble(f"{call.method} {call.path}", problem) from problem
        finally:
            self._count(call, code, clock.monotonic() - started, is_retry=is_retry)
            if not is_kept:
                await self._sessions.release(pooled)

    def _count(self, call: _Call, code: str, seconds: float, *, is_retry: bool) -> None:
        method = call.method
        metrics.requests(code, method, self.host).inc()
        metrics.request_duration(method, self.host).observe(seconds)
        metrics.request_size(method, self.host).observe(len(call.body or b""))
        if is_retry:
            metrics.retries(code, method, self.host).inc()

    async def _lines(self, response: Response) -> AsyncGenerator[bytes, None]:
        """The lines of a stream; a last one without its end is handed on as it is."""
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in response.content.iter_any():
                first, *others = chunk.split(b"\n")
                parts.append(first)
                size += len(first)
                if others:
                    *whole, last = (b"".join(parts), *others)
                    parts, size = [last], len(last)
                    for line in filter(None, whole):
                        yield line
                if size > MAX_LINE:
                    raise ValueError(f"a line has more than {MAX_LINE} bytes")
        except aiohttp.SocketTimeoutError as problem:
            raise errors.Unreachable(
                f"the watch at {self.host} fell silent", kind="silent"
            ) from problem
        except _TROUBLE as problem:
            raise self._trouble("the watch", problem) from problem
        if rest := b"".join(parts):
            yield rest

    def _trouble(self, what: str, problem: Exception) -> errors.Unreachable:
        return errors.Unreachable(
            f"{what}: no answer from {self.host}: {reason(problem)}", kind=trouble_kind(problem)
        )

    def _headers(self, user_agent: str | None, encoding: str) -> dict[str, str]:
        return {
            "Accept": "application/json",
            "Accept-Encoding": encoding,
            "User-Agent": user_agent or self.user_agent,
        }


def _encoded(query: Mapping[str, str] | None) -> str:
    return f"?{urlencode(query, quote_via=quote)}" if query else ""


def _limit(call: _Call) -> AbstractAsyncContextManager[object]:
    """The limit of one attempt: what changes something ends with our lease too."""
    free = call.urgent or call.method == "GET"
    return asyncio.timeout(call.timeout_s) if free else lease_guard.limit(call.timeout_s)


def trouble_kind(problem: BaseException) -> Trouble:
    """What happened, told from the exception."""
    if isinstance(problem, aiohttp.ClientSSLError | ssl.SSLError) or isinstance(
        problem.__cause__, ssl.SSLError
    ):
        return "tls"
    if isinstance(problem, TimeoutError):
        return "timeout"
    if isinstance(problem, aiohttp.ClientConnectorError | aiohttp.ClientConnectorDNSError):
        return "refused"
    if isinstance(
        problem, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError
    ):
        return "reset"
    if isinstance(problem, aiohttp.ClientOSError):
        return "reset"
    if isinstance(problem, OSError):
        return "refused"
    return "garbage"


EVERY_S = 1.0
"""A later answer than that is read again; the times in them have no smaller step."""


class ServerClock:
    """The server's clock; our own, until the server has said anything."""

    def __init__(self) -> None:
        self._told: tuple[datetime, float] | None = None

    def note(self, date: str | None) -> None:
        """The header `Date` of an answer that has just come; one that says nothing is left."""
        now = clock.monotonic()
        if not date or (self._told is not None and now - self._told[1] < EVERY_S):
            return
        try:
            told = parsedate_to_datetime(date)
        except ValueError:
            return
        self._told = (told if told.tzinfo else told.replace(tzinfo=UTC), now)

    def now(self) -> datetime:
        """The time at the server."""
        if self._told is None:
            return clock.now()
        told, at = self._told
        return told + timedelta(seconds=clock.monotonic() - at)
