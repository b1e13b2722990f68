"""Machines that stop, start and vanish: what becomes of their nodes."""

from __future__ import annotations

import asyncio

import pytest

from ccm.model import names
from tests.faults import Match
from tests.scenario import harness
from tests.scenario.harness import Environment, wait_for

PASSES_S = 3 * harness.MONITOR_S
"""Long enough for a few passes over the nodes that are not ready."""

LOOK = Match(method="GET", path="/instances")
"""What a pass asks the cloud about nodes that are not ready."""


@pytest.mark.both_servers
async def test_a_machine_is_stopped_and_started(env: Environment) -> None:
    """Stopped and not ready: the shutdown taint; ready again: none. One write each."""
    machine = await env.node("alpha")
    await env.start_leading()
    await env.cluster.initialised("alpha")
    await env.cluster.set_ready("alpha", names.STATUS_TRUE)
    before = len(env.proxy.requests(harness.NODE_WRITE))

    env.cloud.world.act(machine.id, "stop")
    await env.cluster.set_ready("alpha", names.STATUS_UNKNOWN)
    await wait_for(
        lambda: env.cluster.has_taint("alpha", names.TAINT_SHUTDOWN), "the shutdown taint"
    )
    env.cloud.world.act(machine.id, "start")
    looks = len(env.cloud_proxy.requests(LOOK))
    await env.cloud_proxy.wait_for(LOOK, count=looks + 3, answered=True)
    # Its machine runs, but nothing runs on it yet.
    assert await env.cluster.has_taint("alpha", names.TAINT_SHUTDOWN)
    await env.cluster.set_ready("alpha", names.STATUS_TRUE)

    async def lifted() -> bool:
        return not await env.cluster.has_taint("alpha", names.TAINT_SHUTDOWN)

    await wait_for(lifted, "the taint is lifted")
    assert len(env.proxy.requests(harness.NODE_WRITE)) == before + 2


@pytest.mark.both_servers
async def test_a_machine_is_deleted(env: Environment) -> None:
    """Its node goes once it is not ready, with an event; a ready node stays."""
    doomed = await env.node("doomed")
    alive = await env.node("alive")
    await env.node("witness")
    daemon = await env.start_leading()
    await env.cluster.initialised("doomed", "alive", "witness")
    for name in ("doomed", "alive", "witness"):
        await env.cluster.set_ready(name, names.STATUS_TRUE)
    env.cloud.world.delete(doomed.id)
    env.cloud.world.delete(alive.id)
    await asyncio.sleep(PASSES_S)
    assert env.proxy.requests(harness.NODE_DELETE) == []

    await env.cluster.set_ready("doomed", names.STATUS_UNKNOWN)

    await env.cluster.gone("doomed")
    (event,) = await wait_for(
        lambda: env.cluster.events("doomed", names.REASON_DELETING_NODE), "its event"
    )
    assert event["type"] == names.NORMAL
    assert event["source"]["component"] == names.COMPONENT_NODE_LIFECYCLE
    (deletion,) = env.proxy.requests(harness.NODE_DELETE)
    assert deletion.json()["preconditions"]["uid"] == event["involvedObject"]["uid"]
    assert await env.cluster.node("alive") is not None
    assert await daemon.stop() == 0
