"""Transport to the API server: bytes in, bytes out.

A process has one `Transport`, shared by all clients. Each attempt of a request waits for the
client's rate and concurrency limiters, gets the current credential, is sent, and is counted. As in
client-go, a request is repeated after 429 or 5xx with a numeric Retry-After header, and a GET also
after its connection was cut. Unlike in client-go, such a 429 pauses all requests of the client, and
then reduces their concurrency (`ConcurrencyLimiter.back_off`). A request whose credential was
rejected is repeated once if the credential could be renewed. There are no redirects, cookies or
proxies. In this package, only this module, `connections` and `portforward` use aiohttp for I/O.
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
from ccm.base.lazy_aiohttp import HttpProcessingError, aiohttp, describe_error
from ccm.base.log import logger
from ccm.base.throttle import ConcurrencyLimiter, Limiter, Unlimited
from ccm.kube import errors, metrics
from ccm.kube.config import ClusterConfig
from ccm.kube.connections import PooledSession, ServerResponse, SessionPool
from ccm.kube.credentials import Credential
from ccm.kube.errors import FailureKind

MAX_RETRIES = 10
"""Maximum retries of one request (client-go, rest request)."""

CUT_RETRY_S = 1.0
"""Delay in seconds before a GET is repeated after a cut connection (client-go, rest request)."""

WATCH_START_TIMEOUT_S = 30.0
"""Time limit in seconds for the head of the response to a streamed GET. The stream itself has no
time limit; without this one, a server that hangs at the start would not be noticed."""

MAX_LINE = 32 * 1024 * 1024
"""Maximum bytes of a watch line; an object has at most a few MiB, so a longer line is invalid."""

MAX_PAUSE_S = 32.0
"""Maximum seconds for which a 429 pauses a client: kube-apiserver's maximum of Retry-After. A
longer one, perhaps of a proxy, delays only its own request."""

_FLOW_SCHEMA = "X-Kubernetes-PF-FlowSchema-UID"
"""Header of every response by which an API server names the FlowSchema of the request
(kube-apiserver 1.20)."""

_SLOW_LIMITER_S = 0.05
"""A wait for the rate limiter that takes more than these seconds is logged (client-go)."""

_UNLIMITED = contextlib.nullcontext()
_READS_ONLY = "this program is read-only"

_EXCHANGE_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)


@dataclass(slots=True, kw_only=True)  # not frozen: that would cost time at each request
class _Call:
    """Request without its credential."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_s: float
    limiter: Limiter
    concurrency: ConcurrencyLimiter
    retry: bool = True
    urgent: bool = False
    streamed: bool = False
    silence_s: float | None = None


_Exchanged = tuple[ServerResponse, bytes, PooledSession]
"""Response, body and session. For a stream with a status below 300 the body is empty, and the
response and the session stay in use."""


