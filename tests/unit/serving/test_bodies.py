"""Bodies: one within its size and time, all within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ccm.base.tasks import spawn
from ccm.serving.http import BadBody, Bodies, Limits

pytestmark = pytest.mark.virtual_time


class Sender:
    """Sends a body in pieces, when it is told to."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def sends(self, *pieces: bytes) -> None:
        """Send; an empty piece is the end."""
        for piece in pieces:
            self._pieces.put_nowait(piece)
        await asyncio.sleep(0.01)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self._pieces.get():
            yield piece


async def read(bodies: Bodies, sender: Sender, answered: asyncio.Event | None = None) -> bytes:
    """Read a body, and hold it until its request is answered."""
    with bodies.of(sender) as body:
        found = await body.read()
        if answered is not None:
            await answered.wait()
        return found


async def refused(task: asyncio.Task[bytes]) -> int:
    with pytest.raises(BadBody) as caught:
        await task
    return caught.value.status


async def test_a_body_is_whole() -> None:
    bodies, sender = Bodies(Limits()), Sender()
    await sender.sends(b"a", b"bc", b"")

    assert await read(bodies, sender) == b"abc"
    assert bodies.held == 0


async def test_who_is_slow_is_told_in_time() -> None:
    """However it goes on; the time begins when somebody wants to read."""
    bodies, sender = Bodies(Limits(patience_s=2.0)), Sender()
    with bodies.of(sender) as body:
        await asyncio.sleep(5.0)
        reading = spawn(body.read(), name="read")
        for _ in range(3):
            await sender.sends(b"a")
            await asyncio.sleep(0.9)

        assert reading.done()
        assert await refused(reading) == 408


async def test_a_larger_body_than_allowed_is_refused_when_it_is() -> None:
    bodies, sender = Bodies(Limits(each=2)), Sender()
    await sender.sends(b"ab", b"c")

    assert await refused(spawn(read(bodies, sender), name="read")) == 413
    assert bodies.held == 0


async def test_where_there_is_no_room_the_largest_unfinished_one_goes() -> None:
    bodies = Bodies(Limits(each=9, together=10))
    large, larger, small = Sender(), Sender(), Sender()
    readers = [spawn(read(bodies, each), name="read") for each in (large, larger, small)]
    await large.sends(b"1234")
    await larger.sends(b"12345")
    await small.sends(b"12")

    assert bodies.held == 6
    assert await refused(readers[1]) == 503
    await large.sends(b"")
    await small.sends(b"")
    assert [await readers[0], await readers[2]] == [b"1234", b"12"]


async def test_one_whose_time_is_up_in_this_turn_is_given_up_without_harm() -> None:
    bodies, sender, harm = Bodies(Limits(patience_s=2.0)), Sender(), list[RuntimeError]()
    reading = spawn(read(bodies, sender), name="read")
    await sender.sends(b"123456")

    def give_up() -> None:
        (body,) = bodies.reading
        try:
            body.give_up()
        except RuntimeError as error:
            harm.append(error)

    # Later than its own timer, and earlier than it notices.
    body = next(iter(bodies.reading))
    when = body._timeout.when()
    assert when is not None
    asyncio.get_running_loop().call_at(when, give_up)

    assert await refused(reading) == 503
    assert harm == []


@pytest.mark.parametrize("rest", [(b"4567",), (b"4567", b"")], ids=["goes on", "is whole"])
async def test_a_whole_one_stays_until_it_is_answered(rest: tuple[bytes, ...]) -> None:
    bodies, answered = Bodies(Limits(each=9, together=10)), asyncio.Event()
    first, second = Sender(), Sender()
    readers = [
        spawn(read(bodies, first, answered), name="read"),
        spawn(read(bodies, second), name="read"),
    ]
    await first.sends(b"1234567", b"")
    await second.sends(b"123", *rest)

    assert await refused(readers[1]) == 503
    answered.set()
    assert await readers[0] == b"1234567"
    assert bodies.held == 0
