"""A machine ends with its VM and its node, and with nobody else's."""

from __future__ import annotations

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machines import (
    NODES_PATH,
    World,
)

pytestmark = pytest.mark.virtual_time


async def test_a_machine_goes_with_its_vm_and_node() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        world.node(providerID="fake:///0")
        await advance(1)
        world.driver.faults["delete_machine"] = [
            errors.Unavailable("x"),
            errors.RetryAfter("x", seconds=3),
        ]
        world.server.drop(path)
        await advance(1)
        assert (world.phase(), world.node_object() != {}) == ("Terminating", True)
        assert "Initiate VM deletion" in world.operation()["description"]
        await advance(30)

    assert (world.get(), world.node_object(), world.driver.vms) == ({}, {}, {})
    assert (
        REGISTRY.get_sample_value(
            "mcm_machine_current_status_phase", {"name": "m0", "namespace": "default"}
        )
        is None
    )


async def test_the_node_of_another_vm_stays() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        world.node(providerID="fake:///other")
        await advance(1)
        world.server.drop(path)
        await advance(30)

    assert (world.get(), world.node_object() != {}) == ({}, True)


async def test_deleting_a_node_replaces_its_machine() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        world.machine()
        await advance(1)
        world.node(providerID="fake:///0")
        await advance(1)
        world.server.drop(f"{NODES_PATH}/m0")
        await advance(30)

    assert (world.get(), world.node_object(), world.driver.vms) == ({}, {}, {})


# --- others write too -------------------------------------------------------------------------


def going(world: World) -> str:
    """A machine with a VM is about to go; its path."""
    world.ready_class()
    metadata = {"labels": {"node": "m0"}, "finalizers": [names.FINALIZER]}
    path = world.machine(metadata=metadata, providerID="fake:///m0")
    world.driver.add(world.identity())
    world.server.drop(path)
    return path


async def test_a_text_that_another_controller_wrote_in_the_meantime() -> None:
    """Ours is not written over it; the next pass sees what there is, and goes on from our note."""
    world = World()
    path = going(world)
    world.driver.seconds = 5
    world.driver.faults["delete_machine"] = [errors.Unavailable("x"), errors.Internal("y")]
    async with world.running("machine", "machineclass"):
        await advance(7)
        text = "Deleting machine from cloud provider"
        world.server.patch(f"{path}/status", {"status": {"lastOperation": {"description": text}}})
        await advance(2)
        assert world.operation()["description"] == text
        await advance(30)

    assert (world.get(), world.driver.vms) == ({}, {})


async def test_a_machine_that_is_set_free_while_its_vm_is_deleted() -> None:
    world = World()
    path = going(world)
    world.driver.seconds = 5
    world.driver.faults["delete_machine"] = errors.Internal("x")
    async with world.running("machine", "machineclass"):
        await advance(2)
        world.server.patch(path, {"metadata": {"finalizers": None}})
        await advance(1200)

    assert (world.get(), world.driver.calls["delete_machine"]) == ({}, 1)


async def test_another_provider_is_asked_at_once() -> None:
    world = World()
    going(world)
    world.driver.faults["delete_machine"] = [errors.Internal("x")]
    async with world.running("machine", "machineclass"):
        await advance(10)
        assert world.get() != {}
        world.made["machine"].retry_now()
        await advance(1)

    assert world.get() == {}


async def test_a_node_that_is_gone_has_no_volumes() -> None:
    """It goes after its drain, which force has made short."""
    world = World()
    path = going(world)
    world.node()
    world.server.patch(path, {"metadata": {"labels": {"force-deletion": "true"}}})
    world.server.patch(
        f"{path}/status",
        {
            "status": {
                "currentStatus": {"phase": "Terminating"},
                "lastOperation": {
                    "description": "Force Drain successful. Delete Volume Attachments"
                },
            }
        },
    )
    world.server.drop(f"{NODES_PATH}/m0")
    async with world.running("machine", "machineclass"):
        await advance(2)

    assert (world.get(), world.driver.vms) == ({}, {})
