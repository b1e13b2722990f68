"""Machines that stop, start and vanish: what becomes of their nodes."""

from __future__ import annotations

import asyncio

import pytest

from ccm.model import names
from tests.scenario import harness
from tests.scenario.harness import Stage, wait_for

PASSES_S = 3 * harness.MONITOR_S
"""Long enough for a few passes over the nodes that are not ready."""


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

    await stage.cluster.gone("doomed")
    (event,) = await wait_for(
        lambda: stage.cluster.events("doomed", names.REASON_DELETING_NODE), "its event"
    )
    assert event["type"] == names.NORMAL
    assert event["source"]["component"] == names.COMPONENT_NODE_LIFECYCLE
    (deletion,) = stage.wire.requests(harness.NODE_DELETE)
    assert deletion.json()["preconditions"]["uid"] == event["involvedObject"]["uid"]
    assert await stage.cluster.node("alive") is not None
    assert await daemon.stop() == 0
