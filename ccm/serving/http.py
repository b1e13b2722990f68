"""HTTP/1.1 server on top of aiohttp; the only module of the package that imports aiohttp.

A `Server` passes each request to one coroutine function. It limits the number of connections, the
size of header and body, the time until the header is complete, and the idle time of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response as _Response
from aiohttp.web_server import Server as _Server
from multidict import CIMultiDict, CIMultiDictProxy, MultiMapping

from ccm.base import log
from ccm.base.lazy_aiohttp import HttpProcessingError
from ccm.serving.acceptor import (
    CHUNK,
    CLOSE_S,
    GREEDY,
    Acceptor,
    ConnectionLimiter,
    ConnectionSlot,
    ConnectionStage,
)

MAX_HEADER = 64 << 10
"""Maximum bytes of a request's header. Go's limit is 1 MiB, but Go does not limit connections."""

MAX_FIELDS = 256
"""Maximum number of fields in a request's header; a field takes more memory than its bytes."""

MAX_PATH = 1 << 10
"""Maximum bytes of a request's path; the path is sent in SubjectAccessReviews."""

MAX_QUERY = 16 << 10
"""Maximum bytes of a request's query; parsing it blocks the event loop."""

IDLE_S = 90.0
"""Seconds after which an idle connection is closed (k8s.io/apiserver, secure serving)."""

HEADER_S = 32.0
"""Timeout in seconds for the first header of a connection (k8s.io/apiserver, secure serving)."""

_SLACK = 4 * CHUNK
"""Bytes that a TLS connection may send above its limit: the start of the next request, or of a body
that is rejected."""

_PLAIN_SPARE = 512 << 10
"""As `_SLACK`, for connections without TLS, which event loops read in larger chunks."""

