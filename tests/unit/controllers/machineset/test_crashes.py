"""The daemon ends at any of its calls, done or not, and another one goes on: no machine is made
twice, none is lost, and none goes for another one."""

from __future__ import annotations

import asyncio

import pytest

from ccm.testing.clock import advance
from tests.unit.controllers.machine.test_crashes import MOST_POINTS, Points
from tests.unit.controllers.machinesets import SETS, Sets

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"


class Counted(Sets):
    """Knows every machine that ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: set[str] = set()

    def count(self) -> None:
        """See what there is."""
        self.ever |= {one["metadata"]["uid"] for one in self.machines()}


async def story(world: Counted, *, few: int, many: int, goes: bool) -> None:
    """A set grows and shrinks; in one of the stories it goes."""
    await advance(5)
    world.count()
    if world.set_status().get("replicas") == many or world.set_object()["spec"]["replicas"] == few:
        world.all_become("Running")
        world.change(WEB, spec={"replicas": few})
        await advance(5)
        world.count()
        if goes and world.set_object():
            world.server.drop(WEB)
            await advance(5)


async def ended_at(fatal: int, *, few: int, many: int, goes: bool) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    points, world = Points(fatal), Counted()
    world.server.point = points
    world.set(replicas=many)
    async with world.running("machineset"):
        telling = asyncio.ensure_future(story(world, few=few, many=many, goes=goes))
        ended = asyncio.ensure_future(points.reached.wait())
        await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, ended):
            task.cancel()
        await asyncio.wait({telling, ended})
    world.count()
    world.server.point = Points(fatal=10**9)
    async with world.running("machineset"):
        await advance(20)
        if world.set_object():
            await story(world, few=few, many=many, goes=goes)
        await advance(20)
        world.count()
    assert len(world.ever) == many
    assert len(world.machines()) == (0 if goes else few)
    assert bool(world.set_object()) is not goes
    return points.reached.is_set()


@pytest.mark.parametrize("goes", [False, True], ids=["up-and-down", "and-gone"])
@pytest.mark.parametrize(
    ("few", "many", "step"),
    [pytest.param(3, 9, 1, marks=pytest.mark.soak), (1, 4, 2)],
    ids=["all", "some"],
)
async def test_no_machine_is_lost_nor_made_twice(
    goes: bool, few: int, many: int, step: int
) -> None:
    tried = 0
    for fatal in range(1, MOST_POINTS, step):
        if not await ended_at(fatal, few=few, many=many, goes=goes):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried * step >= 20
