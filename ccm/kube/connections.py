"""Connections to the API server, and one request over one of them.

aiohttp's pool opens the connections and keeps them, and its parser reads the answers. Its
session is left out: for what we never use (redirects, cookies, proxies, bodies of all kinds)
it makes a URL, maps of headers, a task that writes and a response anew each time, which costs
a third of a request's CPU. What we send is a head and bytes, at once.

A session is a pool made of TLS settings; when they change, new requests get a new one, and the old
one is closed when its last request, possibly a long watch, has ended.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from yarl import URL

from ccm.base.log import logger
from ccm.base.wire import aiohttp
from ccm.kube import credentials, errors
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Credential

CONNECT_TIMEOUT_S = 10.0

READ_BUFFER = 2 * 1024 * 1024
"""Bytes read ahead per connection; a whole object in one go."""

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A dead peer is noticed in a minute, also by a watch that is silent by right."""

_WAITS = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S)
"""Of the rest the limits are the caller's."""

_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
"""Methods that may be sent twice (RFC 9110, 9.2.2): the server may have closed a connection that
was kept, just when it is used again."""

_INTERIM = frozenset({100, 102, 103})
"""What a server may say before it answers."""

_LINE_ENDS = re.compile(r"[\r\n\0]")


class Response:
    """The head of an answer, and its content as it comes; `read` it, or `close` it.

    Attributes:
        status: as the server said.
        headers: by name, in any case of letters.
        content: the body, decompressed.
    """

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        content: aiohttp.StreamReader,
        connection: aiohttp.connector.Connection,
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._connection = connection

    async def read(self) -> bytes:
        """The whole body; the connection is free again, or closed if the answer was cut."""
        try:
            # A short one came with the head.
            if self.content.is_eof():
                return self.content.read_nowait()
            return await self.content.read()
        finally:
            # The pool closes one that was not read to the end.
            self._connection.release()

    def close(self) -> None:
        """Read no further."""
        self._connection.close()


