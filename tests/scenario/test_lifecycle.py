"""Machines that stop, start and vanish: what becomes of their nodes."""

from __future__ import annotations

import asyncio

import pytest

from ccm.model import names
from providers.sim import world
from providers.sim.faults import Fault
from tests.scenario import harness, nodes
from tests.scenario.harness import Stage, wait_for

PASSES_S = 3 * harness.MONITOR_S
"""Long enough for a few passes over the nodes that are not ready."""

NO_ADDRESS_PASS = {"node-status-update-frequency": "1h"}


@pytest.mark.both_servers
async def test_a_machine_is_stopped_and_started(stage: Stage) -> None:
    """Stopped and not ready: the shutdown taint; ready again: none. One write each."""
    machine = await stage.node("alpha")
    await stage.start_leading()
    await stage.cluster.initialised("alpha")
    await stage.cluster.set_ready("alpha", names.STATUS_TRUE)
    before = len(stage.wire.requests(harness.NODE_WRITE))

    stage.cloud.world.act(machine.id, "stop")
    await stage.cluster.set_ready("alpha", names.STATUS_UNKNOWN)
    await wait_for(
        lambda: stage.cluster.has_taint("alpha", names.TAINT_SHUTDOWN), "the shutdown taint"
    )
    stage.cloud.world.act(machine.id, "start")
    await asyncio.sleep(PASSES_S)
    # Its machine runs, but nothing runs on it yet.
    assert await stage.cluster.has_taint("alpha", names.TAINT_SHUTDOWN)
    await stage.cluster.set_ready("alpha", names.STATUS_TRUE)

    async def lifted() -> bool:
        return not await stage.cluster.has_taint("alpha", names.TAINT_SHUTDOWN)

    await wait_for(lifted, "the taint is lifted")
    assert len(stage.wire.requests(harness.NODE_WRITE)) == before + 2


@pytest.mark.both_servers
async def test_a_machine_is_deleted(stage: Stage) -> None:
    """Its node goes once it is not ready, with an event; a ready node stays."""
    doomed = await stage.node("doomed")
    alive = await stage.node("alive")
    daemon = await stage.start_leading()
    await stage.cluster.initialised("doomed", "alive")
    for name in ("doomed", "alive"):
        await stage.cluster.set_ready(name, names.STATUS_TRUE)
    stage.cloud.world.delete(doomed.id)
    stage.cloud.world.delete(alive.id)
    await asyncio.sleep(PASSES_S)
    assert stage.wire.requests(harness.NODE_DELETE) == []

    await stage.cluster.set_ready("doomed", names.STATUS_UNKNOWN)

    async def gone() -> bool:
        return await stage.cluster.node("doomed") is None

    await wait_for(gone, "the node is deleted")
    (event,) = await wait_for(
        lambda: stage.cluster.events("doomed", names.REASON_DELETING_NODE), "its event"
    )
    assert event["type"] == names.NORMAL
    assert event["source"]["component"] == names.COMPONENT_NODE_LIFECYCLE
    (deletion,) = stage.wire.requests(harness.NODE_DELETE)
    assert deletion.json()["preconditions"]["uid"] == event["involvedObject"]["uid"]
    assert await stage.cluster.node("alive") is not None
    assert await daemon.stop() == 0


async def test_a_node_of_another_cloud(stage: Stage) -> None:
    """It is never asked about, never touched and never deleted, ready or not."""
    await stage.cluster.register("foreign", providerID="aws:///eu-1a/i-0abc")
    await stage.start_leading()
    await asyncio.sleep(PASSES_S)

    assert stage.calls() == []
    assert stage.wire.requests(harness.NODE_WRITE) == []
    assert await stage.cluster.has_taint("foreign", names.TAINT_UNINITIALIZED)


async def test_the_cloud_denies_an_instance_once(stage: Stage) -> None:
    """One "not found" of a cloud that is behind the truth deletes nothing."""
    await stage.node("alpha")
    daemon = await stage.start_leading(flags=NO_ADDRESS_PASS)
    await stage.cluster.initialised("alpha")

    stage.cloud.script.add(
        Fault(kind="error", status=404, code="not_found", operation="get_instance", count=1)
    )
    await daemon.says("node held", node="alpha")
    await asyncio.sleep(PASSES_S)

    assert [call.status for call in stage.calls("get_instance")].count(404) == 1
    assert stage.wire.requests(harness.NODE_DELETE) == []
    assert await stage.cluster.events("alpha", names.REASON_DELETING_NODE) == []


async def test_new_addresses_reach_the_node(stage: Stage) -> None:
    """The periodic pass brings a machine's new address to its node, in one write."""
    machine = await stage.node("alpha")
    await stage.start_leading()
    await stage.cluster.initialised("alpha")
    before = len(stage.wire.requests(harness.NODE_WRITE))

    public = world.Address(kind="public", value="203.0.113.77")
    stage.cloud.world.update(machine.id, world.Change(addresses=(*machine.addresses, public)))

    async def arrived() -> bool:
        node = await stage.cluster.node("alpha")
        assert node is not None
        return nodes.addresses(node).get(names.ADDRESS_EXTERNAL_IP) == "203.0.113.77"

    await wait_for(arrived, "the new address")
    await asyncio.sleep(1.5)
    assert len(stage.wire.requests(harness.NODE_WRITE)) == before + 1
