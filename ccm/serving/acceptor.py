"""Opens a port, and takes in its callers at next to no cost until they say something.

A connection is a bare socket until its first byte: a silent one costs a few hundred bytes. Then
it gets TLS and the protocol on top of it. asyncio's TLS is used on every event loop, with a
buffer of one TLS record: by itself asyncio takes 256 KiB for each connection, and uvloop's own
cannot be told another size.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from ccm.base import log
from ccm.base.log import Outage
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving.connections import LATE, Connections, Seat, Stage, Turns, origin_of

BACKLOG = 1024
"""Callers that wait in the kernel; one that finds no room there tries again after a second."""

CHUNK = 16 << 10
"""Bytes that are read at one time under TLS: one record."""

HANDSHAKE_S = 10
"""How long TLS may take (Go, net/http)."""

CLOSE_S = 2
"""How long a caller may take to say goodbye."""

PACE_S = 0.01
STARTS, STARTS_OF_EACH = 8, 2
"""In so much time so many TLS handshakes are begun, and so many with callers from one address.
Each costs a millisecond or more: a crowd that comes again and again must not have them all."""

_AT_ONCE = 64
"""Callers let in before the event loop does something else."""

_PAUSE_S = 1.0
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Speak = Callable[[Seat], asyncio.Protocol]
"""Makes the protocol of a caller, which leaves the seat when the connection is lost."""


class ListenError(OSError):
    """The port cannot be opened; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens.

    Attributes:
        address: `::` means every address of both families.
        port: 0: one that is free.
        share_port: let other processes listen on it too (SO_REUSEPORT).
    """

    address: IPv4Address | IPv6Address
    port: int
    share_port: bool = False

    def __str__(self) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


def bind(endpoint: Endpoint) -> socket.socket:
    """Open the port; callers wait in the kernel until they are accepted.

    Raises:
        ListenError: it cannot be opened.
    """
    family = socket.AF_INET6 if endpoint.address.version == 6 else socket.AF_INET
    try:
        opened = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"cannot listen on {endpoint}: {error.strerror}") from error
    try:
        # Go always sets it too: without it a restarted process waits for old connections.
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
    """Takes in the callers of one port.

    Args:
        speak: makes the protocol of a caller.
        connections: the places there are.
        context: TLS; None: none.
        header_s: how long a caller may take until its first request is there.
    """

    def __init__(
        self,
        speak: Speak,
        connections: Connections,
        *,
        context: ssl.SSLContext | None,
        header_s: float,
    ) -> None:
        self._speak = speak
        self._connections = connections
        self._context = context
        self._header_s = header_s
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._starts = Turns(STARTS, each=STARTS_OF_EACH)
        self._shortage = Outage(
            log.logger("serving"),
            begins="callers wait, no file descriptors or memory are left for them",
            ends="callers are let in again",
        )

    def start(self, listener: socket.socket) -> None:
        """Take in callers; the port is closed with this."""
        self._listener = listener
        self._accepting = spawn(self._accept(listener), name="accept")

    async def close(self) -> None:
        """Take no more callers, and end connections that have not begun a request."""
        if self._accepting is not None and self._listener is not None:
            await cancel_and_join(self._accepting)
            self._listener.close()
        await cancel_and_join(*self._opening)
        self._connections.hang_up(Stage.SILENT, Stage.UNFINISHED)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            callers, pause_s = [], 0.0
            try:
                callers.append(await loop.sock_accept(listener))
                # uvloop would take in one caller in each of its rounds: too few in a crowd.
                while len(callers) < _AT_ONCE:
                    callers.append(listener.accept())
            except BlockingIOError:
                self._shortage.is_over()
            except OSError as error:
                # The listener stays readable: without a pause this loop would spin.
                is_short = error.errno in _SHORTAGES
                if is_short:
                    self._shortage.goes_on(error=error.strerror)
                pause_s = _PAUSE_S if is_short else PACE_S
            else:
                self._shortage.is_over()
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

        seat.hang_up = hang_up
        seat.deadline = loop.call_later(self._header_s, seat.refuse, LATE)
        loop.add_reader(caller, self._heard, caller, seat)

    def _heard(self, caller: socket.socket, seat: Seat) -> None:
        """The first bytes are there, or the end."""
        try:
            gone = not caller.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            seat.leave()
            seat.hang_up()
            return
        asyncio.get_running_loop().remove_reader(caller)
        task = spawn(self._begin(caller, seat), name="caller")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

        def hang_up() -> None:
            # A caller that has lost its place does not wait for its turn any more.
            task.cancel()
            caller.close()

        seat.hang_up = hang_up
        seat.reach(Stage.UNFINISHED)

    async def _begin(self, caller: socket.socket, seat: Seat) -> None:
        """Open the connection when it is its turn."""
        if self._context is None:
            await self._open(caller, seat)
            return
        async with self._starts.place(seat.origin):
            await self._open(caller, seat)
            await asyncio.sleep(PACE_S)

    async def _open(self, caller: socket.socket, seat: Seat) -> None:
        if not seat.taken():
            return
        seat.hang_up = lambda: None  # it is ended as soon as it is open
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: self._protocol(seat), caller)
        except BaseException as error:
            seat.leave()
            caller.close()
            if isinstance(error, OSError):  # it hung up meanwhile
                return
            raise
        if seat.taken():
            seat.hang_up = transport.abort
        else:
            transport.abort()

    def _protocol(self, seat: Seat) -> asyncio.BaseProtocol:
        speaker = self._speak(seat)
        return speaker if self._context is None else _Secured(speaker, self._context, seat)


class _Secured(SSLProtocol):
    """TLS with one caller."""

    max_size = CHUNK

    def __init__(self, speaker: asyncio.Protocol, context: ssl.SSLContext, seat: Seat) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            speaker,
            context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSE_S,
        )
        self.seat = seat

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leave the seat; the protocol on top is not told before TLS stood."""
        self.seat.leave()
        super().connection_lost(exc)
