"""Bytes to requests and answers back; what the server's other modules see of aiohttp.

A `Server` hands each request to one coroutine. It bounds what a caller may cost: how many there
are (`connections`), size of the header, time until it is there, the body (`bodies`), idle time
of a connection. It speaks HTTP/1.1.
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
from ccm.base.wire import HttpProcessingError
from ccm.serving.acceptor import CHUNK, CLOSE_S, GREEDY, Acceptor, Connections, Seat, Stage

MAX_HEADER = 64 << 10
"""Bytes of a request's header; Go takes 1 MiB, from each of any number of callers."""

MAX_FIELDS = 256
"""Fields of a request's header; each costs more memory than its bytes."""

MAX_PATH = 1 << 10
"""Bytes of a request's path: whether a caller may have it is asked and remembered."""

MAX_QUERY = 16 << 10
"""Bytes of a request's query; taking one apart stops everything else meanwhile."""

IDLE_S = 90.0
"""How long a connection may stay without a request (k8s.io/apiserver, secure serving)."""

HEADER_S = 32.0
"""How long a new caller may take for the header of its request (the same)."""

_SPARE = 4 * CHUNK
"""Bytes that may arrive beyond what is expected: a piece of the next, or of what is refused."""

_PLAIN_SPARE = 512 << 10
"""The same without TLS, where event loops read larger pieces."""

