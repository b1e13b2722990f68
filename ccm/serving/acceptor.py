"""Opens a port, and takes in its callers at next to no cost until they say something.

A connection is a bare socket until its first byte: a silent one costs a few hundred bytes. Then
it gets TLS and the protocol on top of it. asyncio's TLS is used on every event loop, with a
buffer of one TLS record: by itself asyncio takes 256 KiB for each connection, and uvloop's own
cannot be told another size.

How many callers a port holds at one time, and which goes when one more comes.

How far a connection has come decides: it is silent, has begun a request, has sent one, or its
caller is known. Silent ones cost little and have places of their own, so many that an honest
caller is not pushed out by a crowd before its first word is read. Of the others each stage is
sure of a third of the places and may fill what the rest leaves free: when all are taken, the
first stage that has more than its share loses a connection: of the origin that has most there,
the one that was unused for longest. So no crowd of one stage or from one address, however fast
it comes, costs others their places.

`Turns` shares scarce work among origins: each has some of the places at most, and one that gets
free goes to each waiting origin in turn.
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

MOST = 256
"""Connections of one port that have said something. Each may cost some 200 KiB when its caller
does its worst."""

MOST_SILENT = 2048
"""Those that have not; a file descriptor and some 2 KiB each."""

_OPEN = metrics.gauge(
    "ccm_serving_connections",
    "Connections that a port of ours holds open, by how far they have come.",
    ["server", "stage"],
)
_REFUSED = metrics.counter(
    "ccm_serving_connections_refused",
    "Connections that we ended: crowded, to make room for another; late, without a request in "
    "time; greedy, with more bytes than any request needs.",
    ["server", "reason"],
)
CROWDED, LATE, GREEDY = _REASONS = ("crowded", "late", "greedy")


class Stage(enum.IntEnum):
    """How far a connection has come, in the order in which they go."""

    SILENT = 0
    UNFINISHED = 1
    ANONYMOUS = 2
    KNOWN = 3


class Seat:
    """The place of one connection.

    Attributes:
        stage: how far it has come.
        origin: where it comes from.
        hang_up: ends it at once; whoever holds the connection puts it there.
        deadline: hangs up unless a request comes first.
    """

    __slots__ = ("_connections", "deadline", "hang_up", "origin", "stage")

    def __init__(self, connections: Connections, origin: str) -> None:
        self.stage = Stage.SILENT
        self.origin = origin
        self.hang_up: Callable[[], None] = lambda: None
        self.deadline: asyncio.TimerHandle | None = None
        self._connections = connections

    def taken(self) -> bool:
        """Whether the connection still has it."""
        return self in self._connections.by_stage[self.stage]

    def reach(self, stage: Stage) -> None:
        """It did something that belongs to a stage; nobody falls back behind an earlier one."""
        if self.taken():
            self._connections.by_stage[self.stage].discard(self)
            self.stage = max(self.stage, stage)
            self._connections.by_stage[self.stage].add(self)
            self._connections.make_room()
        if self.stage >= Stage.ANONYMOUS:
            self._forget_deadline()

    def leave(self) -> None:
        """The connection is over; may be said twice."""
        self._connections.by_stage[self.stage].discard(self)
        self._forget_deadline()
        if not self._connections:
            self._connections.emptied.set()

    def refuse(self, reason: str) -> None:
        """End the connection, and count why."""
        if self.taken():
            self._connections.refused(reason)
            self.leave()
            self.hang_up()

    def _forget_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


class Crowd:
    """Connections at one stage, by their origins; those used last come last."""

    def __init__(self) -> None:
        self._size = 0
        self._origins: OrderedDict[str, OrderedDict[Seat, None]] = OrderedDict()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, seat: Seat) -> bool:
        return seat in self._origins.get(seat.origin, ())

    def __iter__(self) -> Iterator[Seat]:
        return (seat for seats in self._origins.values() for seat in seats)

    def add(self, seat: Seat) -> None:
        """It comes, or was used."""
        self.discard(seat)
        self._origins.setdefault(seat.origin, OrderedDict())[seat] = None
        self._origins.move_to_end(seat.origin)
        self._size += 1

    def discard(self, seat: Seat) -> None:
        """It goes, if it is here."""
        if seat in self:
            seats = self._origins[seat.origin]
            del seats[seat]
            self._size -= 1
            if not seats:
                del self._origins[seat.origin]

    def first(self) -> Seat:
        """Which one has to go."""
        largest = max(self._origins.values(), key=len)
        return next(iter(largest))


class Connections:
    """Those of one port.

    Args:
        server: names the port in metrics.
        most: how many may have said something.
        most_silent: how many may not; never more than an eighth of the files we may open.
    """

    def __init__(self, server: str, *, most: int = MOST, most_silent: int = MOST_SILENT) -> None:
        self.by_stage = {stage: Crowd() for stage in Stage}
        self.emptied = asyncio.Event()
        """Set while there is none."""
        self.emptied.set()
        self._server = server
        self._most = most
        self._share = most // (len(Stage) - 1)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_silent = most_silent if soft < 0 else min(most_silent, soft // 8)
        for stage, seats in self.by_stage.items():
            _OPEN.labels(server, stage.name.lower()).set_function(seats.__len__)
        for reason in _REASONS:
            _REFUSED.labels(server, reason)

    def __len__(self) -> int:
        return sum(map(len, self.by_stage.values()))

    def admit(self, origin: str = "") -> Seat:
        """A place for a new connection from there; another may lose its own."""
        seat = Seat(self, origin)
        self.by_stage[seat.stage].add(seat)
        self.emptied.clear()
        self.make_room()
        return seat

    def make_room(self) -> None:
        """End those for which there is no place."""
        silent, *others = self.by_stage.values()
        while len(silent) > self._most_silent:
            silent.first().refuse(CROWDED)
        while sum(map(len, others)) > self._most:
            crowd = next(each for each in others if len(each) > self._share)
            crowd.first().refuse(CROWDED)

    def refused(self, reason: str) -> None:
        """Count a connection that we end."""
        _REFUSED.labels(self._server, reason).inc()

    def hang_up(self, *stages: Stage) -> None:
        """End all connections at these stages."""
        for stage in stages:
            for seat in list(self.by_stage[stage]):
                seat.leave()
                seat.hang_up()


_IPV6_BITS = 64
"""Of an IPv6 address; the rest is its owner's to choose, for each connection anew."""


