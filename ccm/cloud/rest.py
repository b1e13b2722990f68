"""HTTP client for providers whose cloud has a JSON API; it follows the daemon's rules for errors.

Every response becomes a value or an error of `ccm.cloud.errors`; exceptions of the HTTP library
never leave this module. The client raises `NotFound` only if both the HTTP status is 404 and the
cloud's error code means absence, because the daemon deletes nodes whose instance is absent. A 404
of a proxy and an empty or malformed body are ordinary errors. The client does not retry, because
the daemon schedules retries; only aiohttp repeats an idempotent request once if a reused connection
breaks.

The number of concurrent requests adapts to the cloud (`ConcurrencyLimiter`), separately for reads
(GET) and for changes. A response whose status maps to `RetryAfter` pauses all reads, or all
changes, for its `Retry-After`. A request that would wait longer than `MAX_PAUSE_S` is not sent; it
raises `RetryAfter` with the rest of the pause.

Importing `ccm.cloud` loads no HTTP library, so import this module explicitly.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from asyncio_throttle.throttler import Throttler

from ccm.base import credentials, lease_guard, proxies, redact
from ccm.base.backoff import RETRY_AFTER_LIMIT_S
from ccm.base.clock import monotonic, now
from ccm.base.decoding import DECODE_ERRORS
from ccm.base.lazy_aiohttp import aiohttp, describe_error
from ccm.base.throttle import ConcurrencyLimiter
from ccm.cloud import errors
from ccm.cloud.blocking import OPERATION
from ccm.cloud.settings import ConfigError

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""Delay in seconds if a response has no `Retry-After` header or an invalid one."""

MAX_PAUSE_S = 5.0
"""Maximum seconds that a request waits in a pause; in a longer one it would occupy a worker, and
use up the deadline of its call."""

_INITIAL_CONCURRENCY = 32
"""Initial number of concurrent reads, and of concurrent changes."""

_LOWEST_CONCURRENCY = 8
"""Minimum to which longer durations reduce the concurrency; `RetryAfter` reduces it further."""

STATUSES: Mapping[int, type[errors.CloudError]] = MappingProxyType(
    {
        400: errors.InvalidArgument,
        401: errors.Unauthenticated,
        403: errors.PermissionDenied,
        408: errors.DeadlineExceeded,
        409: errors.Aborted,
        429: errors.RetryAfter,
        504: errors.DeadlineExceeded,
    }
)
"""HTTP status -> error class; other 5xx are `Unavailable`, and all other statuses are `Unknown`."""

Statuses = int | Collection[int]

JSON = "application/json"
"""Default content type of requests."""

SUCCESS: Mapping[str, Statuses] = MappingProxyType(
    {"GET": 200, "POST": 201, "PUT": 200, "PATCH": 200, "DELETE": 204}
)
"""Method -> default statuses of success.

If a method has several statuses, a response must have a body unless its status is 202 or 204.
"""


ANSWER_LIMIT = 32 << 20
"""Maximum bytes of one response after decompression; the whole body is held in memory."""

_CHUNK_BYTES = 64 << 10
"""Bytes read and decompressed at a time."""

REFUSAL_LIMIT = 16384
"""Maximum bytes of a body, and maximum characters of headers, in a `Refusal`."""

UNDECODABLE = DECODE_ERRORS  # alias for one release


