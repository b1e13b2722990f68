"""Takes callers of a port in, at next to no cost until they say something.

A connection is a bare socket until its first byte: a silent one costs a few hundred bytes. Then
it gets TLS and whatever speaks on top of it. asyncio's TLS is used on every event loop, with a
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

from ccm.base import log
from ccm.base.outage import Outage
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving.connections import LATE, Connections, Seat, Stage
from ccm.serving.turns import Turns, origin_of

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
"""Makes what speaks with a caller; it leaves the seat when the connection is lost."""


class Acceptor:
    """Takes in the callers of one port.

    Args:
        speak: makes what speaks with a caller.
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
        self._opening: set[asyncio.Task[None]] = set()
        self._starts = Turns(STARTS, each=STARTS_OF_EACH)
        self._shortage = Outage(
            log.logger("serving"),
            begins="callers wait, no file descriptors or memory are left for them",
            ends="callers are let in again",
        )

    def start(self, listener: socket.socket) -> None:
        """Take in whoever calls; the port is closed with this."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    async def close(self) -> None:
        """Take nobody in any more, and end what has not begun to ask."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        await cancel_and_join(*self._opening)
        self._connections.hang_up(Stage.SILENT, Stage.UNFINISHED)

    def _accept(self) -> None:
        listener = self._listener
        for _ in range(_AT_ONCE):
            if listener is None:
                return
            try:
                caller, address = listener.accept()
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._wait(listener, error)
                return
            self._shortage.is_over()
            self._admit(caller, origin_of(address[0]))

    def _wait(self, listener: socket.socket, error: OSError) -> None:
        """The listener stays readable: without a pause this would be a loop that does nothing."""
        self._shortage.goes_on(error=error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None:
            self.start(self._listener)

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
            # Who has lost its place does not wait for its turn any more.
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
        seat.hang_up = _later
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
        self._seat = seat
        # What may wait in here while nobody reads it: by itself 256 KiB in, 512 KiB out.
        transport = self._get_app_transport()  # type: ignore[attr-defined]  # not in typeshed
        transport.set_read_buffer_limits(high=2 * CHUNK)
        transport.set_write_buffer_limits(high=4 * CHUNK)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over; what speaks on top is not told before TLS stood."""
        self._seat.leave()
        super().connection_lost(exc)


def _later() -> None:
    """It is ended as soon as it is open."""
