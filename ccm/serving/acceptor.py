"""Opens a port, and accepts and limits connections, so that no client can block other clients.

Until its first byte arrives, a connection is only a socket, which costs a few hundred bytes of
memory. Then TLS and HTTP are set up. asyncio's TLS is used with every event loop, with a read
buffer of one TLS record. asyncio's default is 256 KiB per connection; uvloop's TLS has no setting
for the size.

A connection has one of four stages: silent, request begun, request sent, caller authenticated.
Silent connections are cheap and have a limit of their own. That limit is so large that a flood of
connections does not displace an honest client before the client's first byte is read.

The other three stages share a second limit. Each stage is guaranteed a third of the slots, and may
use free slots of other stages. When all slots are taken, a connection is closed in the earliest
stage that has more than its third. Of the origin with most connections in that stage, the least
recently used connection is closed. So a flood of one stage or from one address cannot take all
slots.

`FairLimiter` distributes slots for expensive work among origins. Each origin has a maximum, and
waiting origins get free slots round-robin.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import ipaddress
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from ccm.base import log, metrics
from ccm.base.log import Outage
from ccm.base.tasks import cancel_and_join, spawn

MAX_CONNECTIONS = 256
"""Maximum non-silent connections of a port; a malicious client can make each cost about 200 KiB."""

MAX_SILENT = 2048
"""Maximum silent connections; each costs a file descriptor and about 2 KiB."""

_OPEN = metrics.gauge(
    "ccm_serving_connections", "Open connections, by server and stage.", ["server", "stage"]
)
_REFUSED = metrics.counter(
    "ccm_serving_connections_refused",
    "Connections closed by the server: crowded (limit reached), late (no request in time), "
    "greedy (more bytes than any request needs).",
    ["server", "reason"],
)
CROWDED, LATE, GREEDY = _REASONS = ("crowded", "late", "greedy")


class ConnectionStage(enum.IntEnum):
    """Stage of a connection; under load, connections of earlier stages are closed first.

    The stages are: nothing received, request incomplete, request complete, caller authenticated.
    """

    SILENT = 0
    UNFINISHED = 1
    ANONYMOUS = 2
    KNOWN = 3


class ConnectionSlot:
    """Slot of one connection.

    Attributes:
        stage: stage of the connection.
        origin: origin of the client's address; see `origin_of`.
        abort: closes the connection at once; set by the owner of the socket.
        deadline: timer that closes the connection unless a complete request arrives first.
    """

    __slots__ = ("_connections", "abort", "deadline", "origin", "stage")

    def __init__(self, connections: ConnectionLimiter, origin: str) -> None:
        self.stage = ConnectionStage.SILENT
        self.origin = origin
        self.abort: Callable[[], None] = lambda: None
        self.deadline: asyncio.TimerHandle | None = None
        self._connections = connections

    def is_held(self) -> bool:
        """Return whether the connection still has this slot."""
        return self in self._connections.by_stage[self.stage]

    def advance(self, stage: ConnectionStage) -> None:
        """Mark the connection as just used, and move it to `stage` unless it is in a later one."""
        if self.is_held():
            self._connections.by_stage[self.stage].discard(self)
            self.stage = max(self.stage, stage)
            self._connections.by_stage[self.stage].add(self)
            self._connections.make_room()
        if self.stage >= ConnectionStage.ANONYMOUS:
            self._forget_deadline()

    def release(self) -> None:
        """Release the slot after the end of the connection; idempotent."""
        self._connections.by_stage[self.stage].discard(self)
        self._forget_deadline()
        if not self._connections:
            self._connections.drained.set()

    def evict(self, reason: str) -> None:
        """Close the connection if it still has the slot, and count the reason."""
        if self.is_held():
            self._connections.count_refused(reason)
            self.release()
            self.abort()

    def _forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


class StageConnections:
    """Connections of one stage, by origin; the least recently used connection is first."""

    def __init__(self) -> None:
        self._size = 0
        self._origins: OrderedDict[str, OrderedDict[ConnectionSlot, None]] = OrderedDict()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, seat: ConnectionSlot) -> bool:
        return seat in self._origins.get(seat.origin, ())

    def __iter__(self) -> Iterator[ConnectionSlot]:
        return (seat for seats in self._origins.values() for seat in seats)

    def add(self, seat: ConnectionSlot) -> None:
        """Add a connection, or mark it as just used."""
        self.discard(seat)
        self._origins.setdefault(seat.origin, OrderedDict())[seat] = None
        self._origins.move_to_end(seat.origin)
        self._size += 1

    def discard(self, seat: ConnectionSlot) -> None:
        """Remove a connection, if present."""
        if seat in self:
            seats = self._origins[seat.origin]
            del seats[seat]
            self._size -= 1
            if not seats:
                del self._origins[seat.origin]

    def next_victim(self) -> ConnectionSlot:
        """Return the least recently used connection of the origin with most connections."""
        largest = max(self._origins.values(), key=len)
        return next(iter(largest))


class ConnectionLimiter:
    """All connections of one port, with their limits.

    Args:
        server: name of the port in metrics.
        max_connections: maximum non-silent connections.
        max_silent: maximum silent connections; capped at an eighth of the open-file limit.
    """

    def __init__(
        self, server: str, *, max_connections: int = MAX_CONNECTIONS, max_silent: int = MAX_SILENT
    ) -> None:
        self.by_stage = {stage: StageConnections() for stage in ConnectionStage}
        self.drained = asyncio.Event()
        """Event that is set while there are no connections."""
        self.drained.set()
        self._server = server
        self._most = max_connections
        self._share = max_connections // (len(ConnectionStage) - 1)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_silent = max_silent if soft < 0 else min(max_silent, soft // 8)
        for stage, seats in self.by_stage.items():
            _OPEN.labels(server, stage.name.lower()).set_function(seats.__len__)
        for reason in _REASONS:
            _REFUSED.labels(server, reason)

    def __len__(self) -> int:
        return sum(map(len, self.by_stage.values()))

    def admit(self, origin: str = "") -> ConnectionSlot:
        """Return a slot for a new connection; above a limit, another connection is closed."""
        seat = ConnectionSlot(self, origin)
        self.by_stage[seat.stage].add(seat)
        self.drained.clear()
        self.make_room()
        return seat

    def make_room(self) -> None:
        """Close the connections above the limits."""
        silent, *others = self.by_stage.values()
        while len(silent) > self._most_silent:
            silent.next_victim().evict(CROWDED)
        while sum(map(len, others)) > self._most:
            crowd = next(stage_crowd for stage_crowd in others if len(stage_crowd) > self._share)
            crowd.next_victim().evict(CROWDED)

    def count_refused(self, reason: str) -> None:
        """Count a connection that the server closes."""
        _REFUSED.labels(self._server, reason).inc()

    def abort_stages(self, *stages: ConnectionStage) -> None:
        """Close all connections at these stages."""
        for stage in stages:
            for seat in list(self.by_stage[stage]):
                seat.release()
                seat.abort()


_IPV6_BITS = 64
"""Prefix length of an IPv6 origin: a client can use all addresses of a /64 network."""


def origin_of(host: str) -> str:
    """Return the part of a client's address that identifies the client for limits.

    It is the IPv4 address or the IPv6 /64 network. Other text is returned unchanged.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_BITS), strict=False))


