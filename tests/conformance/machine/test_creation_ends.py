"""What follows on a creation that has ended, well or not."""

from __future__ import annotations

import pytest

from ccm.cloud import errors
from ccm.cloud.machines import MachineInfo, Phase
from ccm.machines.deletion import DENIAL_S
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
        await advance(1 if fault is None else DENIAL_S + 2)

    assert (world.get(), world.driver.vms) == ({}, {})
    # A VM that was ordered and never seen is denied twice before the machine goes.
    assert world.driver.calls["delete_machine"] == (1 if fault is None else 2)


@pytest.mark.row("machine-create-18")
@pytest.mark.parametrize("kind", [errors.ResourceExhausted, errors.Aborted])
async def test_a_vm_that_never_comes_up(kind: type[errors.CloudError]) -> None:
    """The answer is final: who waited for the timeout would wait for nothing."""
    world = World()
    world.ready_class()
    lost = kind("no room for it").carrying(MachineInfo(phase=Phase.FAILED))
    world.driver.faults["initialize_machine"] = [errors.RetryAfter("boots", seconds=2.0), lost]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        assert world.phase() == ""
        await advance(2)
        ended = (world.phase(), world.operation()["errorCode"], world.operation()["state"])
        world.driver.vms.clear()
        await advance(1500)

    assert ended == ("Failed", kind.__name__, "Failed")
    assert "no room for it" in world.operation()["description"]
    assert (world.phase(), world.driver.calls["create_machine"]) == ("Failed", 1)


@pytest.mark.row("machine-create-18")
async def test_a_vm_that_never_came_up_and_is_not_stored_is_made_anew() -> None:
    """As long as no provider ID is written down the machine itself tries again."""
    world = World()
    world.ready_class()
    lost = errors.Aborted("the host died").carrying(MachineInfo(phase=Phase.FAILED))
    world.driver.faults["create_machine"] = [lost]
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        assert world.phase() == "CrashLoopBackOff"
        await advance(6)

    assert (world.phase(), world.driver.calls["create_machine"]) == ("Pending", 2)
