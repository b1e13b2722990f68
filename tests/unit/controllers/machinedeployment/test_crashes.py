"""The daemon ends at any of its calls in a roll, done or not, and another one goes on: the bounds
hold all the time, the roll ends, and no VM is lost."""

from __future__ import annotations

import asyncio

import pytest

from ccm.testing.clock import advance, settle
from tests.unit.controllers.machine.test_crashes import Fragile, Points
from tests.unit.controllers.machinedeployments import HOLD, Rolling, rolling, template

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 4000


async def rolled(world: Rolling) -> None:
    """A roll, from its wish to its end."""
    world.edit(template=template("large"))
    await advance(90)


async def prepared(replicas: int) -> tuple[Rolling, Fragile]:
    """A deployment whose machines run."""
    world, driver = Rolling(), Fragile()
    world.driver = driver
    driver.point = world.server.point = Points(fatal=10**9)
    world.boot_s = 1.0
    world.deployment(replicas=replicas, strategy=rolling(1, 1))
    async with world.at_work():
        await advance(30)
        assert world.working() == replicas
    return world, driver


async def ended_at(fatal: int, *, replicas: int) -> bool:
    """One daemon ends at that point of a roll, another goes on; False: there is no such point."""
    world, driver = await prepared(replicas)
    points = Points(fatal)
    driver.point = world.server.point = points
    world.watch_bounds()
    async with world.at_work():
        telling = asyncio.ensure_future(rolled(world))
        ended = asyncio.ensure_future(points.reached.wait())
        await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, ended):
            task.cancel()
        await asyncio.wait({telling, ended})
    driver.point = world.server.point = Points(fatal=10**9)
    async with world.at_work():
        await advance(240)
        await settle()
    assert (world.kinds(), world.working()) == ({"large": replicas}, replicas)
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert world.peak <= replicas + 1
    assert world.least >= replicas - 1
    stored = {one["spec"]["providerID"] for one in world.machines()}
    assert stored == set(world.driver.vms)
    assert len(world.sets()) == 2
    assert not any(HOLD in (one["metadata"].get("annotations") or {}) for one in world.nodes())
    return points.reached.is_set()


@pytest.mark.parametrize(
    ("replicas", "first", "step", "least"),
    [
        (2, 1, 37, 3),
        # In parts: together, more than a hundred points.
        *(pytest.param(3, first, 8, 13, marks=pytest.mark.soak) for first in range(1, 9)),
    ],
)
async def test_a_roll_survives_the_end_of_its_daemon(
    replicas: int, first: int, step: int, least: int
) -> None:
    tried = 0
    for fatal in range(first, MOST_POINTS, step):
        if not await ended_at(fatal, replicas=replicas):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried >= least