_CHAINS_KEPT = 256
_NAME = "ccm"
"""Value of the header `Server`; aiohttp's default reveals the versions of aiohttp and Python."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The peer of a connection.

    Attributes:
        address: address of the peer, `host:port`.
        origin: part of the address that identifies the client; see `acceptor.origin_of`.
        certificate: verified client certificate, as `ssl.SSLSocket.getpeercert` returns it; None
            if the caller sent no certificate.
        chain: verified certificate chain in DER, the caller's own certificate first.
    """

    address: str = ""
    origin: str = ""
    certificate: Mapping[str, object] | None = None
    chain: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request.

    Attributes:
        method: HTTP method.
        path: decoded path, without the query.
        query: query parameters, in the order of the URL.
        headers: headers; names are case-insensitive.
        caller: peer of the connection.
        user: name of the authenticated user; empty before authentication.
        read: reads and returns the whole body; raises BodyError.
        mark_authenticated: marks the connection as that of an authenticated caller; under load,
            the server closes such connections last.
    """

    method: str
    path: str
    query: MultiMapping[str]
    headers: CIMultiDictProxy[str]
    caller: Caller
    read: Callable[[], Awaitable[bytes]] = field(repr=False)
    user: str = ""
    mark_authenticated: Callable[[], None] = field(default=lambda: None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An HTTP response."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def text(body: str, status: int = 200, *headers: tuple[str, str]) -> Response:
    """Return a plain-text response; a header keeps browsers from guessing another type."""
    return Response(
        status=status, body=body.encode(), headers=(("X-Content-Type-Options", "nosniff"), *headers)
    )


Handler = Callable[[Request], Awaitable[Response]]


def find_page(pages: Mapping[str, Handler], path: str) -> Handler | None:
    """Return the handler of a path; None if there is none.

    A key of `pages` that ends with a slash stands for all paths below it.
    """
    folders = [prefix for prefix in pages if prefix.endswith("/") and path.startswith(prefix)]
    return pages.get(path) or (pages[max(folders, key=len)] if folders else None)


class Server:
    """HTTP server on one port.

    Args:
        handler: handles a request; after an exception the response is 500, without details.
        name: name of the server in metrics.
        context: TLS context; None means plain HTTP.
        bodies: limits for request bodies; None means the defaults.
        header_s: timeout in seconds for the first header of a connection.
        idle_s: seconds after which an idle connection is closed.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        name: str = "secure",
        context: ssl.SSLContext | None = None,
        bodies: BodyLimits | None = None,
        header_s: float = HEADER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._handler = handler
        self._bodies = BodyMemory(bodies or BodyLimits())
        self._log = log.logger("serving")
        self._http: _Server | None = None
        self._spare = _SLACK if context else _PLAIN_SPARE
        self._connections = ConnectionLimiter(name)
        self._acceptor = Acceptor(
            self._make_protocol, self._connections, context=context, header_s=header_s
        )
        self._settings: dict[str, Any] = {
            "keepalive_timeout": idle_s,
            "max_line_size": MAX_HEADER,
            "max_field_size": MAX_HEADER,
            "max_headers": MAX_FIELDS,
            "read_bufsize": CHUNK,
            "lingering_time": 0.0,
            # Like Go, never decompress a body: a small body could become very large.
            "auto_decompress": False,
            "access_log": None,
            "logger": _AIOHTTP_LOGGER,
        }
        self._chains = _VerifiedChains()

    async def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket, which `close` closes."""
        # Cancel the handler when the caller disconnects, because the response has no recipient.
        self._http = _Server(self._handle, handler_cancellation=True)
        self._acceptor.start(listener)

    async def close(self) -> None:
        """Stop accepting, wait at most `CLOSE_S` for in-flight requests, close all connections."""
        await self._acceptor.close()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(CLOSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._connections.drained.wait()
        self._connections.abort_stages(*ConnectionStage)
        for _ in range(3):  # one iteration each for transport, TLS and HTTP to process the close
            await asyncio.sleep(0)

    def _make_protocol(self, seat: ConnectionSlot) -> RequestHandler:
        assert self._http is not None
        loop = asyncio.get_running_loop()
        return _Connection(self._http, seat, self._spare, loop=loop, **self._settings)

    async def _handle(self, request: BaseRequest) -> _Response:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        caller = self._caller(request, connection.seat.origin)
        connection.seat.advance(
            ConnectionStage.ANONYMOUS if caller.certificate is None else ConnectionStage.KNOWN
        )
        connection.expect(0)  # no pipelined request before the response
        answer = await self._answer(request, connection, caller)
        connection.expect(MAX_HEADER)  # the next request may begin
        headers = CIMultiDict(answer.headers)
        headers["Server"] = _NAME
        headers["Content-Type"] = answer.content_type
        return _Response(status=answer.status, body=answer.body, headers=headers)

    async def _answer(
        self, request: BaseRequest, connection: _Connection, caller: Caller
    ) -> Response:
        if refusal := _too_large(request):
            return refusal
        try:
            with self._bodies.of(request.content.iter_any()) as body:

                async def read() -> bytes:
                    connection.expect(self._bodies.limits.max_body)
                    return await body.read()

                return await self._handler(
                    Request(
                        method=request.method,
                        path=request.path,
                        query=request.query,
                        headers=request.headers,
                        caller=caller,
                        read=read,
                        mark_authenticated=lambda: connection.seat.advance(ConnectionStage.KNOWN),
                    )
                )
        except BodyError as error:
            return text(f"{error}\n", error.status)
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._log.error(
                "request handler failed, returning status 500", path=request.path, exc_info=error
            )
            return text("internal server error\n", 500)

    def _caller(self, request: BaseRequest, origin: str) -> Caller:
        transport = request.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        address = f"{peer[0]}:{peer[1]}" if peer else ""
        tls = transport.get_extra_info("ssl_object") if transport is not None else None
        if tls is None or not (peer_certificate := tls.getpeercert()):
            return Caller(address=address, origin=origin)
        chain = self._chains.of(tls)
        return Caller(address=address, origin=origin, certificate=peer_certificate, chain=chain)


def _too_large(request: BaseRequest) -> Response | None:
    """Return the error response for an oversized header, path or query; None if they fit."""
    fields = sum(len(name) + len(value) for name, value in request.raw_headers)
    if fields + len(request.raw_path) > MAX_HEADER:
        return text("header too large\n", 431)
    url = request.rel_url
    if len(url.raw_path) > MAX_PATH:
        return text("path too long\n", 414)
    return text("query too long\n", 414) if len(url.raw_query_string) > MAX_QUERY else None


class _Connection(RequestHandler):
    """HTTP connection; the server closes it if the caller sends more bytes than a request needs.

    The parser limits only the size of each header field, so it would accept many large fields. A
    caller could also pipeline many requests while the first is processed.
    """

    __slots__ = ("_left", "_spare", "seat")

    def __init__(self, server: _Server, seat: ConnectionSlot, spare: int, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.seat = seat
        self._spare = spare
        self.expect(MAX_HEADER)

    def expect(self, size: int) -> None:
        """Allow the caller to send `size` more bytes from now on."""
        self._left = size + self._spare

    def connection_made(self, transport: Any) -> None:
        """Limit the TLS buffers; asyncio's defaults are 256 KiB (reading) and 512 KiB (writing)."""
        if transport.get_extra_info("ssl_object") is not None:
            transport.set_read_buffer_limits(high=2 * CHUNK)
            transport.set_write_buffer_limits(high=4 * CHUNK)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Count the received bytes, and close the connection if they exceed the limit."""
        self._left -= len(data)
        if self._left < 0:
            self.seat.evict(GREEDY)
            return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the slot of the connection."""
        self.seat.release()
        super().connection_lost(exc)


