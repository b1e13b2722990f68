"""A machine ends with its VM and its node, and with nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.controllers.machine.remove import Remover, Target
from ccm.controllers.machine.tokens import Tokens
from ccm.gardener import names
from ccm.gardener.codec import MACHINES
from ccm.kube.resources import ATTACHMENTS, NODE_VOLUMES, NODES, SECRETS
from ccm.machines import deletion
from ccm.machines.deletion import Stage
from ccm.runtime.controller import until_synced
from ccm.runtime.workers import Turn
from ccm.runtime.writer import Writer
from ccm.testing.clock import advance
from tests.unit.controllers.machines import NODES_PATH, World

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
    """What is the matter is said over it."""
    world = World()
    path = going(world)
    world.driver.seconds = 5
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    async with world.running("machine", "machineclass"):
        await advance(8)
        text = "Deleting machine from cloud provider"
        world.server.patch(f"{path}/status", {"status": {"lastOperation": {"description": text}}})
        await advance(3)
        assert "VM deletion failed" in world.operation()["description"]
        await advance(10)

    assert (world.get(), world.driver.vms) == ({}, {})


async def test_a_machine_that_is_set_free_while_its_vm_is_deleted() -> None:
    world = World()
    path = going(world)
    world.driver.seconds = 5
    world.driver.faults["delete_machine"] = errors.Internal("x")
    async with world.running("machine", "machineclass"):
        await advance(7)
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
    status = {
        "currentStatus": {"phase": "Terminating"},
        "lastOperation": {"description": deletion.MARKERS[Stage.VOLUMES]},
    }
    world.server.patch(f"{path}/status", {"status": status})
    world.server.drop(f"{NODES_PATH}/m0")
    async with world.running("machine", "machineclass"):
        await advance(2)

    assert (world.get(), world.driver.vms) == ({}, {})


async def test_a_machine_that_is_gone_is_not_deleted_once_more() -> None:
    """Real API servers answer with the former version: the cache looks as new as that."""
    world = World()
    going(world)
    async with world.running("machineclass"):
        shared, client = world.shared, world.server.client()
        assert shared is not None
        await until_synced(shared.caches.machines, who="test")
        await until_synced(shared.caches.nodes, who="test")
        obj = shared.caches.machines.store.list()[0]
        target = Target(
            nodes=Writer(client.resource(NODES)),
            delete_nodes=client.resource(NODES),
            volumes=client.resource(NODE_VOLUMES),
            attachments=client.resource(ATTACHMENTS),
            tokens=Tokens(client.resource(SECRETS)),
            drains=world.drains,
        )
        write = Writer(client.resource(MACHINES), strategic=False)
        remover, turn = Remover(shared, write, target, events=world), Turn(asyncio.Semaphore(1))
        async with turn:
            await remover.run(obj, turn, lambda: None)
            calls, writes = world.driver.calls.copy(), world.server.writes("machines/")
            await remover.run(obj, turn, lambda: None)

    assert world.get() == {}
    assert (world.driver.calls, world.server.writes("machines/")) == (calls, writes)
