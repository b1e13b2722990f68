"""Where one part of the machine controller takes over from another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccm.gardener import names
from ccm.machines.drain import DrainState
from ccm.testing.clock import advance
from tests.conformance.machine import going
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.machines import NODES_PATH, World
from tests.unit.controllers.memory_server import FragileServer

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
        world.drainer.start(kept, lambda: None)
        await advance(5)
        assert not world.node_object()["spec"].get("unschedulable")
        world.drainer.start(replace(kept, cordon=True), lambda: None)
        await advance(30)
        assert world.node_object()["spec"]["unschedulable"] is True
        assert world.state() is DrainState.DONE


@pytest.mark.parametrize("returns", [True, False])
async def test_a_node_that_the_cache_lacks_is_drained_before_its_vm_goes(returns: bool) -> None:
    """Unless nobody can see it until force is due."""
    server = FragileServer()
    world = World(server)
    world.ready_class()
    path = world.lived(drainTimeout="10m")
    async with world.running("machine"):
        await advance(5)
        server.forgets(NODES_PATH)
        await advance(5)
        world.node()
        world.server.drop(path)
        await advance(300)
        assert world.driver.calls["delete_machine"] == 0
        assert "not seen yet" in world.operation()["description"]
        if returns:
            server.returns()
        await advance(320)

    assert len(world.drains.tasks) == returns
    assert (world.get(), world.node_object() == {}) == ({}, returns)


@pytest.mark.parametrize("provider_id", ["fake:///m0", "fake:///other"])
async def test_the_node_of_another_vm_takes_no_machine_with_it(provider_id: str) -> None:
    world = World()
    world.lived()
    world.node(metadata={"finalizers": ["example.com/held"]}, providerID=provider_id)
    async with world.running("machine"):
        await advance(5)
        world.server.drop(f"{NODES_PATH}/m0")
        await advance(60)

    goes = world.get()["metadata"].get("deletionTimestamp") is not None
    assert goes is (provider_id == "fake:///m0")


@pytest.mark.parametrize("is_own", [True, False])
async def test_volumes_of_another_vms_node_stay_where_they_are(is_own: bool) -> None:
    """A deletion that another controller began, with force, goes on after a new node came."""
    world = World()
    world.ready_class()
    going.goes(world, "Force Drain successful. Delete Volume Attachments")
    if not is_own:
        going.unmake(world, f"{NODES_PATH}/{going.M}")
        world.node(going.M, providerID="fake:///other")
    going.attached(world, "v0")
    async with world.running("machine"):
        await advance(60)

    assert (world.server.list(going.ATTACHMENTS) != []) is not is_own


async def test_no_drain_outlives_its_machine() -> None:
    """Somebody takes the finalizers away, so that nobody ends it."""
    world = World()
    path = preserved(world)
    world.drains.seconds = 1000
    async with world.running("machine"):
        await advance(10)
        uid = world.get()["metadata"]["uid"]
        going.unmake(world, path)
        await advance(10)

    assert (world.get(), world.drains.stopped) == ({}, [uid])
