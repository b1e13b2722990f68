"""A machine from its object to its node, and what it costs."""

from __future__ import annotations

import pytest

from ccm.testing.clock import advance
from tests.unit.controllers.machines import TOKENS, World

pytestmark = pytest.mark.virtual_time


async def test_a_machine_becomes_a_vm_and_a_node() -> None:
    world = World()
    world.ready_class()
    async with world.running():
        world.machine()
        await advance(1)
        made = world.get()
        assert (world.phase(), made["spec"]["providerID"]) == ("Pending", "fake:///0")
        world.node("m0")
        await advance(1)

    assert world.phase() == "Running"
    assert world.operation()["description"].startswith("Machine m0 successfully joined")
    assert world.server.list(TOKENS) == []
