"""The places of connections, and what their bodies may cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ccm.base.tasks import spawn
from ccm.serving.acceptor import LATE, Connections, Seat, Stage, Turns, origin_of
from ccm.serving.http import BadBody, Bodies
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


MOST = 9


class Port:
    """Connections by their names."""

    def __init__(self) -> None:
        self.connections = Connections("test", most=MOST, most_silent=MOST)
        self.seats: dict[str, Seat] = {}
        self.ended: list[str] = []

    def comes(self, *names: str, stage: Stage = Stage.SILENT, origin: str = "") -> None:
        """These come from there, one after the other, and get so far."""
        for name in names:
            seat = self.seats[name] = self.connections.admit(origin)
            seat.hang_up = lambda name=name: self.ended.append(name)  # type: ignore[misc]
            seat.reach(stage)


def names(letter: str, number: int) -> list[str]:
    return [f"{letter}{each}" for each in range(number)]


@pytest.mark.parametrize("stage", Stage)
def test_a_crowd_from_one_address_ends_its_own(stage: Stage) -> None:
    port = Port()
    port.comes("honest", stage=stage, origin="a")
    port.comes(*names("c", 10 * MOST), stage=stage, origin="b")
    port.comes(*names("d", 10 * MOST), stage=stage, origin="c")

    assert "honest" not in port.ended
    assert len(port.connections) == MOST


def test_what_is_over_takes_no_place_and_is_not_ended_again() -> None:
    port = Port()
    port.comes("a", "b")
    port.seats["a"].leave()
    port.seats["a"].leave()
    port.seats["a"].refuse(LATE)
    port.seats["a"].reach(Stage.KNOWN)

    assert (len(port.connections), port.ended) == (1, [])


class Crowd:
    """Callers that stay until they are told to go."""

    def __init__(self, places: int, each: int) -> None:
        self.turns = Turns(places, each=each)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Semaphore(0)

    async def come(self, *names: str) -> None:
        """These come; the first letter says where from."""
        for name in names:
            self.tasks[name] = spawn(self._stay(name), name=name)
            await settle()

    async def go(self, number: int = 1) -> None:
        """So many of those that have a place leave it."""
        for _ in range(number):
            self._over.release()
            await settle()

    async def _stay(self, name: str) -> None:
        async with self.turns.place(name[0]):
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
def test_where_a_caller_counts_as_coming_from(host: str, origin: str) -> None:
    assert origin_of(host) == origin


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
