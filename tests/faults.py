"""Faults on the wire: an HTTP proxy that cuts, delays, holds and rewrites.

`FaultProxy` stands between a client and an API server, or between a provider and its cloud. It
records every request, and rules say what happens to which. What enters: faults of the wire, and
hooks at the moments of a request. What must not: knowledge of the daemon or of any server.

A request passes three points: BEFORE it is sent on, when it TOOK_EFFECT (the server has answered,
nobody has seen it), and when the client has its ANSWERED. An action may act at one of them, change
the answer as a whole, or change the lines of a stream. Several may work on one request, in the
order of the rules.

The proxy speaks plain http on a loopback port, http or https to the server behind. Answers are
read as a whole before the client gets them, but for streams (`watch=true`), which pass line by
line. A server that cannot be reached shows as a cut connection, just as without the proxy. Headers
pass untouched, except those that belong to one connection, and `Accept-Encoding`: bodies must be
readable to be rewritten.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import io
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import aiohttp
import multidict
import yarl
from aiohttp import web

from tests.waiting import DEADLINE_S

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_STREAM_KEYS = ("watch", "follow")


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request as it arrived, and its answer as far as it has come.

    Attributes:
        method: upper case.
        path: percent-decoded, without the query.
        query: the last value of each key.
        query_string: as it arrived.
        headers: keys in lower case.
        body: all of it, also of writes that are then cut.
        started_s: event-loop time of arrival.
        upstream_status: what the server said; None if it was not asked or has
            not answered.
        status: what the client was told; None while there is no answer.
        lines: lines of a stream sent to the client so far.
        ended_s: event-loop time when the proxy was done with it; None before.
        trouble: why the server could not be asked, or why its answer broke off.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    started_s: float = 0.0
    upstream_status: int | None = None
    status: int | None = None
    lines: int = 0
    ended_s: float | None = None
    trouble: str | None = None

    @property
    def is_write(self) -> bool:
        """Whether the method may change anything."""
        return self.method not in _READS

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes line by line (a watch, a followed log)."""
        return any(self.query.get(key, "").lower() in {"1", "true"} for key in _STREAM_KEYS)

    def json(self) -> Any:
        """The request's body, decoded."""
        return json.loads(self.body)

    def __str__(self) -> str:
        query = f"?{self.query_string}" if self.query_string else ""
        return f"{self.method} {self.path}{query} -> {self.trouble or self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests are meant; a field left out means any.

    Attributes:
        method: pattern for the whole method, as "PUT|PATCH".
        path: pattern searched in the decoded path.
        query: pattern searched in the query string as it arrived.
        stream: only watches and the like (True), or only the others (False).
        write: only writes (True), or only reads (False).
        where: any further condition.
    """

    method: str | None = None
    path: str | None = None
    query: str | None = None
    stream: bool | None = None
    write: bool | None = None
    where: Callable[[Exchange], bool] | None = None

    def covers(self, exchange: Exchange) -> bool:
        """Whether the request is one of those."""
        return (
            (self.method is None or re.fullmatch(self.method, exchange.method) is not None)
            and (self.path is None or re.search(self.path, exchange.path) is not None)
            and (self.query is None or re.search(self.query, exchange.query_string) is not None)
            and (self.stream is None or self.stream is exchange.is_stream)
            and (self.write is None or self.write is exchange.is_write)
            and (self.where is None or self.where(exchange))
        )


Lines = AsyncIterator[bytes]


class Point(enum.Enum):
    """A moment in the life of a request."""

    BEFORE = "before it is sent on"
    TOOK_EFFECT = "the server has answered"
    ANSWERED = "the client has the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer, not a stream."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Dropped(Exception):
    """The connection ends here: with a reset, or by closing it without a word."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "cut")
        self.reset = reset


