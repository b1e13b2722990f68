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


@dataclass(frozen=True, slots=True)
class _AtPoint(Action):
    """What happens at one point of a request."""

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
    """Wait until the event is set, or the client has gone."""

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
    """Send one line of ours before all others, at once."""

    line: bytes

    async def filter(self, lines: Lines) -> Lines:
        yield self.line + b"\n"
        async for line in lines:
            yield line


@dataclass(frozen=True, slots=True)
class _AfterLines(_LineAction):
    """What happens once so many lines have passed; does not wait for the one after them."""

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
