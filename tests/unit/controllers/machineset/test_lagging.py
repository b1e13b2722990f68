"""Sets before a cache that lags, and an API server whose answers get lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ccm.gardener import names
from ccm.kube.errors import ServerError, Unreachable
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, Sets, moment
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


async def test_what_came_and_went_unseen_is_made_again() -> None:
    world, server = lagging()
    world.set(replicas=0)
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.change(WEB, spec={"replicas": 1})
        await advance(1)
        gone = world.here()[0]
        world.server.drop(f"{MACHINES}/{gone}")
        await advance(200)
        assert world.here() == []
        await advance(400)
        assert len(world.here()) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        Unreachable("cut", kind="timeout"),
        ServerError(status=504, reason="Timeout", message="too late"),
    ],
    ids=["no-answer", "timeout"],
)
@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
async def test_a_deletion_whose_outcome_nobody_knows(trouble: Exception, is_done: bool) -> None:
    """However it went, one machine goes, and no second one for it."""
    world, server = lagging()
    world.set(replicas=3)
    lost = list[str]()

    def refuse(method: str, path: str) -> Exception | None:
        if method != "DELETE" or lost:
            return None
        lost.append(path)
        if is_done:
            server.refuse = lambda _method, _path: None
            world.server.drop(path)
        return trouble

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 2})
        await advance(20)
        await poke(world)
        server.shows.set()
        await advance(120)

    assert lost
    assert len(world.here()) == 2
    assert server.requests["POST", MACHINES] == 3


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


async def test_what_the_cache_knew_before_we_asked_is_not_waited_for() -> None:
    """Somebody deletes the victim, and makes one of its name, while we write to the other one."""
    world = Sets()
    owner = world.set(replicas=2)
    world.member("m0", owner=owner)
    world.member("m1", owner=owner)

    async def meanwhile() -> None:
        if world.server.requests["PATCH", f"{MACHINES}/m1"]:
            world.server.point = nothing
            world.server.drop(f"{MACHINES}/m0")
            world.member("m0", owner=owner)
            await asyncio.sleep(0.05)

    async def nothing() -> None:
        pass

    async with world.running("machineset"):
        await advance(1)
        world.server.point = meanwhile
        template = {"spec": {"drainTimeout": "9m"}}
        world.change(WEB, spec={"replicas": 1, "template": template})
        await advance(30)

    assert len(world.here()) == 1


async def test_a_machine_that_recovers_is_kept() -> None:
    """It failed and was kept for a while; it works again, which the cache does not show."""
    world, server = lagging()
    owner = world.set(replicas=1)
    world.member("m0", owner=owner, phase="Failed", status={"preserveExpiryTime": moment(10)})
    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        world.becomes("m0", "Running", state="Successful")
        await advance(60)
        assert server.requests["DELETE", f"{MACHINES}/m0"] > 5
        assert world.here() == ["m0"]

        server.shows.set()
        await advance(5)

    assert world.here() == ["m0"]
    assert world.conditions() == {}


async def test_while_a_deletion_is_in_doubt_no_other_machine_goes() -> None:
    """Time alone makes another one the first to go."""
    world, server = lagging()
    owner = world.set(replicas=2)
    until = {"preserveExpiryTime": moment(10)}
    cheap = {names.ANNOTATION_PRIORITY: "0"}
    world.member("m0", owner=owner)
    world.member("m1", owner=owner, status=until, annotations=cheap)

    def refuse(method: str, path: str) -> Exception | None:
        if method != "DELETE":
            return None
        if path.endswith("m0") and world.get("m0"):
            world.server.drop(path)
        return Unreachable("cut", kind="timeout")

    async with world.running("machineset"):
        await advance(1)
        server.shows.clear()
        server.refuse = refuse
        world.change(WEB, spec={"replicas": 1})
        await advance(20)
        server.refuse = lambda _method, _path: None
        await poke(world, times=60)

        assert world.here() == ["m1"]
