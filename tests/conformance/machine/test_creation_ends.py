"""What follows on a creation that has ended, well or not."""

from __future__ import annotations

import pytest

from ccm.cloud import errors
from ccm.testing.clock import advance
from tests.unit.controllers.machines import World

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("machine-create-17")
@pytest.mark.parametrize("fault", [None, errors.Internal("x"), errors.ResourceExhausted("x")])
async def test_a_deletion_after_a_creation(fault: errors.CloudError | None) -> None:
    world = World()
    world.ready_class()
    world.driver.faults["create_machine"] = [fault]
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        assert len(world.driver.vms) == (fault is None)
        world.server.drop(path)
        await advance(1)

    assert (world.get(), world.driver.vms) == ({}, {})
