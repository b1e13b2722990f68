"""A machine ends with its VM and its node, and with nobody else's."""

from __future__ import annotations

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
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


async def test_the_node_goes_whichever_form_its_provider_id_has() -> None:
    world = World()
    world.ready_class()
    async with world.running("machine", "machineclass"):
        path = world.machine()
        await advance(1)
        world.node(providerID="fake://in-some-region/0")
        await advance(1)
        world.server.drop(path)
        await advance(30)

    assert (world.get(), world.node_object()) == ({}, {})


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
