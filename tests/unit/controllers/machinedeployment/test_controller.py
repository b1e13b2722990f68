"""Deployments with all controllers at work: what a user asks for happens, within the bounds."""

from __future__ import annotations

import pytest

from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import Rolling, rolling, template

pytestmark = pytest.mark.virtual_time


async def test_a_roll() -> None:
    world = Rolling()
    world.deployment(replicas=5, strategy=rolling(2, 1))
    async with world.at_work():
        await advance(60)
        assert (world.working(), world.said()) == (5, ("True", "NewMachineSetAvailable"))
        world.watch_bounds()
        world.edit(template=template("large"))
        await advance(300)

    assert (world.kinds(), world.sizes()) == ({"large": 5}, {"large": 5})
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert world.peak <= 7
    assert world.least >= 4
