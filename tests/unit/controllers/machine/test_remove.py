"""A machine ends with its VM and its node, and with nobody else's."""

from __future__ import annotations

import asyncio

import pytest

from ccm.cloud import errors
from ccm.controllers.machine.context import Context
from ccm.controllers.machine.remove import Deletion
from ccm.gardener import names
from ccm.runtime.controller import until_synced
from ccm.runtime.workers import Turn
from ccm.testing.clock import advance
from tests.unit.controllers.machines import World

pytestmark = pytest.mark.virtual_time


# --- others write too -------------------------------------------------------------------------


def going(world: World) -> str:
    """A machine with a VM is about to go; its path."""
    world.ready_class()
    metadata = {"labels": {"node": "m0"}, "finalizers": [names.FINALIZER]}
    path = world.machine(metadata=metadata, providerID="fake:///m0")
    world.driver.add(world.identity())
    world.server.drop(path)
    return path


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


async def test_a_machine_that_is_gone_is_not_deleted_once_more() -> None:
    """Real API servers answer with the former version: the cache looks as new as that."""
    world = World()
    going(world)
    async with world.running("machineclass"):
        shared = world.shared
        assert shared is not None
        await until_synced(shared.caches.machines, who="test")
        await until_synced(shared.caches.nodes, who="test")
        obj = shared.caches.machines.store.list()[0]
        context = Context(shared, drains=world.drains, events=world)
        deletion, turn = Deletion(context, obj), Turn(asyncio.Semaphore(1))
        async with turn:
            await deletion.run(obj, turn, lambda: None)
            calls, writes = world.driver.calls.copy(), world.server.writes("machines/")
            await deletion.run(obj, turn, lambda: None)

    assert world.get() == {}
    assert (world.driver.calls, world.server.writes("machines/")) == (calls, writes)
