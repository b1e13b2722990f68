"""Slots of connections, and the memory for request bodies."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator

import pytest

from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving.acceptor import (
    LATE,
    ConnectionLimiter,
    ConnectionSlot,
    ConnectionStage,
    FairLimiter,
    origin_of,
)
from ccm.serving.http import BodyError, BodyLimits, BodyMemory
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


MOST = 9


class Port:
    """Connections by their names."""

    def __init__(self) -> None:
        self.connections = ConnectionLimiter("test", max_connections=MOST, max_silent=MOST)
        self.seats: dict[str, ConnectionSlot] = {}
        self.ended: list[str] = []

    def comes(
        self, *names: str, stage: ConnectionStage = ConnectionStage.SILENT, origin: str = ""
    ) -> None:
        """Open these connections from an origin, each up to a stage."""
        for name in names:
            seat = self.seats[name] = self.connections.admit(origin)
            seat.abort = lambda name=name: self.ended.append(name)  # type: ignore[misc]
            seat.advance(stage)


def names(letter: str, number: int) -> list[str]:
    return [f"{letter}{each}" for each in range(number)]


@pytest.mark.parametrize("stage", ConnectionStage)
def test_flood_from_one_address_evicts_only_its_own_connections(stage: ConnectionStage) -> None:
    port = Port()
    port.comes("honest", stage=stage, origin="a")
    port.comes(*names("c", 10 * MOST), stage=stage, origin="b")
    port.comes(*names("d", 10 * MOST), stage=stage, origin="c")

    assert "honest" not in port.ended
    assert len(port.connections) == MOST


def test_released_connection_takes_no_slot_and_is_not_evicted() -> None:
    port = Port()
    port.comes("a", "b")
    port.seats["a"].release()
    port.seats["a"].release()
    port.seats["a"].evict(LATE)
    port.seats["a"].advance(ConnectionStage.KNOWN)

    assert (len(port.connections), port.ended) == (1, [])


class Crowd:
    """Callers that keep their slots until they are released."""

    def __init__(self, places: int, each: int) -> None:
        self.turns = FairLimiter(places, per_origin=each)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Semaphore(0)

    async def come(self, *names: str) -> None:
        """Start these callers; the first letter is the origin."""
        for name in names:
            self.tasks[name] = spawn(self._stay(name), name=name)
            await settle()

    async def go(self, number: int = 1) -> None:
        """Release this many callers that have a slot."""
        for _ in range(number):
            self._over.release()
            await settle()

    async def _stay(self, name: str) -> None:
        async with self.turns.slot(name[0]):
            self.begun.append(name)
            await self._over.acquire()


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_origin_is_the_ipv4_address_or_the_ipv6_prefix(host: str, origin: str) -> None:
    assert origin_of(host) == origin


class Sender:
    """Request body that is sent in pieces on request."""

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


async def read(bodies: BodyMemory, sender: Sender, answered: asyncio.Event | None = None) -> bytes:
    """Read a body, and hold it until its request is answered."""
    with bodies.of(sender) as body:
        found = await body.read()
        if answered is not None:
            await answered.wait()
        return found


async def refused(task: asyncio.Task[bytes]) -> int:
    with pytest.raises(BodyError) as caught:
        await task
    return caught.value.status


SHARE = MOST // 3


SPOKEN = (ConnectionStage.UNFINISHED, ConnectionStage.ANONYMOUS, ConnectionStage.KNOWN)


@pytest.mark.parametrize("crowd", SPOKEN)
def test_flood_in_one_stage_does_not_take_the_share_of_others(crowd: ConnectionStage) -> None:
    port = Port()
    for stage in set(SPOKEN) - {crowd}:
        port.comes(*names(stage.name, SHARE), stage=stage)
    port.comes(*names("crowd", 10 * MOST), stage=crowd)

    assert {name[:5] for name in port.ended} == {"crowd"}
    assert len(port.connections.by_stage[crowd]) == SHARE


def test_connection_without_a_request_is_evicted_first() -> None:
    port = Port()
    port.comes(*names("a", SHARE + 1), stage=ConnectionStage.ANONYMOUS)
    port.comes(*names("u", SHARE + 2), stage=ConnectionStage.UNFINISHED)
    port.comes("k", stage=ConnectionStage.KNOWN)

    assert port.ended == ["u0"]


async def test_fair_limiter_alternates_between_origins() -> None:
    crowd = Crowd(1, each=1)
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await crowd.go(7)

    assert crowd.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_slow_body_times_out() -> None:
    """The time limit starts with the read, and further data does not extend it."""
    bodies, sender = BodyMemory(BodyLimits(timeout_s=2.0)), Sender()
    with bodies.of(sender) as body:
        await asyncio.sleep(5.0)
        reading = spawn(body.read(), name="read")
        for _ in range(3):
            await sender.sends(b"a")
            await asyncio.sleep(0.9)

        assert reading.done()
        assert await refused(reading) == 408


async def test_body_is_refused_as_soon_as_it_exceeds_the_limit() -> None:
    bodies, sender = BodyMemory(BodyLimits(max_body=2)), Sender()
    await sender.sends(b"ab", b"c")

    assert await refused(spawn(read(bodies, sender), name="read")) == 413
    assert bodies.size == 0


async def test_largest_unfinished_body_is_refused_when_memory_is_full() -> None:
    bodies = BodyMemory(BodyLimits(max_body=9, max_total=10))
    large, larger, small = Sender(), Sender(), Sender()
    readers = [spawn(read(bodies, each), name="read") for each in (large, larger, small)]
    await large.sends(b"1234")
    await larger.sends(b"12345")
    await small.sends(b"12")

    assert bodies.size == 6
    assert await refused(readers[1]) == 503
    await large.sends(b"")
    await small.sends(b"")
    assert [await readers[0], await readers[2]] == [b"1234", b"12"]


@pytest.mark.parametrize("rest", [(b"4567",), (b"4567", b"")], ids=["goes on", "is whole"])
async def test_complete_body_is_kept_until_its_request_is_answered(rest: tuple[bytes, ...]) -> None:
    bodies, answered = BodyMemory(BodyLimits(max_body=9, max_total=10)), asyncio.Event()
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
    assert bodies.size == 0


def test_low_open_file_limit_allows_few_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 32))
    port = Port()
    port.comes(*names("s", 5))

    assert port.ended == ["s0"]


def test_recently_active_connection_is_not_evicted() -> None:
    port = Port()
    port.comes(*names("a", MOST), stage=ConnectionStage.ANONYMOUS)
    port.seats["a0"].advance(ConnectionStage.ANONYMOUS)
    port.comes("new", stage=ConnectionStage.UNFINISHED)

    assert port.ended == ["a1"]


async def test_fair_limiter_limits_the_slots_of_an_origin() -> None:
    crowd = Crowd(5, each=2)
    await crowd.come("a1", "a2", "a3", "b1")
    assert crowd.begun == ["a1", "a2", "b1"]

    await crowd.go()
    assert crowd.begun[3:] == ["a3"]
    await cancel_and_join(*crowd.tasks.values())
    assert (crowd.turns._taken, crowd.turns._waiting) == (
        {},
        {},
    )  # nothing is kept of cancelled callers


async def test_connection_deadline_ends_with_the_first_request() -> None:
    loop, port = asyncio.get_running_loop(), Port()
    port.comes("a", "b")
    for seat in port.seats.values():
        seat.deadline = loop.call_later(60.0, seat.evict, LATE)
    timers = [seat.deadline for seat in port.seats.values()]

    port.seats["a"].advance(ConnectionStage.UNFINISHED)
    assert port.seats["a"].deadline is not None
    port.seats["a"].advance(ConnectionStage.ANONYMOUS)
    port.seats["b"].release()

    assert [timer.cancelled() for timer in timers if timer] == [True, True]


def test_unused_slots_may_be_used_by_any_stage() -> None:
    port = Port()
    port.comes(*names("a", MOST), stage=ConnectionStage.ANONYMOUS)

    assert port.ended == []
