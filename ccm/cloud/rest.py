"""An HTTP client for providers whose cloud speaks JSON: the daemon's rules about errors, kept.

Everything a cloud may answer becomes a value or a class of `ccm.cloud.errors`; nothing of the
HTTP library leaves this module. An absence is believed only where status and words of the cloud
both say so: a 404 of some proxy, an empty or garbled body is a fault like any other, because an
absence deletes nodes. But for a question whose connection breaks, which is put once more, nothing
is tried again here: the daemon knows better when.

Import it where it is used: `ccm.cloud` itself loads no HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from asyncio_throttle.throttler import Throttler

from ccm.base import credentials, lease_guard, proxies, redact
from ccm.base.backoff import RETRY_AFTER_LIMIT_S
from ccm.base.clock import now
from ccm.base.decoding import UNDECODABLE
from ccm.base.wire import aiohttp, reason
from ccm.cloud import errors
from ccm.cloud.settings import ConfigError

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""Assumed where a cloud does not say, or not readably, when to come back."""

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
"""HTTP status -> what it means; other 5xx are `Unavailable` and the rest is `Unknown`."""

Statuses = int | Collection[int]

JSON = "application/json"
"""What is sent, unless a request says otherwise."""

SUCCESS: Mapping[str, Statuses] = MappingProxyType(
    {"GET": 200, "POST": 201, "PUT": 200, "PATCH": 200, "DELETE": 204}
)
"""Method -> the status that means success, unless the cloud has others.

Where there are several, an answer has a body unless its status is 204.
"""


ANSWER_LIMIT = 32 << 20
"""Most bytes of one answer, after decompression: it is held in memory as a whole."""

_PIECE = 64 << 10
"""Bytes that are read, and decompressed, at a time."""

REFUSAL_LIMIT = 16384
"""Most bytes of a body, and most characters of headers, that a `Refusal` holds."""