def origin_of(host: str) -> str:
    """Where a peer's address counts as coming from; the text itself where it is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_BITS), strict=False))


class Turns:
    """Some places.

    Args:
        places: how many there are.
        each: how many of them one origin has at most.
    """

    def __init__(self, places: int, *, each: int) -> None:
        self._free = places
        self._each = each
        self._taken = Counter[str]()
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def place(self, origin: str) -> AsyncIterator[None]:
        """Wait for a place, and have it inside the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, {})[turn] = None
        self._give()
        try:
            await turn
            yield
        finally:
            # It may have come in the same moment as the end of the wait.
            if turn.done() and not turn.cancelled():
                self._taken[origin] -= 1
                if not self._taken[origin]:
                    del self._taken[origin]
                self._free += 1
                self._give()
            else:
                self._leave(origin, turn)

    def _give(self) -> None:
        """Give what is free to those whose turn it is."""
        while self._free and (origin := self._next()) is not None:
            turn = next(iter(self._waiting[origin]))
            self._waiting.move_to_end(origin)
            self._leave(origin, turn)
            if turn.done():  # its caller goes, and has had no time to say so
                continue
            self._taken[origin] += 1
            self._free -= 1
            turn.set_result(None)

    def _next(self) -> str | None:
        return next((each for each in self._waiting if self._taken[each] < self._each), None)

    def _leave(self, origin: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(origin, {})
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(origin, None)


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