class Refusal(NamedTuple):
    """Unsuccessful response, attached to the `CloudError` as its `refusal`.

    Attributes:
        code: the cloud's error code.
        message: the cloud's error message.
        headers: headers of the response, names in lower case; set by the client.
        body: body of the response, cut at `REFUSAL_LIMIT`; set by the client; may
            quote credentials.
    """

    code: str = ""
    message: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class Quota(Protocol):
    """Rate limiter that keeps requests within a cloud's quota."""

    async def acquire(self) -> None:
        """Wait until a request is allowed."""

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Update the limiter from status and headers of a response."""


class Authorizer(Protocol):
    """Source of credentials that change, such as short-lived tokens."""

    async def header(self) -> str:
        """Return the value of the client's `auth_header`; empty for none.

        It is a scheme and a secret, or only a secret.

        Raises:
            CloudError: no credentials are available; the request is not sent.
        """

    def refused(self, header: str) -> bool:
        """Handle a response 401 to a request with this header value.

        Return True to repeat the request once with a new `header`. That is safe, because a
        request rejected with 401 had no effect.
        """


RENEW_BEFORE_S = 60.0
"""Seconds before its expiry at which a `RenewedToken` is renewed."""

MIN_RENEW_AGE_S = 10.0
"""Age in seconds below which a refused token is not renewed: a new one would be refused too."""


class RenewedToken(ABC):
    """Base class of an `Authorizer` whose tokens expire.

    A token is renewed before it expires, and after a response 401. A failed renewal has no effect
    while the current token is valid.

    Args:
        scheme: scheme before the token in the header, such as `Bearer`; empty = none.
    """

    def __init__(self, scheme: str = "") -> None:
        self._prefix = f"{scheme} " if scheme else ""
        self._lock = asyncio.Lock()
        self._header = ""
        self._renewed_at = self._renew_at = self._ends_at = -math.inf

    @abstractmethod
    async def request_token(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds; never called concurrently."""

    async def header(self) -> str:
        """Return the header with a valid token; renews the token if necessary."""
        async with self._lock:
            if monotonic() >= self._renew_at:
                await self._renew()
            return self._header

    def refused(self, header: str) -> bool:
        """Mark a refused token for renewal in the next call; return whether a retry makes sense.

        False: the token is too new; a renewed token would be refused as well.
        """
        if header != self._header:
            return True  # another call has renewed it meanwhile
        if monotonic() - self._renewed_at < MIN_RENEW_AGE_S:
            return False
        self._renew_at = self._ends_at = monotonic()
        return True

    async def _renew(self) -> None:
        try:
            token, lifetime_s = await self.request_token()
        except errors.CloudError:
            if monotonic() < self._ends_at - 1.0:
                return
            raise
        redact.register(token, lasting=False)
        self._header = f"{self._prefix}{token}"
        self._renewed_at = monotonic()
        self._ends_at = self._renewed_at + lifetime_s
        self._renew_at = self._ends_at - min(RENEW_BEFORE_S, lifetime_s / 2)