class _VerifiedChains:
    """Cache of verified certificate chains, by client certificate.

    In a resumed session of TLS 1.2, Python knows the client certificate but not the verified
    chain, and Python cannot disable resumption. Using a cached chain is safe: only the TLS context
    that verified the chain can resume the session.
    """

    def __init__(self) -> None:
        self._by_leaf: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def of(self, secured: ssl.SSLObject) -> tuple[bytes, ...]:
        """Return the verified chain of a connection in DER, its leaf first.

        In a resumed session, return the cached chain; empty if it is not cached.
        """
        leaf = secured.getpeercert(binary_form=True) or b""
        chain = _verified_chain(secured)
        if chain:
            self._by_leaf[leaf] = chain
            self._by_leaf.move_to_end(leaf)
            if len(self._by_leaf) > _CHAINS_KEPT:
                self._by_leaf.popitem(last=False)
        return chain or self._by_leaf.get(leaf, ())


def _verified_chain(secured: ssl.SSLObject) -> tuple[bytes, ...]:
    """Return the verified chain in DER; empty in a resumed session.

    `SSLObject.get_verified_chain` is public from Python 3.13 on.
    """
    public = getattr(secured, "get_verified_chain", None)
    if public is not None:
        return tuple(public())
    inner = secured._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
    chain = inner.get_verified_chain() or ()
    return tuple(ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in chain)


_AIOHTTP_LOGGER = logging.getLogger("ccm.serving.http")
"""Logger for aiohttp, muted: it would log each invalid request of a caller."""
_AIOHTTP_LOGGER.addHandler(logging.NullHandler())
_AIOHTTP_LOGGER.propagate = False


MAX_BODY = 3 << 20
"""Maximum bytes of a request's body (k8s.io/apiserver)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Limits for request bodies.

    Attributes:
        max_body: maximum bytes of one body.
        max_total: maximum bytes of all bodies in memory together.
        timeout_s: timeout in seconds for receiving one body.
    """

    max_body: int = MAX_BODY
    max_total: int = 8 << 20
    timeout_s: float = 10.0


class BodyError(Exception):
    """The body of a request cannot be read; `status` is the HTTP status for the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyMemory:
    """The request bodies in the memory of one server."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.size = 0
        """Bytes of all bodies in memory together."""
        self.reading: set[Body] = set()
        """Bodies that are still being received."""

    @contextmanager
    def of(self, chunks: AsyncIterable[bytes]) -> Iterator[Body]:
        """Yield the body of one request; free its memory at the end of the block."""
        body = Body(self, chunks)
        try:
            yield body
        finally:
            body.drop()

    def make_room(self) -> None:
        """Abort the largest incomplete bodies until all bodies fit the limit."""
        while self.size > self.limits.max_total and self.reading:
            max(self.reading, key=lambda body: body.size).abort()


class Body:
    """Body of one request.

    Attributes:
        size: number of received bytes in memory.
    """

    def __init__(self, bodies: BodyMemory, chunks: AsyncIterable[bytes]) -> None:
        self.size = 0
        self._bodies = bodies
        self._chunks = chunks
        self._buffer = bytearray()
        self._timeout = asyncio.timeout(None)

    async def read(self) -> bytes:
        """Receive and return the whole body; call it once.

        Raises:
            BodyError: the body is too large, arrives too slowly or cannot be read, or all bodies
                together exceed the memory limit.
        """
        self._bodies.reading.add(self)
        self._timeout = asyncio.timeout(self._bodies.limits.timeout_s)
        try:
            async with self._timeout:
                async for chunk in self._chunks:
                    self._take(chunk)
            self._check()
        except TimeoutError:
            self._check()
            raise BodyError(408, "request body not received in time") from None
        except (HttpProcessingError, OSError, asyncio.IncompleteReadError) as error:
            raise BodyError(400, "request body cannot be read") from error
        finally:
            self._bodies.reading.discard(self)
        content, self._buffer = bytes(self._buffer), bytearray()
        return content

    def abort(self) -> None:
        """Free the memory of the body, and make `read` fail at once."""
        self.drop()
        # asyncio forbids rescheduling a timeout that has expired.
        if not self._timeout.expired():
            self._timeout.reschedule(0)

    def drop(self) -> None:
        """Free the memory of the body."""
        self._bodies.reading.discard(self)
        self._bodies.size -= self.size
        self.size = 0
        self._buffer.clear()

    def _take(self, chunk: bytes) -> None:
        self._check()
        self.size += len(chunk)
        self._bodies.size += len(chunk)
        if self.size > self._bodies.limits.max_body:
            raise BodyError(413, "request body too large")
        self._buffer += chunk
        self._bodies.make_room()
        self._check()  # make_room may have aborted this body

    def _check(self) -> None:
        if self not in self._bodies.reading:
            raise BodyError(503, "request bodies exceed the memory limit")
