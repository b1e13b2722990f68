"""Where one part of the machine controller takes over from another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccm.gardener import names
from ccm.machines.draining import DrainState
from ccm.testing.clock import advance
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.machines import World

pytestmark = pytest.mark.virtual_time


def preserved(world: World, **labels: str) -> str:
    """A machine that has failed, and is kept; its path."""
    metadata = {
        "annotations": {names.ANNOTATION_PRESERVE: "now"},
        "labels": {"node": "m0", **labels},
    }
    path = world.lived(phase="Failed", metadata=metadata)
    world.node(ready="Unknown")
    return path


@pytest.mark.parametrize("said", ["", "a budget"])
async def test_a_machine_that_was_preserved_is_drained_again_when_it_goes(said: str) -> None:
    """The other drain, which ended in that moment, neither cordoned its node nor used force."""
    world = World()
    world.ready_class()
    path = preserved(world, **{names.LABEL_FORCE_DELETION: "True"})
    world.drains.seconds = 5
    async with world.running("machine"):
        await advance(1)
        assert [one.terminating for one in world.drains.tasks] == [False]
        world.drains.finish(world.get()["metadata"]["uid"], said)
        world.server.drop(path)
        await advance(60)

    assert [one.terminating for one in world.drains.tasks][:2] == [False, True]
    assert world.get() == {}


async def test_the_drain_of_a_preserved_machine_ends_when_it_recovers() -> None:
    world = World()
    preserved(world)
    world.drains.seconds = 1000
    async with world.running("machine"):
        await advance(10)
        assert (len(world.drains.tasks), world.drains.stopped) == (1, [])
        world.heartbeat(Ready="True")
        await advance(60)
        assert world.phase() == "Running"

    assert world.drains.stopped == [world.get()["metadata"]["uid"]]


async def test_a_drain_for_another_end_goes_on_when_a_machine_is_not_kept() -> None:
    world = World()
    wish = {"annotations": {names.ANNOTATION_PRESERVE: "false"}}
    path = world.lived(metadata=wish)
    world.node()
    world.drains.finish(world.get()["metadata"]["uid"], "")
    async with world.running("machine"):
        world.server.patch(path, {"metadata": {"annotations": {"touched": "yes"}}})
        await advance(60)

    assert world.drains.stopped == []


async def test_who_wants_a_cordon_gets_one() -> None:
    world = Drains()
    world.pod("p0", grace_s=20)
    async with world.draining():
        await advance(1)
        kept = replace(world.task(), terminating=False, cordon=False)
        world.drainer.look(kept)
        await advance(5)
        assert not world.node_object()["spec"].get("unschedulable")
        world.drainer.look(replace(kept, cordon=True))
        await advance(30)
        assert world.node_object()["spec"]["unschedulable"] is True
        assert world.state() is DrainState.DONE
