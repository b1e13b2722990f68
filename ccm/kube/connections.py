"""Connections to the API server, and the exchange of one request on a connection.

aiohttp's connection pool opens and keeps the connections, and aiohttp's parser reads the responses.
aiohttp's `ClientSession` is not used: for each request it creates a URL, header maps, a writer task
and a response object. That takes a third of a request's CPU time, for features that are not needed
here (redirects, cookies, proxies, bodies of all kinds). This module sends head and body in one
write.

A `PooledSession` is a pool of connections with the same TLS settings. When the settings change, new
requests use a new session. The old session is closed when its last request, which may be a long
watch, has ended.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from yarl import URL

from ccm.base.lazy_aiohttp import aiohttp
from ccm.base.log import logger
from ccm.kube import credentials, errors
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Credential

CONNECT_TIMEOUT_S = 10.0
"""Time limit in seconds for connecting to one address of the server, TLS handshake included.
Shorter than the usual limit of a request, so that a further address can be tried."""

READ_BUFFER = 2 * 1024 * 1024
"""Bytes read ahead per connection, enough for a whole object."""

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Socket options (seconds; count) that detect a dead peer within a minute, even on a watch without
events."""

_WAITS = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S)
"""Time limit for connecting; the caller sets all other limits."""

_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
"""Idempotent methods (RFC 9110, 9.2.2), which are sent again if a reused connection fails: the
server may have closed the idle connection just before."""

_INTERIM = frozenset({100, 102, 103})
"""Statuses of interim responses, which precede the final response."""

_LINE_ENDS = re.compile(r"[\r\n\0]")


class ServerResponse:
    """Head of a response, and its body as a stream; the caller must call `read` or `close`.

    Attributes:
        status: HTTP status.
        headers: headers by case-insensitive name.
        content: decompressed body.
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
        """Return the whole body, and free the connection; a cut response closes the connection."""
        try:
            # A short body arrived together with the head.
            if self.content.is_eof():
                return self.content.read_nowait()
            return await self.content.read()
        finally:
            # The pool closes a connection whose response was not read to the end.
            self._connection.release()

    def close(self) -> None:
        """Close the connection without reading the rest of the response."""
        self._connection.close()


class ConnectionPool:
    """Pool of connections to one server.

    Args:
        server: URL of the server; only scheme, host and port are used.
        context: TLS context; None = the server has no TLS.
        server_name: name expected in the server's certificate; empty = the host of the URL.
    """

    def __init__(self, server: str, context: ssl.SSLContext | None, server_name: str) -> None:
        origin = URL(server)
        self._server = server
        self._host = origin.host_port_subcomponent
        self._pool = aiohttp.TCPConnector(
            limit=0,  # the rate and concurrency limiters apply instead
            ssl=context if context is not None else True,
            socket_factory=_open_socket,
        )
        # Only tells the pool where to connect; the request itself is never sent.
        self._target = aiohttp.ClientRequest(
            "GET", origin, loop=asyncio.get_running_loop(), server_hostname=server_name or None
        )

    async def close(self) -> None:
        """Close all connections, also those in use."""
        await self._pool.close()

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        silence_s: float | None = None,
    ) -> ServerResponse:
        """Send a request and wait for the head of its response.

        Args:
            method: HTTP method, not HEAD.
            target: encoded path and query.
            headers: headers without Host and Content-Length.
            body: body of the request; None = no body.
            silence_s: maximum seconds without a byte of the response; None = unlimited.

        Raises:
            aiohttp.ClientError, HttpProcessingError: there was no valid response.
            ValueError: the path or a header contains a line break.
        """
        sent = self._head(method, target, headers, body) + (body or b"")
        try:
            return await self._exchange(sent, silence_s)
        # A failure to connect is not retried: only a kept connection can be stale.
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
            raise ValueError("the path or a header of the request contains a line break")
        return "\r\n".join((*lines, "\r\n")).encode()

    async def _exchange(self, sent: bytes, silence_s: float | None) -> ServerResponse:
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
        return ServerResponse(head.code, head.headers, content, connection)

    async def _connect(self) -> aiohttp.connector.Connection:
        try:
            return await self._pool.connect(self._target, traces=[], timeout=_WAITS)
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
    """Pool of connections with the same TLS settings.

    Attributes:
        connections: the pool.
        settings: TLS settings of the connections.
        users: number of requests that use the session.
        retired: whether a newer session replaced this session.
    """

    connections: ConnectionPool
    settings: credentials.TlsSettings
    users: int = 0
    retired: bool = False


class SessionPool:
    """Sessions to one server: one for new requests, and retired ones that are still in use.

    Args:
        config: address of the server and TLS settings; `adopt` replaces it.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._log = logger("kube")
        self._config = config
        self._newest: PooledSession | None = None
        self._open: set[PooledSession] = set()
        self._changing = asyncio.Lock()
        """Held while a session is created, so that concurrent requests create only one."""

    def adopt(self, config: ClusterConfig) -> None:
        """Use the TLS settings of `config` from the next request on."""
        self._config = config

    async def close(self) -> None:
        """Close all sessions, also those in use."""
        self._newest = None
        while self._open:
            await self._open.pop().connections.close()

    async def acquire(self, credential: Credential) -> PooledSession:
        """Return the session for a credential; create one if the TLS settings changed.

        Raises:
            errors.Unreachable: the TLS settings are unusable.
        """
        wanted = self._config.tls
        if credential.certificate is not None:
            wanted = replace(wanted, certificate=credential.certificate)
        newest = self._newest
        if newest is None or newest.settings != wanted:
            newest = await self._replace_session(wanted)
        newest.users += 1
        return newest

    async def release(self, pooled: PooledSession) -> None:
        """End one use of a session; the last user of a retired session closes it."""
        pooled.users -= 1
        await self._close_unused(pooled)

    async def _replace_session(self, wanted: credentials.TlsSettings) -> PooledSession:
        async with self._changing:
            old = self._newest
            # Another request may have created the session while this one waited for the lock.
            if old is not None and old.settings == wanted:
                return old
            server, context = self._config.server, None
            if server.startswith("https:"):
                try:
                    context = await asyncio.to_thread(credentials.build_context, wanted)
                except (OSError, ValueError) as problem:
                    text = f"TLS settings of {self._config.source} are unusable: {problem}"
                    raise errors.Unreachable(text, kind="tls") from problem
            opened = ConnectionPool(server, context, wanted.server_name)
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
