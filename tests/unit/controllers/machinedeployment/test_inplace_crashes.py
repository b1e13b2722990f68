"""The daemon ends at any of its calls while a deployment is updated in place, done or not, and
another one goes on: no machine goes or comes, the bounds hold, and no agent is told to begin on a
node that is not empty."""

from __future__ import annotations

import asyncio

import pytest

from ccm.gardener.decoding import NAMES
from ccm.testing.clock import advance
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.conformance.machine.test_updating import CHOSEN, Fleet, reason
from tests.unit.controllers.drains import PODS
from tests.unit.controllers.machine.test_crashes import Fragile, Points
from tests.unit.controllers.machinedeployments import template

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 4000
AWAY_S = 300.0
"""More than all updates take."""


async def prepared(replicas: int) -> Fleet:
    """A deployment whose machines run, with a Pod each."""
    world, driver = Fleet(), Fragile()
    world.driver = driver
    driver.point = world.server.point = Points(fatal=10**9)
    world.boot_s, world.update_s = 1.0, 5.0
    world.deployment(replicas=replicas, strategy=IN_PLACE)
    async with world.at_work():
        await advance(30)
        assert world.working() == replicas
    for name in world.here():
        spec = {"nodeName": name, "terminationGracePeriodSeconds": 1, "containers": []}
        world.server.put(PODS, {"metadata": {"name": f"p-{name}"}, "spec": spec})
    return world


async def ended_at(fatal: int, *, replicas: int) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    world, points = await prepared(replicas), Points(fatal)
    first, vms = world.here(), set(world.driver.vms)
    world.driver.point = world.server.point = points  # type: ignore[attr-defined]
    world.watch_bounds()
    async with world.agents():
        world.edit(template=template("large"))
        async with world.at_work():
            telling = asyncio.ensure_future(advance(AWAY_S))
            ended = asyncio.ensure_future(points.reached.wait())
            await asyncio.wait({telling, ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in (telling, ended):
                task.cancel()
            await asyncio.wait({telling, ended})
        world.driver.point = world.server.point = Points(fatal=10**9)  # type: ignore[attr-defined]
        async with world.at_work():
            await advance(AWAY_S)
    assert (world.here(), set(world.driver.vms)) == (first, vms)
    assert (world.kinds(), world.working()) == ({"large": replicas}, replicas)
    assert world.sizes() == {"large": replicas}
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert (world.peak, world.least) == (replicas, replicas - 1)
    assert world.seen == [("InPlaceUpdating", True, [])] * replicas
    for one in world.nodes():
        assert not CHOSEN.keys() & one["metadata"]["labels"].keys()
        assert (reason(one), one["spec"].get("unschedulable")) == (NAMES.update_succeeded, None)
    return points.reached.is_set()


@pytest.mark.parametrize(
    ("replicas", "first", "step", "least"),
    [
        (2, 1, 61, 2),
        # In parts: together, more than a hundred points.
        *(pytest.param(3, first, 4, 25, marks=pytest.mark.soak) for first in range(1, 5)),
    ],
)
async def test_updates_in_place_survive_the_end_of_their_daemon(
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