class QuotaLimiter:
    """Rate limiter that allows at most `calls` requests in any `period_s` seconds, in FIFO order.

    For a quota of the form "N calls per period"; bursts beyond the quota wait. Raises ValueError
    for a quota that allows no calls.
    """

    def __init__(self, *, calls: int, period_s: float) -> None:
        if calls < 1 or period_s <= 0:
            raise ValueError(f"a quota needs calls >= 1 and a period > 0, not {calls}/{period_s}")
        self._throttler = Throttler(rate_limit=calls, period=period_s)
        # The throttler serves its waiters in no order; the lock admits one waiter at a time.
        self._lock = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait until the window has room for a request."""
        async with self._lock, self._throttler:
            return

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Do nothing: this quota is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RestClient:
    """HTTP client of one cloud; create it with `open_client`.

    Every method raises only classes of `ccm.cloud.errors`:

    * for an unsuccessful response, the class of the cloud's error code (`codes`) or else of the
      status (`statuses`), with a `Refusal` as its `refusal`;
    * `DeadlineExceeded` after a time-out, `Unavailable` if the cloud is unreachable, and `Unknown`
      for a malformed response.
    """

    session: aiohttp.ClientSession
    url: str
    proxy: str
    authorization: str
    refusal: Callable[[bytes], Refusal]
    codes: Mapping[str, type[errors.CloudError]]
    statuses: Mapping[int, type[errors.CloudError]]
    success: Mapping[str, Statuses]
    quota: Quota | None
    authorizer: Authorizer | None
    answer_limit: int
    auth_header: str = "Authorization"
    reads: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    changes: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)

    async def get(
        self,
        path: str,
        answer: type[T],
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a GET request and decode the response as type `answer`."""
        body = await self.request("GET", path, query=query, headers=headers)
        return decode_json(f"GET {path}", body, answer)

    async def send(
        self,
        method: str,
        path: str,
        content: object,
        answer: type[T],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send `content` as JSON and decode the response as type `answer`."""
        data = msgspec.json.encode(content)
        body = await self.request(method, path, data=data, headers=headers)
        return decode_json(f"{method} {path}", body, answer)

    async def pages(
        self,
        path: str,
        page: type[T],
        query: Mapping[str, str],
        *,
        after: Callable[[T], Mapping[str, str] | None],
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[T]:
        """Yield the pages of a listing, with one request per page.

        Args:
            path: path of the listing.
            page: type of one page. Declare the field that refers to the next page as required;
                otherwise a response without it would silently truncate the listing.
            query: query parameters of every page.
            after: function from a page to the additional query parameters of the next page;
                None = last page.
            headers: additional headers.

        Raises:
            Unknown: `after` repeats earlier parameters, so the listing would never end.
        """
        seen: list[Mapping[str, str]] = []
        more: Mapping[str, str] | None = {}
        while more is not None:
            if more in seen:
                raise errors.Unknown(f"GET {path}: endless listing: page {more} repeated")
            seen.append(more)
            entry = await self.get(path, page, {**query, **more}, headers=headers)
            yield entry
            more = after(entry)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request and return the body of a successful response.

        Args:
            method: GET, POST, ...
            path: path relative to the client's URL, already quoted.
            query: query parameters.
            data: request body, JSON unless `headers` set another content type.
            headers: additional headers.
        """
        what = f"{method} {path or self.url}"
        request_headers = {**({"Content-Type": JSON} if data else {}), **(headers or {})}
        authorization = await self._authorize(request_headers)
        response, body = await self._send(what, method, path, query, data, request_headers)
        if response.status == 401 and self.authorizer and self.authorizer.refused(authorization):
            authorization = await self._authorize(request_headers)
            response, body = await self._send(what, method, path, query, data, request_headers)
        success = self.success[method]
        allowed = (success,) if isinstance(success, int) else success
        if response.status not in allowed:
            raise self._build_error(what, response, body, authorization)
        if len(allowed) > 1 and not body and response.status not in (202, 204):
            raise errors.Unknown(f"{what}: HTTP {response.status} without a body")
        return body

    async def _authorize(self, headers: dict[str, str]) -> str:
        """Add the `auth_header` to the headers of a request, and return its value.

        Session headers must not contain credentials, because aiohttp sends session headers to a
        proxy too.
        """
        authorization = self.authorization
        if self.authorizer is not None:
            try:
                authorization = _check_header(await self.authorizer.header())
            except ValueError as error:
                raise errors.Unauthenticated(f"{self.url}: the credentials {error}") from None
        if authorization:
            headers[self.auth_header] = authorization
        return authorization

    async def _send(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Send a request and return the response with its body, whatever the status."""
        if self.quota is not None:
            await self.quota.acquire()
        concurrency = self.reads if method == "GET" else self.changes
        try:
            async with concurrency:
                if (pause_s := concurrency.pause_s) > MAX_PAUSE_S:
                    text = f"{what}: not sent, because the cloud refuses requests for a while"
                    raise errors.RetryAfter(text, seconds=pause_s)
                await concurrency.wait_while_paused()
                lease_guard.check_current_guard()
                sent_at = monotonic()
                async with self.session.request(
                    method,
                    self.url + path,
                    params=query,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                ) as response:
                    body = await self._read(what, response)
                if response.status < 300:  # errors may be quick although the cloud is slow
                    concurrency.observe(f"{OPERATION.get()} {method}", monotonic() - sent_at)
                if self.statuses.get(response.status) is errors.RetryAfter:
                    concurrency.back_off(_retry_after_s(response.headers.get("Retry-After", "")))
        except TimeoutError as error:
            raise errors.DeadlineExceeded(f"{what}: request timed out") from error
        except aiohttp.ClientError as error:
            through = (
                f" through the proxy {proxies.without_credentials(self.proxy)}"
                if self.proxy
                else ""
            )
            message = f"{what}: no response from {self.url}{through}: {describe_error(error)}"
            raise errors.Unavailable(_mask(message, headers.get(self.auth_header, ""))) from error
        if self.quota is not None:
            self.quota.hear(response.status, response.headers)
        return response, body

    async def _read(self, what: str, response: aiohttp.ClientResponse) -> bytes:
        """Return the decompressed body. Raises Unknown if it exceeds `answer_limit`."""
        body = bytearray()
        # In pieces, because `response.read()` would decompress all received data before a check.
        async for piece in response.content.iter_chunked(_CHUNK_BYTES):
            body += piece
            if len(body) > self.answer_limit:
                response.close()
                raise errors.Unknown(
                    f"{what}: the response has more than {self.answer_limit} bytes; increase the "
                    "answer_limit of the provider's client if the cloud needs larger responses"
                )
        return bytes(body)

    def _build_error(
        self, what: str, response: aiohttp.ClientResponse, body: bytes, authorization: str
    ) -> errors.CloudError:
        """Build the error for an unsuccessful response."""
        status = response.status
        try:
            refusal = self.refusal(body)
        except DECODE_ERRORS:
            refusal = Refusal()
        suffix = f" {refusal.code}: {refusal.message}" if refusal.code else ""
        text = _mask(f"{what}: HTTP {status}{suffix}", authorization)
        default = errors.Unavailable if status >= 500 else errors.Unknown
        kind = self.statuses.get(status, default)
        if kind is not errors.RetryAfter:
            by_code = self.codes.get(refusal.code, kind)
            is_believed = status == 404 or not issubclass(by_code, errors.NotFound)
            kind = by_code if is_believed else kind
        if issubclass(kind, errors.RetryAfter):
            seconds = _retry_after_s(response.headers.get("Retry-After", ""))
            error: errors.CloudError = kind(text, seconds=seconds)
        else:
            error = kind(text)
        error.refusal = refusal._replace(
            headers=_limited_headers(response.headers), body=body[:REFUSAL_LIMIT]
        )
        return error


@contextlib.asynccontextmanager
async def open_client(  # noqa: PLR0913 - settings by name, most with a default
    url: str,
    *,
    refusal: Callable[[bytes], Refusal],
    codes: Mapping[str, type[errors.CloudError]],
    authorization: str | Authorizer = "",
    timeout_s: float = 30.0,
    connect_timeout_s: float = 5.0,
    connections: int = 100,
    quota: Quota | None = None,
    statuses: Mapping[int, type[errors.CloudError]] = STATUSES,
    success: Mapping[str, Statuses] = SUCCESS,
    answer_limit: int = ANSWER_LIMIT,
    auth_header: str = "Authorization",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[RestClient]:
    """Open a client with its own connection pool; the context closes it.

    Requests use the proxy of HTTPS_PROXY or HTTP_PROXY, except for hosts in NO_PROXY and
    loopback, link-local and metadata addresses.

    Args:
        url: base URL of all paths.
        refusal: parses the body of an error; it may raise the errors of msgspec.
        codes: error code of the cloud -> error class; takes precedence over `statuses`, unless
            `statuses` maps the status to `RetryAfter`. `NotFound` counts only with status 404. The
            `Retry-After` header determines the delay of a `RetryAfter`.
        authorization: value of `auth_header`, a scheme and a secret, or an `Authorizer` that
            returns it for each request. Errors never contain it.
        timeout_s: limit of one request in seconds, from connecting to the last byte; keep it below
            the deadlines of the provider's calls.
        connect_timeout_s: limit for obtaining a connection, in seconds.
        connections: maximum number of connections, at least 2; half of them for reads.
        quota: rate limiter of the requests; None = no limit.
        statuses: HTTP status -> error class, for a response whose error code is not in `codes`.
        success: method -> its success status or statuses. Any other status is an error, even 200.
        answer_limit: maximum bytes of one response after decompression; a larger one raises
            `Unknown`.
        auth_header: header that carries `authorization`.
        tls: TLS settings, such as a certificate authority of the cloud's own; None = the system's.

    Raises:
        ConfigError: both the URL and `authorization` contain credentials, a proxy variable is not
            the URL of an HTTP proxy, or the authorization is invalid in a header.
    """
    if authorization and "@" in urlsplit(url).netloc:
        raise ConfigError(
            f"the URL of the cloud, {redact.mask_text(url)}, contains a user or a password; "
            "remove them, because other credentials are configured"
        )
    try:
        proxy = proxies.ProxySettings.from_environ().proxy_for(url)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        fixed = _check_header(authorization) if isinstance(authorization, str) else ""
    except ValueError as error:
        raise ConfigError(f"the authorization for {redact.mask_text(url)} {error}") from None
    timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_timeout_s)
    # More requests would wait for a connection, and fail after `connect_timeout_s`.
    highest = max(1, connections // 2)
    reads, changes = (
        ConcurrencyLimiter(
            min(_INITIAL_CONCURRENCY, highest), lowest=_LOWEST_CONCURRENCY, highest=highest
        )
        for _ in range(2)
    )
    async with aiohttp.ClientSession(
        timeout=timeout,
        proxy=proxy or None,
        trust_env=False,
        connector=aiohttp.TCPConnector(limit=connections, ssl=True if tls is None else tls),
    ) as session:
        with redact.registered(_secret(fixed)):
            yield RestClient(
                session=session,
                url=url,
                proxy=proxy,
                authorization=fixed,
                refusal=refusal,
                codes=codes,
                statuses=statuses,
                success=success,
                quota=quota,
                authorizer=None if isinstance(authorization, str) else authorization,
                answer_limit=answer_limit,
                auth_header=auth_header,
                reads=reads,
                changes=changes,
            )


def decode_json(what: str, body: bytes, answer: type[T]) -> T:
    """Decode a response body from JSON.

    Args:
        what: the request for error messages, such as `GET /servers`.
        body: body of the response.
        answer: the expected type.

    Raises:
        Unknown: the body is malformed or has another type.
    """
    try:
        return msgspec.json.decode(body, type=answer)
    except DECODE_ERRORS as error:
        raise errors.Unknown(f"{what}: malformed response: {error}") from error


decoded = decode_json  # alias for one release


def _limited_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the first headers, up to `REFUSAL_LIMIT` characters, names in lower case."""
    kept: dict[str, str] = {}
    room = REFUSAL_LIMIT
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name.lower()] = value
    return kept


def _check_header(authorization: str) -> str:
    """Return the `Authorization` header unchanged. Raises ValueError if it is invalid."""
    for part in authorization.partition(" "):
        credentials.check_header_value(part)
    return authorization


def _secret(authorization: str) -> str:
    return authorization.rpartition(" ")[2]


def _mask(text: str, authorization: str) -> str:
    """Mask credentials in a text: a cloud or proxy may quote them, and errors reach events."""
    if secret := _secret(authorization):
        text = text.replace(secret, redact.MASK)
    return redact.mask_text(text)


def _retry_after_s(text: str) -> float:
    """Parse a `Retry-After` header, a number or a date, to seconds; at most 5 minutes."""
    try:
        number = text.isascii() and text.isdigit()
        seconds = float(text) if number else (parsedate_to_datetime(text) - now()).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or a date without a time zone
        return RETRY_AFTER_S
    return min(seconds, RETRY_AFTER_LIMIT_S) if math.isfinite(seconds) else RETRY_AFTER_S