class FairLimiter:
    """Fair semaphore: waiting origins get free slots round-robin.

    Args:
        slots: number of slots.
        per_origin: maximum number of slots of one origin.
    """

    def __init__(self, slots: int, *, per_origin: int) -> None:
        self._free = slots
        self._each = per_origin
        self._taken = Counter[str]()
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, origin: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it inside the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, {})[turn] = None
        self._grant()
        try:
            await turn
            yield
        finally:
            # A slot may have been granted in the iteration in which the wait was cancelled.
            if turn.done() and not turn.cancelled():
                self._taken[origin] -= 1
                if not self._taken[origin]:
                    del self._taken[origin]
                self._free += 1
                self._grant()
            else:
                self._leave(origin, turn)

    def _grant(self) -> None:
        """Grant free slots to waiting origins, round-robin."""
        while self._free and (origin := self._next()) is not None:
            turn = next(iter(self._waiting[origin]))
            self._waiting.move_to_end(origin)
            self._leave(origin, turn)
            if turn.done():  # cancelled, but the waiter has not run yet
                continue
            self._taken[origin] += 1
            self._free -= 1
            turn.set_result(None)

    def _next(self) -> str | None:
        return next((origin for origin in self._waiting if self._taken[origin] < self._each), None)

    def _leave(self, origin: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(origin, {})
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(origin, None)


BACKLOG = 1024
"""Maximum connections in the kernel's backlog; above it, the client retries after a second."""

CHUNK = 16 << 10
"""Bytes per read with TLS: one TLS record."""

HANDSHAKE_S = 10
"""Timeout of the TLS handshake in seconds (from Go's net/http)."""

CLOSE_S = 2
"""Timeout for an orderly close of connections, in seconds."""

PACE_S = 0.01
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ORIGIN = 8, 2
"""Maximum TLS handshakes that begin within `PACE_S` seconds: in total, and for one origin.

A handshake takes a millisecond or more of CPU time, and clients that reconnect continually must
not use all of it.
"""

_MAX_ACCEPTS = 64
"""Maximum connections accepted before the event loop runs other work."""

_PAUSE_S = 1.0
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

ProtocolFactory = Callable[[ConnectionSlot], asyncio.Protocol]
"""Function that creates the protocol of a connection.

The protocol must release the slot when the connection ends.
"""


class ListenError(OSError):
    """The port cannot be opened; the message contains address and cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and port of a server.

    Attributes:
        address: IP address to listen on; `::` means all addresses of both IP families.
        port: TCP port; 0 means any free port.
        share_port: allow other processes to listen on the port too (SO_REUSEPORT).
    """

    address: IPv4Address | IPv6Address
    port: int
    share_port: bool = False

    def __str__(self) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


def bind(endpoint: Endpoint) -> socket.socket:
    """Open the port; connections wait in the kernel's backlog until they are accepted.

    Raises:
        ListenError: the port cannot be opened.
    """
    family = socket.AF_INET6 if endpoint.address.version == 6 else socket.AF_INET
    try:
        opened = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror}") from error
    try:
        # As in Go. Otherwise a restarted process could not bind while old connections linger.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if endpoint.share_port:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not endpoint.address.is_unspecified)
            )
        opened.bind((str(endpoint.address), endpoint.port))
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror}") from error
    return opened