class Refusal(NamedTuple):
    """An answer that is no success; the `CloudError` made of one has it as `refusal`.

    Attributes:
        code: the cloud's word for programs.
        message: its text for people.
        headers: of the answer, names in lower case; the client fills them in.
        body: of the answer, cut at `REFUSAL_LIMIT`; likewise. It may quote credentials.
    """

    code: str = ""
    message: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class Quota(Protocol):
    """What keeps requests to a cloud's quota."""

    async def acquire(self) -> None:
        """Wait until a request may be made."""

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Take note of what an answer says about the quota."""


class Authorizer(Protocol):
    """What gives each request its credentials, where they do not stay the same."""

    async def header(self) -> str:
        """Value of the `Authorization` header, a scheme and a secret; empty for none.

        Raises:
            CloudError: there is none to be had; the request is not made.
        """

    def refused(self, header: str) -> bool:
        """Hear that the cloud refused this value with 401.

        True has the request made once more, with what `header` gives then: one that was refused
        so did nothing.
        """


class QuotaLimiter:
    """At most `calls` in any `period_s` seconds, in order of arrival; it has no burst.

    For a quota that a cloud states as "N calls per period". Raises ValueError for one that lets
    nothing through.
    """

    def __init__(self, *, calls: int, period_s: float) -> None:
        if calls < 1 or period_s <= 0:
            raise ValueError(f"a quota needs calls >= 1 and a period > 0, not {calls}/{period_s}")
        self._throttler = Throttler(rate_limit=calls, period=period_s)
        # The throttler polls in no order; the lock lets only one waiter do so.
        self._line = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait for a place in the window."""
        async with self._line, self._throttler:
            return

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Nothing: this quota is known from the start."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RestClient:
    """Requests to one cloud; use `open_client`.

    Every method raises classes of `ccm.cloud.errors` only: those of the cloud's codes and of
    `STATUSES`, `DeadlineExceeded` when the cloud is too slow, `Unavailable` when it cannot be
    reached, `Unknown` when its answer makes no sense. Those of a status that is no success have a
    `Refusal` as `refusal`.
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

    async def get(self, path: str, answer: type[T], query: Mapping[str, str] | None = None) -> T:
        """Ask, and read the answer as that type."""
        body = await self.request("GET", path, query=query)
        return decoded(f"GET {path}", body, answer)

    async def send(
        self,
        method: str,
        path: str,
        content: object,
        answer: type[T],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send something as JSON, and read the answer as that type."""
        data = msgspec.json.encode(content)
        body = await self.request(method, path, data=data, headers=headers)
        return decoded(f"{method} {path}", body, answer)

    async def pages(
        self,
        path: str,
        page: type[T],
        query: Mapping[str, str],
        *,
        after: Callable[[T], Mapping[str, str] | None],
    ) -> list[T]:
        """All pages of a listing, one request each.

        Args:
            path: of the listing.
            page: the type of one page. Let it require the field that leads to the next one, lest
                a listing be cut short silently.
            query: of the first page.
            after: from a page to what the query of the next one adds; None = it was the last.
        """
        found: list[T] = []
        seen: list[Mapping[str, str]] = []
        more: Mapping[str, str] | None = {}
        while more is not None:
            if more in seen:
                raise errors.Unknown(f"GET {path}: the listing never ends: {more} again")
            seen.append(more)
            found.append(await self.get(path, page, {**query, **more}))
            more = after(found[-1])
        return found

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of the one answer that means success; `path` is quoted already.

        Args:
            method: GET, POST, ...
            path: behind the client's URL.
            query: of the request.
            data: what is sent, JSON unless `headers` say otherwise.
            headers: of this request, beside those of all.
        """
        what = f"{method} {path}"
        own = {**({"Content-Type": JSON} if data else {}), **(headers or {})}
        known = await self._authorize(own)
        response, body = await self._asked(what, method, path, query, data, own)
        if response.status == 401 and self.authorizer and self.authorizer.refused(known):
            known = await self._authorize(own)
            response, body = await self._asked(what, method, path, query, data, own)
        wanted = self.success[method]
        allowed = (wanted,) if isinstance(wanted, int) else wanted
        if response.status not in allowed:
            raise self._failure(what, response, body, known)
        if len(allowed) > 1 and not body and response.status != 204:
            raise errors.Unknown(f"{what}: HTTP {response.status} without a body")
        return body

    async def _authorize(self, headers: dict[str, str]) -> str:
        """Put the credentials of the moment among the headers of a request.

        They are no headers of the session: those go to a proxy too.
        """
        known = self.authorization
        if self.authorizer is not None:
            try:
                known = _checked(await self.authorizer.header())
            except ValueError as error:
                raise errors.Unauthenticated(f"{self.url}: the credentials {error}") from None
        if known:
            headers["Authorization"] = known
        return known

    async def _asked(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The answer, whatever it is."""
        if self.quota is not None:
            await self.quota.acquire()
        try:
            lease_guard.check()
            async with self.session.request(
                method,
                self.url + path,
                params=query,
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as response:
                body = await self._read(what, response)
        except TimeoutError as error:
            raise errors.DeadlineExceeded(f"{what}: no answer in time") from error
        except aiohttp.ClientError as error:
            through = f" through the proxy {proxies.shown(self.proxy)}" if self.proxy else ""
            said = f"{what}: no answer from {self.url}{through}: {reason(error)}"
            raise errors.Unavailable(_masked(said, headers.get("Authorization", ""))) from error
        if self.quota is not None:
            self.quota.hear(response.status, response.headers)
        return response, body

    async def _read(self, what: str, response: aiohttp.ClientResponse) -> bytes:
        """Return the body, decompressed. Raises Unknown beyond the limit."""
        body = bytearray()
        # `response.read()` would decompress all that has arrived at once.
        async for piece in response.content.iter_chunked(_PIECE):
            body += piece
            if len(body) > self.answer_limit:
                response.close()
                raise errors.Unknown(
                    f"{what}: the answer has more than {self.answer_limit} bytes; raise the "
                    "answer_limit of the provider's client if the cloud has so much to say"
                )
        return bytes(body)

    def _failure(
        self, what: str, response: aiohttp.ClientResponse, body: bytes, known: str
    ) -> errors.CloudError:
        """The error for an answer that is none of success."""
        status = response.status
        try:
            said = self.refusal(body)
        except UNDECODABLE:
            said = Refusal()
        told = f" {said.code}: {said.message}" if said.code else ""
        text = _masked(f"{what}: HTTP {status}{told}", known)
        otherwise = errors.Unavailable if status >= 500 else errors.Unknown
        kind = self.statuses.get(status, otherwise)
        if kind is not errors.RetryAfter:
            named = self.codes.get(said.code, kind)
            is_believed = status == 404 or not issubclass(named, errors.NotFound)
            kind = named if is_believed else kind
        if issubclass(kind, errors.RetryAfter):
            seconds = _retry_after_s(response.headers.get("Retry-After", ""))
            error: errors.CloudError = kind(text, seconds=seconds)
        else:
            error = kind(text)
        error.refusal = said._replace(headers=_kept(response.headers), body=body[:REFUSAL_LIMIT])
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
) -> AsyncIterator[RestClient]:
    """A client with its own pool of connections, closed with the context.

    Requests go through the proxy that HTTPS_PROXY or HTTP_PROXY names, but for hosts of NO_PROXY,
    loopback, and link-local and metadata addresses.

    Args:
        url: what all paths stand behind.
        refusal: reads the body of an error; it may raise what msgspec raises.
        codes: the cloud's words -> the class that says more than the status; `NotFound` is
            believed with status 404 only, `RetryAfter` takes its time from the headers.
        authorization: value of that header, a scheme and a secret; errors never show it. Or what
            gives it anew for each request.
        timeout_s: limit of one request, from connecting to the last byte; keep it below the
            deadline of the calls.
        connect_timeout_s: limit for getting a connection.
        connections: how many there are at most.
        quota: waited for before each request, and told of each answer.
        statuses: HTTP status -> what it means where the cloud's words say nothing more special.
        success: method -> the status that means success, or several; any other is a fault, 200
            with a body that nobody expects too.
        answer_limit: most bytes of one answer, after decompression; more is `Unknown`.

    Raises:
        ConfigError: the URL holds credentials too, a variable names no HTTP proxy, or no header can
            carry the authorization.
    """
    if authorization and "@" in urlsplit(url).netloc:
        raise ConfigError(
            f"the URL of the cloud, {redact.words(url)}, holds a user or a password; leave them "
            "out, there are other credentials"
        )
    try:
        proxy = proxies.Proxies.of().proxy_for(url)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        fixed = _checked(authorization) if isinstance(authorization, str) else ""
    except ValueError as error:
        raise ConfigError(f"the authorization for {redact.words(url)} {error}") from None
    timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_timeout_s)
    async with aiohttp.ClientSession(
        timeout=timeout,
        proxy=proxy or None,
        trust_env=False,
        connector=aiohttp.TCPConnector(limit=connections),
    ) as session:
        with redact.held(_secret(fixed)):
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
            )


