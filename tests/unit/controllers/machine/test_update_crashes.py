"""The daemon ends at any of its calls while a node is updated in place, and another one goes on: an
agent is never told to begin on a node that is not empty, nor while anybody judges its health."""

from __future__ import annotations

import asyncio

import pytest

from ccm.gardener.decoding import NAMES
from ccm.testing.clock import advance
from tests.conformance.machine.test_updating import Updates
from tests.unit.controllers.machine.test_crashes import Points

pytestmark = pytest.mark.virtual_time

MOST_POINTS = 999


async def story(world: Updates, *, reached: asyncio.Event | None = None) -> None:
    """A node is chosen, and updated once it is ready; until its end, or that of the daemon."""
    went = False
    for _ in range(300):
        await advance(0.2)
        if reached is not None and reached.is_set():
            return
        if went or world.step() != NAMES.update_ready:
            continue
        cordoned = world.node_object()["spec"].get("unschedulable")
        assert (world.phase(), world.pods(), cordoned) == ("InPlaceUpdating", [], True)
        world.label(went="successful")
        went = True


async def ended_at(fatal: int) -> bool:
    """One daemon ends at that point, another goes on; False: there is no such point."""
    world, points = Updates(), Points(fatal)
    world.label(candidate="true", selected="true")
    world.server.point = points
    async with world.running("machine"):
        await story(world, reached=points.reached)
    world.server.point = Points(fatal=10**9)
    async with world.running("machine"):
        await story(world)
    assert (world.phase(), world.step(), world.pods()) == ("Running", NAMES.update_succeeded, [])
    assert world.driver.calls.total() == 0
    return points.reached.is_set()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 5], ids=["all", "some"])
async def test_an_update_survives_the_end_of_its_daemon(step: int) -> None:
    tried = 0
    for fatal in range(1, MOST_POINTS, step):
        if not await ended_at(fatal):
            break
        tried += 1
    else:
        pytest.fail("there is no end to the points")

    print(f"{tried} points")
    assert tried >= 30 // step