class Replied(Exception):
    """This is the answer; the server is not asked."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Action:
    """Base of all faults; does nothing."""

    def applies_to(self, exchange: Exchange) -> bool:
        """Whether this kind of request can suffer this fault at all."""
        return True

    async def reach(self, point: Point, exchange: Exchange) -> None:
        """The request is at `point`. May wait, or raise `Dropped` or `Replied`."""

    def change(self, answer: Answer) -> Answer:
        """The answer the client gets instead of `answer`; not for streams."""
        return answer

    def filter(self, lines: Lines) -> Lines:
        """The lines the client gets instead of `lines`; for streams only."""
        return lines


@dataclass(frozen=True, slots=True)
class _AtPoint(Action):
    """An action at one point of a request."""

    at: Point = field(default=Point.BEFORE, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is self.at:
            await self.act(exchange)

    async def act(self, exchange: Exchange) -> None:
        """The request is there."""


@dataclass(frozen=True, slots=True)
class Cut(_AtPoint):
    """Close the connection: a request never sent on, or its answer lost."""

    async def act(self, exchange: Exchange) -> None:
        raise Dropped(reset=False)


@dataclass(frozen=True, slots=True)
class Reset(_AtPoint):
    """As `Cut`, with a TCP reset."""

    async def act(self, exchange: Exchange) -> None:
        raise Dropped(reset=True)


@dataclass(frozen=True, slots=True)
class Delay(_AtPoint):
    """Wait so many seconds."""

    seconds: float

    async def act(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Hold(_AtPoint):
    """Wait until the event is set, or the client has disconnected."""

    release: asyncio.Event

    async def act(self, exchange: Exchange) -> None:
        await self.release.wait()


@dataclass(frozen=True, slots=True)
class Call(_AtPoint):
    """Call back, and go on when it has returned."""

    function: Callable[[Exchange], Awaitable[None]]

    async def act(self, exchange: Exchange) -> None:
        await self.function(exchange)


@dataclass(frozen=True, slots=True)
class Fell(_AtPoint):
    """Call `strike`, which ends the client at once, and let nothing go on after that.

    Before: the server never sees the request. When it took effect: the answer is lost.
    """

    strike: Callable[[], None]

    async def act(self, exchange: Exchange) -> None:
        self.strike()
        if self.at is not Point.ANSWERED:
            raise Dropped(reset=False)


@dataclass(frozen=True, slots=True)
class Respond(Action):
    """Answer in the server's place; a body that is not bytes is sent as JSON."""

    status: int
    body: object = b""
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is not Point.BEFORE:
            return
        if isinstance(self.body, bytes):
            raise Replied(Answer(status=self.status, headers=self.headers, body=self.body))
        headers = {"Content-Type": "application/json", **self.headers}
        body = json.dumps(self.body).encode()
        raise Replied(Answer(status=self.status, headers=headers, body=body))


@dataclass(frozen=True, slots=True)
class RewriteBody(Action):
    """Send another body instead of the server's."""

    function: Callable[[bytes], bytes]

    def applies_to(self, exchange: Exchange) -> bool:
        return not exchange.is_stream

    def change(self, answer: Answer) -> Answer:
        return dataclasses.replace(answer, body=self.function(answer.body))


@dataclass(frozen=True, slots=True)
class _LineAction(Action):
    """Faults of streams."""

    def applies_to(self, exchange: Exchange) -> bool:
        return exchange.is_stream


@dataclass(frozen=True, slots=True)
class RewriteLine(_LineAction):
    """Change lines (with their line ends); None takes one out."""

    function: Callable[[bytes], bytes | None]

    async def filter(self, lines: Lines) -> Lines:
        async for line in lines:
            changed = self.function(line)
            if changed is not None:
                yield changed


@dataclass(frozen=True, slots=True)
class InsertLine(_LineAction):
    """Send one line of ours before all others, at once."""

    line: bytes

    async def filter(self, lines: Lines) -> Lines:
        yield self.line + b"\n"
        async for line in lines:
            yield line


@dataclass(frozen=True, slots=True)
class _AfterLines(_LineAction):
    """Acts after a number of lines, without waiting for the next one."""

    count: int

    async def filter(self, lines: Lines) -> Lines:
        for _ in range(self.count):
            if (line := await anext(lines, None)) is None:
                break
            yield line
        await self.end()

    async def end(self) -> None:
        """No more lines."""


class CloseAfterLines(_AfterLines):
    """End the stream properly after so many lines, as a server's timeout does."""


class ResetAfterLines(_AfterLines):
    """Reset the connection after so many lines; the last may not arrive."""

    async def end(self) -> None:
        raise Dropped(reset=True)


class SilentAfterLines(_AfterLines):
    """Send nothing more after so many lines, and keep the connection open."""

    async def end(self) -> None:
        await asyncio.Event().wait()


_LOOPBACK = "127.0.0.1"
_OF_ONE_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade", "content-length"),
    }
)
_NOT_SENT_ON = _OF_ONE_CONNECTION | {"host", "accept-encoding"}
_WITHOUT_BODY = frozenset({204, 304})
_SHUTDOWN_S = 1.0


