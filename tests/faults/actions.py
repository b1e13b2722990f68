"""What a rule does to a request.

A request passes three points: BEFORE it is sent on, when it TOOK_EFFECT (the
server has answered, nobody has seen it), and when the client has its ANSWERED.
An action may act at one of them, change the answer as a whole, or change the
lines of a stream. Several may work on one request, in the order of the rules.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.faults.exchange import Exchange

Lines = AsyncIterator[bytes]


class Point(enum.Enum):
    """A moment in the life of a request."""

    BEFORE = "before it is sent on"
    TOOK_EFFECT = "the server has answered"
    ANSWERED = "the client has the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer, not a stream; `keep` bytes are sent, then the wire is cut."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep: int | None = None


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
    """Does nothing; each fault overrides what it needs."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Action):
    """Close the connection: a request never sent on, or its answer lost."""

    at: Point = Point.BEFORE

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is self.at:
            raise Dropped(reset=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Action):
    """As `Cut`, with a TCP reset."""

    at: Point = Point.BEFORE

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is self.at:
            raise Dropped(reset=True)


@dataclass(frozen=True, slots=True)
class Delay(Action):
    """Wait so many seconds."""

    seconds: float
    at: Point = field(default=Point.BEFORE, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is self.at:
            await asyncio.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Hold(Action):
    """Wait until the event is set, or the client has gone."""

    release: asyncio.Event
    at: Point = field(default=Point.BEFORE, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is self.at:
            await self.release.wait()


@dataclass(frozen=True, slots=True)
class Call(Action):
    """Call back (plain or async function), and go on when it has returned."""

    function: Callable[[Exchange], Awaitable[None] | None]
    at: Point = field(default=Point.BEFORE, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is not self.at:
            return
        pending = self.function(exchange)
        if pending is not None:
            await pending


@dataclass(frozen=True, slots=True)
class Fell(Action):
    """Call `strike`, which ends the client at once, and let nothing go on after that.

    Before: the server never sees the request. When it took effect: the answer is lost.
    """

    strike: Callable[[], None]
    at: Point = field(default=Point.BEFORE, kw_only=True)

    async def reach(self, point: Point, exchange: Exchange) -> None:
        if point is not self.at:
            return
        self.strike()
        if point is not Point.ANSWERED:
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
            answer = Answer(status=self.status, headers=self.headers, body=self.body)
        else:
            headers = {"Content-Type": "application/json", **self.headers}
            body = json.dumps(self.body).encode()
            answer = Answer(status=self.status, headers=headers, body=body)
        raise Replied(answer)


@dataclass(frozen=True, slots=True)
class RewriteBody(Action):
    """Send another body instead of the server's."""

    function: Callable[[bytes], bytes]

    def applies_to(self, exchange: Exchange) -> bool:
        return not exchange.is_stream

    def change(self, answer: Answer) -> Answer:
        return dataclasses.replace(answer, body=self.function(answer.body))


@dataclass(frozen=True, slots=True)
class Truncate(Action):
    """Announce the whole body, send its first bytes, cut the connection."""

    size: int

    def applies_to(self, exchange: Exchange) -> bool:
        return not exchange.is_stream

    def change(self, answer: Answer) -> Answer:
        return dataclasses.replace(answer, keep=self.size)


@dataclass(frozen=True, slots=True)
class _LineAction(Action):
    """What can happen to streams only."""

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
    """Send one line of ours once `after` lines have passed, as soon as that is so."""

    line: bytes
    after: int = 0

    async def filter(self, lines: Lines) -> Lines:
        passed = 0
        if self.after == 0:
            yield self.line.rstrip(b"\n") + b"\n"
        async for line in lines:
            yield line
            passed += 1
            if passed == self.after:
                yield self.line.rstrip(b"\n") + b"\n"


@dataclass(frozen=True, slots=True)
class CloseAfterLines(_LineAction):
    """End the stream properly after so many lines, as a server's timeout does."""

    count: int

    async def filter(self, lines: Lines) -> Lines:
        async for line in _first(self.count, lines):
            yield line


@dataclass(frozen=True, slots=True)
class CutAfterLines(_LineAction):
    """Close the connection in the middle of the stream after so many lines."""

    count: int

    async def filter(self, lines: Lines) -> Lines:
        async for line in _first(self.count, lines):
            yield line
        raise Dropped(reset=False)


@dataclass(frozen=True, slots=True)
class ResetAfterLines(_LineAction):
    """Reset the connection after so many lines; the last may not arrive."""

    count: int

    async def filter(self, lines: Lines) -> Lines:
        async for line in _first(self.count, lines):
            yield line
        raise Dropped(reset=True)


@dataclass(frozen=True, slots=True)
class SilentAfterLines(_LineAction):
    """Send nothing more after so many lines, and keep the connection open."""

    count: int

    async def filter(self, lines: Lines) -> Lines:
        async for line in _first(self.count, lines):
            yield line
        await asyncio.Event().wait()


async def _first(count: int, lines: Lines) -> Lines:
    """The first lines; does not wait for the one after them."""
    if count == 0:
        return
    passed = 0
    async for line in lines:
        yield line
        passed += 1
        if passed == count:
            return
