"""A drain ends at any of its requests, carried out or not, and another leader goes on: no Pod is
evicted twice, none is left, and no budget is broken."""

from __future__ import annotations

import asyncio

import pytest

from ccm.machines.drain import DrainState
from ccm.testing.clock import advance
from tests.unit.controllers.drains import PODS, Drains

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 999
NODES = ("m0", "m1", "m2")
LEAST = 5
"""Pods that the budget wants to be there."""


class Story(Drains):
    """Three nodes go, under a budget; what is evicted is made anew on another one."""

    def __init__(self) -> None:
        super().__init__(reattach_timeout_s=5.0)
        self.fatal = MOST_POINTS
        self.points = 0
        self.least = MOST_POINTS
        self.moves = 0.5
        self.server.point = self.point
        for name in ("m1", "m2", "other"):
            self.node(name)
        self.volume("a")
        self.pod("m0-v", claims=("a",), owner="StatefulSet", grace_s=2)
        for name in NODES:
            for number in range(2):
                self.pod(f"{name}-{number}", node=name, grace_s=2)
        self.budget(minAvailable=LEAST)

    async def point(self) -> None:
        """Before each request, and before its answer; only those of drains count."""
        await asyncio.sleep(0)
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("drain-"):
            self.points += 1
            if self.points >= self.fatal:
                await asyncio.get_running_loop().create_future()

    def ready(self) -> int:
        """Pods that are ready and stay."""
        return sum(
            bool(one["status"].get("conditions")) and "deletionTimestamp" not in one["metadata"]
            for one in self.server.list(PODS)
        )

    async def goes_on(self, seconds: float) -> None:
        """For so long, or until the drain came to its point."""
        for _ in range(int(seconds * 5)):
            await advance(0.2)
            self.least = min(self.least, self.ready())
            for one in self.server.list(PODS):
                name = one["metadata"]["name"]
                again = f"{name}-again"
                if "deletionTimestamp" in one["metadata"] and again not in self.pods():
                    self.pod(again, node="other", grace_s=2)
            if self.points >= self.fatal:
                return

    async def told(self, *, fatal: int) -> bool:
        """One leader ends at that point, another goes on; False: there is no such point."""
        async with self.draining():
            await advance(1)
            self.fatal = fatal
            for name in NODES:
                self.start(name)
            await self.goes_on(40)
        reached, self.fatal = self.points >= fatal, 10**9
        async with self.draining():
            await advance(1)
            for name in NODES:
                self.start(name)
            await self.goes_on(60)
            assert {self.state(name) for name in NODES} == {DrainState.DONE}
        return reached


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 7], ids=["all", "some"])
async def test_no_pod_is_evicted_twice_nor_left(step: int) -> None:
    tried = 0
    for fatal in range(1, MOST_POINTS, step):
        world = Story()
        pods = world.pods()
        if not await world.told(fatal=fatal):
            break
        tried += 1
        assert world.pods() == [f"{name}-again" for name in pods]
        assert world.server.accepted == dict.fromkeys(pods, 1)
        assert world.least >= LEAST
    assert tried * step > 20
    print(f"{tried} points")
