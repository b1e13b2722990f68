"""Bytes to requests and answers back; what the server's other modules see of aiohttp.

A `Server` hands each request to one coroutine. It bounds what a caller may cost: size of the
header and of the body, time until the header is there, idle time of a connection. It speaks
HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# First, because it is the one that imports aiohttp as a whole.
from ccm.base.wire import HttpProcessingError  # isort: split

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response as _Response
from aiohttp.web_server import Server as _Server
from multidict import CIMultiDict, CIMultiDictProxy, MultiMapping

from ccm.base import log

MAX_HEADER = 1 << 20
"""Bytes of a request's header (Go, net/http)."""

MAX_QUERY = 16 << 10
"""Bytes of a request's query; taking one apart stops everything else meanwhile."""

MAX_BODY = 3 << 20
"""Bytes of a request's body (k8s.io/apiserver)."""

IDLE_S = 90.0
"""How long a connection may stay without a request (k8s.io/apiserver, secure serving)."""

HEADER_S = 32.0
"""How long a new caller may take for the header of its request (the same)."""

HANDSHAKE_S = 10.0
"""How long TLS may take (Go, net/http)."""

CLOSE_S = 2.0
"""How long requests under way may take when the server stops."""

_SPARE = 1 << 20
"""Bytes that may arrive beyond what is expected: a piece of the next, or of what is refused."""

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
        certificate: what its certificate says, as `ssl.SSLSocket.getpeercert` tells it; it
            was verified. None: it showed none.
        chain: the verified chain in DER, the caller's own first.
    """

    address: str = ""
    certificate: Mapping[str, object] | None = None
    chain: tuple[bytes, ...] = ()


class BadBody(Exception):
    """The body of a request cannot be had; `status` is what the caller is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks.

    Attributes:
        method: HTTP method.
        path: decoded, without the query.
        query: parameters in their order.
        headers: by name, any case.
        caller: who sent it, as far as the connection tells.
        read: reads the whole body; `BadBody` if it cannot.
    """

    method: str
    path: str
    query: MultiMapping[str]
    headers: CIMultiDictProxy[str]
    caller: Caller
    read: Callable[[], Awaitable[bytes]] = field(repr=False)


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


class Server:
    """Answers on one port.

    Args:
        handler: answers a request; an exception becomes a 500 without a detail.
        context: TLS; None: plain HTTP.
        max_body: bytes of a request's body.
        header_s: how long a new caller may take for its header.
        idle_s: how long a connection may stay without a request.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        context: ssl.SSLContext | None = None,
        max_body: int = MAX_BODY,
        header_s: float = HEADER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._handler = handler
        self._context = context
        self._max_body = max_body
        self._header_s = header_s
        self._log = log.logger("serving")
        self._http: _Server | None = None
        self._listening: asyncio.Server | None = None
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}
        self._settings: dict[str, Any] = {
            "keepalive_timeout": idle_s,
            "max_line_size": MAX_HEADER,
            "max_field_size": MAX_HEADER,
            "max_headers": 1024,
            "lingering_time": 0.0,
            # Go takes bodies as they are too; a small one could become very large.
            "auto_decompress": False,
            "access_log": None,
            "logger": _QUIET,
        }
        self._chains = _Chains()

    async def start(self, listener: socket.socket) -> None:
        """Answer whoever calls on a port that is open; it is closed with the server."""
        loop = asyncio.get_running_loop()
        self._http = _Server(self._handle)
        self._listening = await loop.create_server(
            self._connection,
            sock=listener,
            ssl=self._context,
            ssl_handshake_timeout=HANDSHAKE_S if self._context else None,
            ssl_shutdown_timeout=CLOSE_S if self._context else None,
        )

    async def close(self) -> None:
        """Take no more requests, let those under way end, close every connection."""
        if self._listening is not None:
            self._listening.close()
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(CLOSE_S)
        if self._listening is not None:
            await _gone(self._listening)

    def _connection(self) -> RequestHandler:
        assert self._http is not None
        loop = asyncio.get_running_loop()
        made = _Connection(self._http, loop=loop, **self._settings)
        self._silent[made] = loop.call_later(self._header_s, self._give_up, made)
        return made

    def _give_up(self, connection: RequestHandler) -> None:
        if self._silent.pop(connection, None) is not None:
            connection.force_close()

    async def _handle(self, request: BaseRequest) -> _Response:
        connection = request.protocol
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()
        assert isinstance(connection, _Connection)
        connection.expect(self._max_body)
        answer = await self._answer(request)
        connection.expect(MAX_HEADER)
        headers = CIMultiDict(answer.headers)
        headers["Server"] = _NAME
        headers["Content-Type"] = answer.content_type
        return _Response(status=answer.status, body=answer.body, headers=headers)

    async def _answer(self, request: BaseRequest) -> Response:
        if len(request.rel_url.raw_query_string) > MAX_QUERY:
            return text("query too long\n", 414)
        try:
            return await self._handler(self._read(request))
        except BadBody as error:
            return text(f"{error}\n", error.status)
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._log.error(
                "internal error in request handler, answering 500",
                path=request.path,
                exc_info=error,
            )
            return text("internal server error\n", 500)

    def _read(self, request: BaseRequest) -> Request:
        async def body() -> bytes:
            found = bytearray()
            try:
                async for chunk in request.content.iter_any():
                    found += chunk
                    if len(found) > self._max_body:
                        raise BadBody(413, "request body too large")
            except (HttpProcessingError, OSError, asyncio.IncompleteReadError) as error:
                raise BadBody(400, "request body cannot be read") from error
            return bytes(found)

        return Request(
            method=request.method,
            path=request.path,
            query=request.query,
            headers=request.headers,
            caller=self._caller(request),
            read=body,
        )

    def _caller(self, request: BaseRequest) -> Caller:
        transport = request.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        address = f"{peer[0]}:{peer[1]}" if peer else ""
        secured = transport.get_extra_info("ssl_object") if transport is not None else None
        if secured is None or not (found := secured.getpeercert()):
            return Caller(address=address)
        return Caller(address=address, certificate=found, chain=self._chains.of(secured))


async def _gone(listening: asyncio.Server) -> None:
    """Wait until each connection is closed; who has not said a word, or does not let go, is cut.

    From Python 3.12 on a server waits for those that never got beyond TLS too.
    """
    try:
        async with asyncio.timeout(CLOSE_S):
            await listening.wait_closed()
    except TimeoutError:
        if sys.version_info >= (3, 13):
            listening.abort_clients()


class _Connection(RequestHandler):
    """Hangs up on a caller that sends more than any request needs.

    The parser limits each field of a header, and so would keep a thousand large ones.
    """

    __slots__ = ("_left",)

    def __init__(self, server: _Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.expect(MAX_HEADER)

    def expect(self, size: int) -> None:
        """From now on something of so many bytes may arrive."""
        self._left = size + _SPARE

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._left -= len(data)
        if self._left < 0:
            self.force_close()
        super().data_received(data)


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