class Rule:
    """An active rule; counts requests that it matched and acted on."""

    def __init__(self, match: Match, action: Action, *, nth: int | None, times: int | None) -> None:
        self.match = match
        self.action = action
        self.seen = 0
        """How many requests matched."""
        self.fired: list[Exchange] = []
        """The requests it acted on."""
        self._nth = nth
        self._times = times

    def claims(self, exchange: Exchange) -> bool:
        """Whether to act on this new request; counts it."""
        if not (self.match.covers(exchange) and self.action.applies_to(exchange)):
            return False
        self.seen += 1
        if self._nth is not None and self.seen < self._nth:
            return False
        if self._times is not None and len(self.fired) >= self._times:
            return False
        self.fired.append(exchange)
        return True


class FaultProxy:
    """Use as `async with FaultProxy(server.url, ca_file=server.ca_file) as proxy`.

    Args:
        upstream_url: base URL of the server behind.
        ca_file: certificates that prove it; None = the system's, or plain http.
    """

    _under_way: ClassVar[set[int]] = set()

    def __init__(self, upstream_url: str, *, ca_file: Path | None = None) -> None:
        self.log: list[Exchange] = []
        """Every request in order of arrival."""
        self._upstream = upstream_url.rstrip("/")
        self._ca_file = ca_file
        self._rules: list[Rule] = []
        self._changed = asyncio.Event()
        self._reserved: socket.socket | None = None
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        trust = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=trust),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        )
        self._web = web.Server(
            self._serve, handler_cancellation=True, access_log=None, auto_decompress=False
        )
        self._reserved = _bound_socket(0)
        self._port = int(self._reserved.getsockname()[1])
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.down()
        if self._reserved is not None:
            self._reserved.close()
        await self._web.shutdown(_SHUTDOWN_S)
        await self._session.close()

    @property
    def url(self) -> str:
        """Base URL for the client, without a slash at the end."""
        return f"http://{_LOOPBACK}:{self._port}"

    def on(
        self, match: Match, do: Action, *, nth: int | None = None, times: int | None = None
    ) -> Rule:
        """Act on matching requests that arrive from now on.

        Args:
            match: which requests.
            do: what happens to them.
            nth: from the how manieth matching request on (1 = the next one);
                alone, it means that one only.
            times: act on so many and no more; None = on all.

        Returns:
            The rule, to look at its counts or to `remove` it.
        """
        if nth is not None and times is None:
            times = 1
        rule = Rule(match, do, nth=nth, times=times)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """End one rule, for requests to come."""
        self._rules.remove(rule)

    def requests(self, match: Match) -> list[Exchange]:
        """The requests so far that match, in order of arrival."""
        return [exchange for exchange in self.log if match.covers(exchange)]

    async def wait_for(
        self, match: Match, *, count: int = 1, answered: bool = False, timeout_s: float = DEADLINE_S
    ) -> list[Exchange]:
        """Wait until `count` matching requests have arrived; all of them.

        Args:
            match: which requests; asked again at every change, so `where` may
                look at the status or at the lines of a stream too.
            count: how many, from the start of the log.
            answered: count only those whose client has its answer's head.
            timeout_s: seconds.

        Raises:
            TimeoutError: it took too long; the text lists what did arrive.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    found = [e for e in self.requests(match) if not answered or e.status]
                    if len(found) >= count:
                        return found
                    await self._changed.wait()
        seen = "\n".join(map(str, self.log))
        raise TimeoutError(f"no {count} requests like {match} within {timeout_s} s; seen:\n{seen}")

    @classmethod
    def has_requests(cls) -> bool:
        """Whether a request to any proxy has no answer yet; streams count until they begin."""
        return bool(cls._under_way)

    async def down(self) -> None:
        """Refuse new connections, on a port that stays ours; cut the present ones."""
        if self._listener is None:
            return
        # Python loses the connections that have been accepted and not been attached yet.
        for each in self._listener.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        await asyncio.sleep(0)
        self._listener.close()
        self._listener = None
        # Bound but not listening: connections are refused, and the port stays reserved.
        self._reserved = _bound_socket(self._port)
        self.cut_connections()

    async def up(self) -> None:
        """Accept connections again, on the same port."""
        if self._reserved is None:
            return
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._web, sock=self._reserved, backlog=4096)
        self._reserved = None

    def cut_connections(self) -> None:
        """End every present connection of every client, whatever it waits for."""
        for connection in self._web.connections:
            _end(connection.transport, reset=False)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = await _receive(request)
        self.log.append(exchange)
        self._under_way.add(id(exchange))
        actions = [rule.action for rule in self._rules if rule.claims(exchange)]
        self._notify()
        try:
            return await self._relay(request, exchange, actions)
        except Dropped as end:
            _end(request.transport, reset=end.reset)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as trouble:
            exchange.trouble = repr(trouble)
            _end(request.transport, reset=False)
        finally:
            exchange.ended_s = asyncio.get_running_loop().time()
            self._under_way.discard(id(exchange))
            self._notify()
        # This is never read: the connection is closed.
        return web.Response()

    async def _relay(
        self, request: web.BaseRequest, exchange: Exchange, actions: Sequence[Action]
    ) -> web.StreamResponse:
        try:
            await _reach(Point.BEFORE, exchange, actions)
        except Replied as reply:
            response = await self._send(request, exchange, reply.answer)
        else:
            async with self._ask(request, exchange) as upstream:
                exchange.upstream_status = upstream.status
                if exchange.is_stream and upstream.status == 200:
                    await _reach(Point.TOOK_EFFECT, exchange, actions)
                    response = await self._stream(request, exchange, upstream, actions)
                else:
                    answer = await _whole(upstream)
                    await _reach(Point.TOOK_EFFECT, exchange, actions)
                    for action in actions:
                        answer = action.change(answer)
                    response = await self._send(request, exchange, answer)
        await _reach(Point.ANSWERED, exchange, actions)
        return response

    @contextlib.asynccontextmanager
    async def _ask(
        self, request: web.BaseRequest, exchange: Exchange
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _passed(request.headers, without=_NOT_SENT_ON)
        headers["Accept-Encoding"] = "identity"
        async with self._session.request(
            exchange.method,
            yarl.URL(self._upstream + request.raw_path, encoded=True),
            headers=headers,
            # A file, for aiohttp warns of large plain bytes.
            data=io.BytesIO(exchange.body) if exchange.body else None,
            allow_redirects=False,
        ) as response:
            try:
                yield response
            finally:
                # An unfinished answer: leaving it politely would take a round trip.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def _send(
        self, request: web.BaseRequest, exchange: Exchange, answer: Answer
    ) -> web.StreamResponse:
        headers = _passed(answer.headers, without=_OF_ONE_CONNECTION)
        response = web.StreamResponse(status=answer.status, headers=headers)
        if answer.status not in _WITHOUT_BODY:
            response.content_length = len(answer.body)
        await response.prepare(request)
        await response.write(answer.body)
        await response.write_eof()
        self._answered(exchange, answer.status)
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        upstream: aiohttp.ClientResponse,
        actions: Sequence[Action],
    ) -> web.StreamResponse:
        headers = _passed(upstream.headers, without=_OF_ONE_CONNECTION)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        self._answered(exchange, upstream.status)
        lines = _lines(upstream)
        for action in actions:
            lines = action.filter(lines)
        async for line in lines:
            await response.write(line)
            exchange.lines += line.count(b"\n")
            self._notify()
        await response.write_eof()
        return response

    def _answered(self, exchange: Exchange, status: int) -> None:
        exchange.status = status
        if exchange.is_stream:
            self._under_way.discard(id(exchange))
        self._notify()

    def _notify(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()


async def _reach(point: Point, exchange: Exchange, actions: Sequence[Action]) -> None:
    for action in actions:
        await action.reach(point, exchange)


async def _receive(request: web.BaseRequest) -> Exchange:
    started_s = asyncio.get_running_loop().time()
    return Exchange(
        method=request.method,
        path=request.path,
        query=dict(request.query),
        query_string=request.rel_url.raw_query_string,
        headers={key.lower(): text for key, text in request.headers.items()},
        # Not `request.read()`, which refuses large bodies.
        body=await request.content.read(),
        started_s=started_s,
    )


async def _whole(upstream: aiohttp.ClientResponse) -> Answer:
    body = await upstream.read()
    return Answer(status=upstream.status, headers=upstream.headers, body=body)


async def _lines(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a stream, each as soon as it is whole; an unfinished one last."""
    rest = b""
    async for chunk in upstream.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _passed(headers: Mapping[str, str], *, without: frozenset[str]) -> multidict.CIMultiDict[str]:
    """A copy (repeated headers too) without those of the named keys."""
    pairs = multidict.CIMultiDict(headers)
    for name in without:
        pairs.popall(name, None)
    return pairs


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((_LOOPBACK, port))
    bound.setblocking(False)
    return bound


def _end(transport: asyncio.Transport | None, *, reset: bool) -> None:
    """Close a connection: written data is still sent, unless it is a reset."""
    if transport is None:
        return
    if not reset:
        transport.close()
        return
    wire = transport.get_extra_info("socket")
    # A lingering time of zero makes close() send a reset.
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