class Acceptor:
    """Acceptor of one port.

    Args:
        protocol_factory: creates the protocol of a connection.
        connections: limits the connections of the port.
        context: TLS context; None means plain HTTP.
        header_s: timeout in seconds for the first request header of a connection.
    """

    def __init__(
        self,
        protocol_factory: ProtocolFactory,
        connections: ConnectionLimiter,
        *,
        context: ssl.SSLContext | None,
        header_s: float,
    ) -> None:
        self._protocol_factory = protocol_factory
        self._connections = connections
        self._context = context
        self._header_s = header_s
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._handshakes = FairLimiter(MAX_HANDSHAKES, per_origin=MAX_HANDSHAKES_PER_ORIGIN)
        self._shortage = Outage(
            log.logger("serving"),
            start_message="connections not accepted, file descriptors or memory exhausted",
            end_message="connections accepted again",
        )

    def start(self, listener: socket.socket) -> None:
        """Accept connections on a listening socket, which `close` closes."""
        self._listener = listener
        self._accepting = spawn(self._accept(listener), name="accept")

    async def close(self) -> None:
        """Stop accepting, and close connections without a complete request."""
        if self._accepting is not None and self._listener is not None:
            await cancel_and_join(self._accepting)
            self._listener.close()
        await cancel_and_join(*self._opening)
        self._connections.abort_stages(ConnectionStage.SILENT, ConnectionStage.UNFINISHED)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            callers, pause_s = [], 0.0
            try:
                callers.append(await loop.sock_accept(listener))
                # `sock_accept` accepts one connection per iteration: too few in a flood.
                while len(callers) < _MAX_ACCEPTS:
                    callers.append(listener.accept())
            except BlockingIOError:  # no more connections are waiting
                self._shortage.record_success()
            except OSError as error:
                # The listener stays readable, so this loop would spin without a pause.
                is_short = error.errno in _SHORTAGES
                if is_short:
                    self._shortage.record_failure(error=error.strerror)
                pause_s = _PAUSE_S if is_short else PACE_S
            else:
                self._shortage.record_success()
            for caller, address in callers:
                self._admit(caller, origin_of(address[0]))
            await asyncio.sleep(pause_s)

    def _admit(self, caller: socket.socket, origin: str) -> None:
        loop = asyncio.get_running_loop()
        caller.setblocking(False)
        seat = self._connections.admit(origin)

        def hang_up() -> None:
            loop.remove_reader(caller)
            caller.close()

        seat.abort = hang_up
        seat.deadline = loop.call_later(self._header_s, seat.evict, LATE)
        loop.add_reader(caller, self._on_readable, caller, seat)

    def _on_readable(self, caller: socket.socket, seat: ConnectionSlot) -> None:
        """Handle the first byte or the end of a silent connection."""
        try:
            gone = not caller.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            seat.release()
            seat.abort()
            return
        asyncio.get_running_loop().remove_reader(caller)
        task = spawn(self._handshake(caller, seat), name="caller")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

        def hang_up() -> None:
            # A connection that has lost its slot must not wait for a handshake.
            task.cancel()
            caller.close()

        seat.abort = hang_up
        seat.advance(ConnectionStage.UNFINISHED)

    async def _handshake(self, caller: socket.socket, seat: ConnectionSlot) -> None:
        """Open the connection; with TLS, first wait for a handshake slot.

        The slot is kept for `PACE_S` seconds after the handshake.
        """
        if self._context is None:
            await self._open(caller, seat)
            return
        async with self._handshakes.slot(seat.origin):
            await self._open(caller, seat)
            await asyncio.sleep(PACE_S)

    async def _open(self, caller: socket.socket, seat: ConnectionSlot) -> None:
        if not seat.is_held():
            return
        seat.abort = lambda: None  # no transport yet; a connection without slot is aborted below
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: self._protocol(seat), caller)
        except BaseException as error:
            seat.release()
            caller.close()
            if isinstance(error, OSError):  # the client has disconnected
                return
            raise
        if seat.is_held():
            seat.abort = transport.abort
        else:
            transport.abort()

    def _protocol(self, seat: ConnectionSlot) -> asyncio.BaseProtocol:
        speaker = self._protocol_factory(seat)
        return speaker if self._context is None else _TlsProtocol(speaker, self._context, seat)


class _TlsProtocol(SSLProtocol):
    """TLS protocol of one connection, with a small read buffer."""

    max_size = CHUNK

    def __init__(
        self, speaker: asyncio.Protocol, context: ssl.SSLContext, seat: ConnectionSlot
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            speaker,
            context,
            None,  # type: ignore[arg-type]  # no waiter for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSE_S,
        )
        self.seat = seat

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the slot: without a completed handshake, the HTTP protocol is never called."""
        self.seat.release()
        super().connection_lost(exc)