_CHAINS_KEPT = 256
_NAME = "ccm"
"""Instead of the versions of everything below us."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The far end of a connection.

    Attributes:
        address: `host:port`.
        origin: what of it tells callers apart, see `acceptor.origin_of`.
        certificate: what its certificate says, as `ssl.SSLSocket.getpeercert` tells it; it
            was verified. None: it showed none.
        chain: the verified chain in DER, the caller's own first.
    """

    address: str = ""
    origin: str = ""
    certificate: Mapping[str, object] | None = None
    chain: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks.

    Attributes:
        method: HTTP method.
        path: decoded, without the query.
        query: parameters in their order.
        headers: by name, any case.
        caller: who sent it, as far as the connection tells.
        user: the name of whoever proved to be the sender; empty while that is not known.
        read: reads the whole body; `BadBody` if it cannot.
        known: to be called when the caller has proved who it is: it keeps its connection
            when a crowd comes.
    """

    method: str
    path: str
    query: MultiMapping[str]
    headers: CIMultiDictProxy[str]
    caller: Caller
    read: Callable[[], Awaitable[bytes]] = field(repr=False)
    user: str = ""
    known: Callable[[], None] = field(default=lambda: None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What somebody gets."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


def text(body: str, status: int = 200, *headers: tuple[str, str]) -> Response:
    """A plain text that no browser takes for anything else."""
    return Response(
        status=status,
        body=body.encode(),
        headers=(("X-Content-Type-Options", "nosniff"), *headers),
    )


Handler = Callable[[Request], Awaitable[Response]]


def find_page(pages: Mapping[str, Handler], path: str) -> Handler | None:
    """Return the page at a path; one whose path ends with a slash covers all below it."""
    folders = [each for each in pages if each.endswith("/") and path.startswith(each)]
    return pages.get(path) or (pages[max(folders, key=len)] if folders else None)


class Server:
    """Answers on one port.

    Args:
        handler: answers a request; an exception becomes a 500 without a detail.
        name: of the port, in metrics.
        context: TLS; None: plain HTTP.
        bodies: what bodies may cost.
        header_s: how long a new caller may take for its header.
        idle_s: how long a connection may stay without a request.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        name: str = "secure",
        context: ssl.SSLContext | None = None,
        bodies: Limits | None = None,
        header_s: float = HEADER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._handler = handler
        self._bodies = Bodies(bodies or Limits())
        self._log = log.logger("serving")
        self._http: _Server | None = None
        self._spare = _SPARE if context else _PLAIN_SPARE
        self._connections = Connections(name)
        self._acceptor = Acceptor(
            self._speak, self._connections, context=context, header_s=header_s
        )
        self._settings: dict[str, Any] = {
            "keepalive_timeout": idle_s,
            "max_line_size": MAX_HEADER,
            "max_field_size": MAX_HEADER,
            "max_headers": MAX_FIELDS,
            "read_bufsize": CHUNK,
            "lingering_time": 0.0,
            # Go takes bodies as they are too; a small one could become very large.
            "auto_decompress": False,
            "access_log": None,
            "logger": _QUIET,
        }
        self._chains = _Chains()

    async def start(self, listener: socket.socket) -> None:
        """Answer whoever calls on a port that is open; it is closed with the server."""
        # Nobody waits for the answer to a caller who has hung up.
        self._http = _Server(self._handle, handler_cancellation=True)
        self._acceptor.start(listener)

    async def close(self) -> None:
        """Take no more requests, let those under way end, close every connection."""
        await self._acceptor.close()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(CLOSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._connections.emptied.wait()
        self._connections.hang_up(*Stage)
        for _ in range(3):  # until the transport, TLS and HTTP each know
            await asyncio.sleep(0)

    def _speak(self, seat: Seat) -> RequestHandler:
        assert self._http is not None
        loop = asyncio.get_running_loop()
        return _Connection(self._http, seat, self._spare, loop=loop, **self._settings)

    async def _handle(self, request: BaseRequest) -> _Response:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        caller = self._caller(request, connection.seat.origin)
        connection.seat.reach(Stage.ANONYMOUS if caller.certificate is None else Stage.KNOWN)
        connection.expect(0)
        answer = await self._answer(request, connection, caller)
        connection.expect(MAX_HEADER)
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
                    connection.expect(self._bodies.limits.each)
                    return await body.read()

                return await self._handler(
                    Request(
                        method=request.method,
                        path=request.path,
                        query=request.query,
                        headers=request.headers,
                        caller=caller,
                        read=read,
                        known=lambda: connection.seat.reach(Stage.KNOWN),
                    )
                )
        except BadBody as error:
            return text(f"{error}\n", error.status)
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._log.error(
                "internal error in request handler, answering 500",
                path=request.path,
                exc_info=error,
            )
            return text("internal server error\n", 500)

    def _caller(self, request: BaseRequest, origin: str) -> Caller:
        transport = request.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        address = f"{peer[0]}:{peer[1]}" if peer else ""
        secured = transport.get_extra_info("ssl_object") if transport is not None else None
        if secured is None or not (found := secured.getpeercert()):
            return Caller(address=address, origin=origin)
        chain = self._chains.of(secured)
        return Caller(address=address, origin=origin, certificate=found, chain=chain)


def _too_large(request: BaseRequest) -> Response | None:
    """What is refused before anything is taken apart, asked or remembered."""
    fields = sum(len(name) + len(value) for name, value in request.raw_headers)
    if fields + len(request.raw_path) > MAX_HEADER:
        return text("header too large\n", 431)
    url = request.rel_url
    if len(url.raw_path) > MAX_PATH:
        return text("path too long\n", 414)
    return text("query too long\n", 414) if len(url.raw_query_string) > MAX_QUERY else None


class _Connection(RequestHandler):
    """Hangs up on a caller that sends more than any request needs.

    The parser limits each field of a header, and so would keep a thousand large ones; and a
    caller could send a next request, and one after that, while the first is answered.
    """

    __slots__ = ("_left", "_spare", "seat")

    def __init__(self, server: _Server, seat: Seat, spare: int, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.seat = seat
        self._spare = spare
        self.expect(MAX_HEADER)

    def expect(self, size: int) -> None:
        """From now on something of so many bytes may arrive."""
        self._left = size + self._spare

    def connection_made(self, transport: Any) -> None:
        """Bound the bytes that wait under TLS: asyncio would take 256 KiB in, 512 KiB out."""
        if transport.get_extra_info("ssl_object") is not None:
            transport.set_read_buffer_limits(high=2 * CHUNK)
            transport.set_write_buffer_limits(high=4 * CHUNK)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._left -= len(data)
        if self._left < 0:
            self.seat.refuse(GREEDY)
            return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over."""
        self.seat.leave()
        super().connection_lost(exc)


class _Chains:
    """The verified chains of callers' certificates.

    TLS 1.2 resumes sessions, and then tells the certificate without the chain that proved it.
    Python cannot forbid that, so the chain is remembered by the certificate; a session is
    resumed only by the context that verified it.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()

    def of(self, secured: ssl.SSLObject) -> tuple[bytes, ...]:
        """The chain behind a connection; empty if it was never seen, or long ago."""
        leaf = secured.getpeercert(binary_form=True) or b""
        found = _verified_chain(secured)
        if found:
            self._known[leaf] = found
            self._known.move_to_end(leaf)
            if len(self._known) > _CHAINS_KEPT:
                self._known.popitem(last=False)
        return found or self._known.get(leaf, ())


def _verified_chain(secured: ssl.SSLObject) -> tuple[bytes, ...]:
    """As TLS has just verified it; there is a public way only from Python 3.13 on."""
    public = getattr(secured, "get_verified_chain", None)
    if public is not None:
        return tuple(public())
    inner = secured._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
    found = inner.get_verified_chain() or ()
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in found)


_QUIET = logging.getLogger("ccm.serving.http")
"""What aiohttp says about callers' broken requests; nobody listens."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


MAX_BODY = 3 << 20
"""Bytes of a request's body (k8s.io/apiserver)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bodies may cost.

    Attributes:
        each: bytes of one.
        together: bytes of all that are held at one time.
        patience_s: how long one may take to arrive.
    """

    each: int = MAX_BODY
    together: int = 8 << 20
    patience_s: float = 10.0


class BadBody(Exception):
    """The body of a request cannot be had; `status` is what the caller is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Bodies:
    """Those of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        """Bytes of all of them."""
        self.reading: set[Body] = set()
        """Those that are not whole yet."""

    @contextmanager
    def of(self, chunks: AsyncIterable[bytes]) -> Iterator[Body]:
        """The body of one request, held until the block is left."""
        body = Body(self, chunks)
        try:
            yield body
        finally:
            body.drop()

    def make_room(self) -> None:
        """Give up the largest until the rest fits."""
        while self.held > self.limits.together and self.reading:
            max(self.reading, key=lambda body: body.size).give_up()


class Body:
    """The body of one request.

    Attributes:
        size: bytes that are here.
    """

    def __init__(self, bodies: Bodies, chunks: AsyncIterable[bytes]) -> None:
        self.size = 0
        self._bodies = bodies
        self._chunks = chunks
        self._found = bytearray()
        self._timeout = asyncio.timeout(None)

    async def read(self) -> bytes:
        """The whole body; can be had once.

        Raises:
            BadBody: it is too large, too slow, broken, or there is no room for it.
        """
        self._bodies.reading.add(self)
        self._timeout = asyncio.timeout(self._bodies.limits.patience_s)
        try:
            async with self._timeout:
                async for chunk in self._chunks:
                    self._take(chunk)
            self._check()
        except TimeoutError:
            self._check()
            raise BadBody(408, "the body did not arrive in time") from None
        except (HttpProcessingError, OSError, asyncio.IncompleteReadError) as error:
            raise BadBody(400, "request body cannot be read") from error
        finally:
            self._bodies.reading.discard(self)
        found, self._found = bytes(self._found), bytearray()
        return found

    def give_up(self) -> None:
        """Its bytes go, and whoever reads it is told at once."""
        self.drop()
        # Its own time may be up in this very turn of the event loop.
        if not self._timeout.expired():
            self._timeout.reschedule(0)

    def drop(self) -> None:
        """Its bytes count no more."""
        self._bodies.reading.discard(self)
        self._bodies.held -= self.size
        self.size = 0
        self._found.clear()

    def _take(self, chunk: bytes) -> None:
        self._check()
        self.size += len(chunk)
        self._bodies.held += len(chunk)
        if self.size > self._bodies.limits.each:
            raise BadBody(413, "request body too large")
        self._found += chunk
        self._bodies.make_room()
        self._check()

    def _check(self) -> None:
        if self not in self._bodies.reading:
            raise BadBody(503, "too many bytes at once")
