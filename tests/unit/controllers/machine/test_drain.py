"""Drains as tasks: begun once, told in time, ended with their controller."""

from __future__ import annotations

import pytest

from ccm.machines.drain import DrainState
from ccm.testing.clock import advance
from tests.unit.controllers.drains import Drains

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("machine-drain-29")
@pytest.mark.parametrize("pods", [0, 1])
async def test_that_nobody_had_to_leave_is_no_event(pods: int) -> None:
    world = Drains()
    for number in range(pods):
        world.pod(f"p{number}")
    async with world.draining():
        await advance(1)
        world.start()
        await advance(6)
        assert world.state() is DrainState.DONE

    assert [reason for reason, _ in world.events] == ["NodeDrained"] * pods


async def test_a_drain_that_was_stopped_is_forgotten() -> None:
    world = Drains()
    world.pod("p0", grace_s=100)
    async with world.draining():
        await advance(1)
        world.start()
        await advance(1)
        uid = world.get()["metadata"]["uid"]
        await world.drainer.stop(uid)
        await world.drainer.stop(uid)
        assert world.drainer.progress(uid) is None
        woken = world.woken
        await advance(120)
        assert (world.woken, world.pods()) == (woken, [])
