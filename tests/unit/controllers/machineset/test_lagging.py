"""Sets before a cache that lags, and an API server whose answers get lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ccm.kube.errors import Unreachable
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, Sets
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"


class Lagging(MemoryServer):
    """Its watches of Machines tell nothing while `shows` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.shows = asyncio.Event()
        self.shows.set()

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **rest: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with super().stream(path, query=query, **rest) as lines:
            yield self._held(lines) if path == MACHINES else lines

    async def _held(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            await self.shows.wait()
            yield line


def lagging() -> tuple[Sets, Lagging]:
    """A world whose cache of Machines may lag."""
    world = Sets()
    world.server = server = Lagging()
    world.define()
    return world, server


async def poke(world: Sets, times: int = 5) -> None:
    """Somebody changes the set, so that it is looked at."""
    for number in range(times):
        world.change(WEB, metadata={"annotations": {"poke": str(number)}})
        await advance(1)


@pytest.mark.row("machineset-replicas-14")
async def test_a_cache_that_lags_makes_no_machine_twice() -> None:
    world, server = lagging()
    world.set(replicas=3)
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.change(WEB, spec={"replicas": 5})
        await advance(1)
        await poke(world)
        assert len(world.here()) == 5

        await advance(400)  # what the cache should have shown long since was looked up
        await poke(world)
        assert len(world.here()) == 5
        assert server.reads("machines") == 2

        server.shows.set()
        await advance(5)

    assert server.requests["POST", MACHINES] == 5
    assert world.set_status()["replicas"] == 5


@pytest.mark.row("machineset-replicas-14")
async def test_a_cache_that_lags_takes_no_further_victim() -> None:
    world, server = lagging()
    world.set(replicas=4)
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.change(WEB, spec={"replicas": 3})
        await advance(1)
        for name in world.here()[:2]:
            world.becomes(name, "Running", state="Successful")
        await poke(world)
        await advance(400)
        await poke(world)
        assert len(world.here()) == 3
        server.shows.set()
        await advance(5)

    assert len(world.here()) == 3


@pytest.mark.row("machineset-replicas-15")
async def test_a_creation_whose_answer_is_lost_is_found_again() -> None:
    """The cache does not show it, so the next try has to run into it."""
    world, server = lagging()
    world.set(replicas=0)
    original, lost = server.answer, list[str]()

    def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
        found = original(method, path, body, *rest)
        if method == "POST" and not lost:
            lost.append(path)
            raise Unreachable("cut", kind="timeout")
        return found

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server.answer = answer  # type: ignore[assignment, method-assign]
        world.change(WEB, spec={"replicas": 1})
        await advance(60)
        assert len(world.here()) == 1
        assert server.requests["POST", MACHINES] == 2

        server.shows.set()
        await advance(5)

    assert len(world.here()) == 1
    assert world.set_status()["replicas"] == 1