def decoded(what: str, body: bytes, answer: type[T]) -> T:
    """Read a body as JSON of a type.

    Args:
        what: the request, such as `GET /servers`.
        body: of its answer.
        answer: the type.

    Raises:
        Unknown: it is not.
    """
    try:
        return msgspec.json.decode(body, type=answer)
    except UNDECODABLE as error:
        raise errors.Unknown(f"{what}: unreadable answer: {error}") from error


def _kept(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The first headers, as many as a `Refusal` holds."""
    kept: dict[str, str] = {}
    room = REFUSAL_LIMIT
    for name, value in headers.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name.lower()] = value
    return kept


def _checked(authorization: str) -> str:
    """Return the value of the header. Raises ValueError where no header can carry it."""
    for part in authorization.partition(" "):
        credentials.header_value(part)
    return authorization


def _secret(authorization: str) -> str:
    return authorization.rpartition(" ")[2]


def _masked(text: str, authorization: str) -> str:
    """What a cloud or a proxy quotes may hold our credentials, and errors reach events."""
    if secret := _secret(authorization):
        text = text.replace(secret, redact.MASK)
    return redact.words(text)


def _retry_after_s(text: str) -> float:
    """Seconds of a `Retry-After`, a number or a date; at most 5 minutes."""
    try:
        number = text.isascii() and text.isdigit()
        told = float(text) if number else (parsedate_to_datetime(text) - now()).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a zone
        return RETRY_AFTER_S
    return min(told, RETRY_AFTER_LIMIT_S) if math.isfinite(told) else RETRY_AFTER_S