class Connections:
    """Connections to one server, kept for later requests.

    Args:
        server: its URL; only scheme, host and port count.
        context: of TLS; None where the server speaks none.
        server_name: name expected in the server's certificate; empty: the host's.
    """

    def __init__(self, server: str, context: ssl.SSLContext | None, server_name: str) -> None:
        origin = URL(server)
        self._server = server
        self._host = origin.host_port_subcomponent
        self._pool = aiohttp.TCPConnector(
            limit=0,  # our own limiters limit
            ssl=context if context is not None else True,
            socket_factory=_open_socket,
        )
        # Says where to connect to, and is never sent.
        self._where = aiohttp.ClientRequest(
            "GET", origin, loop=asyncio.get_running_loop(), server_hostname=server_name or None
        )

    async def close(self) -> None:
        """Close all of them, used or not."""
        await self._pool.close()

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        silence_s: float | None = None,
    ) -> Response:
        """Send a request and wait for the head of its answer.

        Args:
            method: HTTP method, not HEAD.
            target: path and query, encoded already.
            headers: what to send beside the host and the length.
            body: what to send.
            silence_s: longest time without a byte of the answer; None = any.

        Raises:
            aiohttp.ClientError, HttpProcessingError: there was no answer.
            ValueError: a header would end its line.
        """
        sent = self._head(method, target, headers, body) + (body or b"")
        try:
            return await self._exchange(sent, silence_s)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if method not in _REPEATABLE:
                raise
        return await self._exchange(sent, silence_s)

    def _head(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        if _LINE_ENDS.search("".join(lines)):
            raise ValueError("the path or a header of a request has a line break in it")
        return "\r\n".join((*lines, "\r\n")).encode()

    async def _exchange(self, sent: bytes, silence_s: float | None) -> Response:
        connection = await self._connect()
        try:
            protocol = connection.protocol
            if protocol is None or protocol.transport is None or protocol.transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(
                read_until_eof=True, read_timeout=silence_s, read_bufsize=READ_BUFFER
            )
            protocol.transport.write(sent)
            protocol.start_timeout()
            head, content = await protocol.read()
            while head.code in _INTERIM:
                head, content = await protocol.read()
        except BaseException:
            connection.close()
            raise
        return Response(head.code, head.headers, content, connection)

    async def _connect(self) -> aiohttp.connector.Connection:
        try:
            return await self._pool.connect(self._where, traces=[], timeout=_WAITS)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(
                f"Connection timeout to host {self._server}"
            ) from error


def _open_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = info
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


@dataclass(slots=True, kw_only=True, eq=False)
class PooledSession:
    """A session, the TLS settings it was made of, and how many requests use it."""

    connections: Connections
    settings: credentials.TlsSettings
    users: int = 0
    retired: bool = False


class Sessions:
    """The sessions towards one server.

    Args:
        config: where the server is, and the TLS settings; replaced by `adopt`.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._log = logger("kube")
        self._config = config
        self._newest: PooledSession | None = None
        self._open: set[PooledSession] = set()
        self._changing = asyncio.Lock()

    def adopt(self, config: ClusterConfig) -> None:
        """Use other TLS settings from the next request on."""
        self._config = config

    async def close(self) -> None:
        """Close every session, used or not."""
        self._newest = None
        while self._open:
            await self._open.pop().connections.close()

    async def acquire(self, credential: Credential) -> PooledSession:
        """The session for a credential, a new one if the TLS settings changed.

        Raises:
            errors.Unreachable: nothing can be made of the TLS settings.
        """
        wanted = self._config.tls
        if credential.certificate is not None:
            wanted = replace(wanted, certificate=credential.certificate)
        newest = self._newest
        if newest is None or newest.settings != wanted:
            newest = await self._exchanged(wanted)
        newest.users += 1
        return newest

    async def release(self, pooled: PooledSession) -> None:
        """End one use of a session; a retired one is closed by its last user."""
        pooled.users -= 1
        await self._close_unused(pooled)

    async def _exchanged(self, wanted: credentials.TlsSettings) -> PooledSession:
        async with self._changing:
            old = self._newest
            if old is not None and old.settings == wanted:
                return old
            server, context = self._config.server, None
            if server.startswith("https:"):
                try:
                    context = await asyncio.to_thread(credentials.build_context, wanted)
                except (OSError, ValueError) as problem:
                    text = f"TLS settings of {self._config.source} are unusable: {problem}"
                    raise errors.Unreachable(text, kind="tls") from problem
            opened = Connections(server, context, wanted.server_name)
            newest = PooledSession(connections=opened, settings=wanted)
            self._open.add(newest)
            self._newest = newest
            if old is not None:
                self._log.info("TLS settings changed, new connections use them")
                old.retired = True
                await self._close_unused(old)
            return newest

    async def _close_unused(self, pooled: PooledSession) -> None:
        if pooled.retired and pooled.users == 0 and pooled in self._open:
            self._open.discard(pooled)
            await pooled.connections.close()


CONCURRENCY = 8
"""The limit while answers come fast."""

PATIENCE_S = 0.1
"""After how many seconds in which somebody waited and few answers came the limit rises by one."""

MANY = 20
"""Answers in that time which are not few: a server that gives 200 a second is busy, not slow."""


class ConcurrencyLimiter:
    """Lets so many in at once, for as long as its `async with` block; others wait in order."""

    def __init__(self) -> None:
        self._limit = CONCURRENCY
        self._busy = 0
        self._ended = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self._busy < self._limit:
            self._busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._watch()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the turn came in the same breath: pass it on
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._busy -= 1
        self._ended += 1
        self._let_in()
        if not self._busy:
            self._limit = CONCURRENCY

    def _let_in(self) -> None:
        while self._waiting and self._busy < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)

    def _watch(self) -> None:
        if self._timer is None:
            self._ended = 0
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PATIENCE_S, self._widen)

    def _widen(self) -> None:
        self._timer = None
        if self._waiting and self._ended < MANY:
            self._limit += 1
            self._let_in()
        if self._waiting:
            self._watch()
