"""Who gets a place, and when."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving.turns import Turns, origin_of
from ccm.testing.clock import settle

pytestmark = pytest.mark.virtual_time


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


async def test_origins_take_turns() -> None:
    crowd = Crowd(1, each=1)
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await crowd.go(7)

    assert crowd.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_an_origin_has_some_of_the_places_at_most() -> None:
    crowd = Crowd(5, each=2)
    await crowd.come("a1", "a2", "a3", "b1")
    assert crowd.begun == ["a1", "a2", "b1"]

    await crowd.go()
    assert crowd.begun[3:] == ["a3"]
    await cancel_and_join(*crowd.tasks.values())
    assert (crowd.turns._taken, crowd.turns._waiting) == ({}, {})  # nothing of those who left


async def test_who_leaves_takes_no_place_with_it() -> None:
    """While it waits, while it has its place, and in the moment in which it gets one."""
    crowd = Crowd(1, each=1)
    await crowd.come("a1", "a2", "b1")
    await cancel_and_join(crowd.tasks["a2"])
    crowd.tasks["a1"].cancel()
    await asyncio.sleep(0)
    crowd.tasks["b1"].cancel()
    await settle()
    assert crowd.begun == ["a1"]

    await crowd.come("c1")
    assert crowd.begun == ["a1", "c1"]
    await cancel_and_join(*crowd.tasks.values())


async def test_many_leave_in_one_moment() -> None:
    """With who has the place those go who would be next: it is for whoever stays."""
    crowd = Crowd(1, each=1)
    await crowd.come("a1", "a2", "a3", "b1", "b2")
    leaving = [crowd.tasks[name] for name in ("a1", "a2", "a3", "b1")]
    for each in leaving:
        each.cancel()
    await asyncio.wait(leaving)

    assert all(each.cancelled() for each in leaving)
    assert crowd.begun == ["a1", "b2"]
    await cancel_and_join(*crowd.tasks.values())


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