class Transport:
    """Transport to the API server; use it as an async context manager.

    Args:
        config: address of the server, and the identity.
        user_agent: user agent of the process in the server's logs; clients append their names.
        read_only: whether to refuse all methods except GET; lists and watches are GETs.

    Attributes:
        clock: clock of the server.
        has_fairness: whether a response has shown that the server has API Priority and Fairness.
    """

    def __init__(
        self, config: ClusterConfig, *, user_agent: str = "ccm", read_only: bool = False
    ) -> None:
        self._log = logger("kube")
        self._reads_only = read_only
        self.config = config
        self.user_agent = user_agent
        self.clock = ServerClock()
        server = URL(config.server)
        self.host = server.authority
        self._root = server.raw_path.rstrip("/")
        self._encoding = "identity" if config.disable_compression else "gzip"
        self.has_fairness = False
        self._sessions = SessionPool(config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.close()

    def adopt(self, config: ClusterConfig) -> None:
        """Use the credentials and TLS settings of `config` from the next request on.

        The server must be the same.
        """
        assert config.server == self.config.server
        self.config = config
        self._sessions.adopt(config)

    async def do(  # noqa: PLR0913 - properties of one request
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        limiter: Limiter | None = None,
        concurrency: ConcurrencyLimiter | None = None,
        user_agent: str | None = None,
        retry: bool = True,
        urgent: bool = False,
    ) -> bytes:
        """Send a request and return the body of its response.

        Args:
            method: HTTP method.
            path: percent-encoded path.
            query: parameters, not encoded.
            body: body of the request; None = no body.
            content_type: type of the body.
            headers: further headers, such as those of an impersonation.
            timeout_s: time limit in seconds of each attempt. client-go has no limit by default; but
                here a request to a server that hangs would occupy a concurrency slot.
            limiter: rate limiter, awaited before each attempt; None = unlimited.
            concurrency: concurrency limiter of the client; None = only this request.
            user_agent: user agent of the request; None = that of the process.
            retry: whether to repeat the request by the rules of the module docstring. With False it
                is repeated only with a renewed credential, and a 429 concerns no other request: it
                may be a refused eviction.
            urgent: whether the request bypasses the lease guard; for requests about the Lease.

        Raises:
            errors.ApiError: the server answered with an error.
            errors.Unreachable: there was no response.
            errors.WriteRefused: the method is not GET, and this transport is read-only.
        """
        sent = self._headers(user_agent, self._encoding) | dict(headers or {})
        if body is not None:
            sent["Content-Type"] = content_type
        call = _Call(
            method=method,
            path=f"{self._root}{path}",
            query=_encoded(query),
            headers=sent,
            body=body,
            timeout_s=timeout_s,
            limiter=limiter or Unlimited(),
            concurrency=concurrency or ConcurrencyLimiter(),
            retry=retry,
            urgent=urgent,
        )
        return (await self._send_with_retry(call))[1]

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        limiter: Limiter | None = None,
        concurrency: ConcurrencyLimiter | None = None,
        idle_timeout_s: float,
        user_agent: str | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a GET and yield the lines of its response until the server ends the response.

        `idle_timeout_s` is the maximum number of seconds without a byte. Leaving the context closes
        the connection.

        Raises:
            errors.ApiError: the server answered with an error.
            errors.Unreachable: there was no response, the connection was cut, or no byte arrived
                for too long.
        """
        call = _Call(
            method="GET",
            path=f"{self._root}{path}",
            query=_encoded(query),
            headers=self._headers(user_agent, "identity"),
            body=None,
            timeout_s=WATCH_START_TIMEOUT_S,
            limiter=limiter or Unlimited(),
            concurrency=concurrency or ConcurrencyLimiter(),
            streamed=True,
            silence_s=idle_timeout_s,
        )
        response, _, pooled = await self._send_with_retry(call)
        try:
            async with contextlib.aclosing(self._lines(response)) as lines:
                yield lines
        finally:
            response.close()
            await self._sessions.release(pooled)

    async def _send_with_retry(self, call: _Call) -> _Exchanged:
        """Send a request, and repeat it by the rules of the module docstring."""
        if self._reads_only and call.method != "GET":
            raise errors.WriteRefused(f"{call.method} {call.path} is not sent: {_READS_ONLY}")
        # A stream would occupy its slot for its whole duration.
        slot = _UNLIMITED if call.streamed else call.concurrency
        renewed = False
        attempt = 0
        while True:
            waited = await call.limiter.acquire()
            metrics.limiter_duration(call.method, self.host).observe(waited)
            if waited > _SLOW_LIMITER_S:
                self._log.debug("waited for the rate limiter", waited_s=round(waited, 3))
            problem: errors.KubeError
            try:
                async with slot:
                    await call.concurrency.wait_while_paused()
                    # Last, because a credential may expire during the waits.
                    credential = await self.config.credentials.current()
                    sent_at = clock.monotonic()
                    answer = await self._exchange(call, credential, is_retry=attempt > 0)
            except errors.Unreachable as cut:
                problem = cut
                delay = CUT_RETRY_S if call.method == "GET" and cut.kind == "reset" else None
            else:
                response, body, _ = answer
                self.has_fairness = self.has_fairness or _FLOW_SCHEMA in response.headers
                if response.status < 300:
                    return answer
                problem = errors.from_response(response.status, response.headers, body)
                may_repeat = response.status == 429 or response.status >= 500
                delay = errors.retry_after_seconds(response.headers) if may_repeat else None
            # Only once per request: a second 401 means that the renewed credential was rejected.
            is_rejected = isinstance(problem, errors.Unauthorized) and not renewed
            if is_rejected and await self.config.credentials.refresh_rejected(credential, sent_at):
                renewed = True
                attempt += 1
                continue
            if delay is None or not call.retry:
                raise problem
            if isinstance(problem, errors.TooManyRequests):
                call.concurrency.back_off(min(delay, MAX_PAUSE_S))
            if attempt >= MAX_RETRIES:
                raise problem
            self._log.debug("request failed, retrying", after_s=delay, error=str(problem))
            await asyncio.sleep(delay)
            attempt += 1

    async def _exchange(self, call: _Call, credential: Credential, *, is_retry: bool) -> _Exchanged:
        """Make one attempt, and count it in the metrics.

        Raises:
            errors.Unreachable: there was no complete response.
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
                self.clock.read_date_header(response.headers.get("Date"))
                is_kept = call.streamed and response.status < 300
                body = b"" if is_kept else await response.read()
            if not is_kept:
                metrics.response_size(call.method, self.host).observe(len(body))
            return response, body, pooled
        except _EXCHANGE_ERRORS as problem:
            raise self._unreachable(f"{call.method} {call.path}", problem) from problem
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

    async def _lines(self, response: ServerResponse) -> AsyncGenerator[bytes, None]:
        """Yield the non-empty lines of a stream; the last line may lack its line break."""
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
                    raise ValueError(f"a line exceeds {MAX_LINE} bytes")
        except aiohttp.SocketTimeoutError as problem:
            raise errors.Unreachable(
                f"watch at {self.host}: no data within the idle timeout", kind="silent"
            ) from problem
        except _EXCHANGE_ERRORS as problem:
            raise self._unreachable("watch", problem) from problem
        if rest := b"".join(parts):
            yield rest

    def _unreachable(self, what: str, problem: Exception) -> errors.Unreachable:
        return errors.Unreachable(
            f"{what}: no response from {self.host}: {describe_error(problem)}",
            kind=failure_kind(problem),
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
    """Return the time limit of one attempt.

    A write also ends when the lease expires, unless the call is urgent.
    """
    free = call.urgent or call.method == "GET"
    return asyncio.timeout(call.timeout_s) if free else lease_guard.limit(call.timeout_s)


def failure_kind(problem: BaseException) -> FailureKind:
    """Return the category of an error that ended an exchange without a complete response."""
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


CLOCK_READ_INTERVAL_S = 1.0
"""Minimum seconds between two readings of the `Date` header, whose resolution is 1 s."""


class ServerClock:
    """Clock of the API server, from the `Date` headers of responses.

    Until the first response it equals the local clock.
    """

    def __init__(self) -> None:
        self._reading: tuple[datetime, float] | None = None

    def read_date_header(self, date: str | None) -> None:
        """Set the clock by the `Date` header of a response that has just arrived.

        An invalid header is ignored.
        """
        now = clock.monotonic()
        if not date or (
            self._reading is not None and now - self._reading[1] < CLOCK_READ_INTERVAL_S
        ):
            return
        try:
            server_time = parsedate_to_datetime(date)
        except ValueError:
            return
        self._reading = (
            server_time if server_time.tzinfo else server_time.replace(tzinfo=UTC),
            now,
        )

    def now(self) -> datetime:
        """Return the current time of the server."""
        if self._reading is None:
            return clock.now()
        server_time, read_at = self._reading
        return server_time + timedelta(seconds=clock.monotonic() - read_at)
