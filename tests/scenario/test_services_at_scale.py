"""A hundred Services and a crowd of nodes at once: what each of them costs, in calls."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.scenario import crowd
from tests.scenario.harness import Stage

SERVICES = 100
LATENCY_S = 0.05
"""What one call to the cloud takes."""


async def appear(stage: Stage, *, nodes: int) -> None:
    """Everything appears while the daemon runs; then one more node."""
    crowd.with_latency(stage, LATENCY_S)
    daemon = await stage.start_leading(flags=crowd.FLAGS)
    work = crowd.Work.begin(stage, daemon)
    services = crowd.named("web", SERVICES)
    hosts = crowd.named("host", nodes)

    await asyncio.gather(crowd.add_services(stage, services), crowd.add_nodes(stage, hosts))
    await crowd.settled(stage, services=SERVICES, members=nodes)
    await crowd.quiet(stage)

    print("crowd:", json.dumps(work.report()))
    work.check()
    keys = [f"default/{name}" for name in services]
    assert work.ensures == dict.fromkeys(keys, 1)
    assert work.calls["create_balancer"] == SERVICES
    assert work.calls["change_balancer"] == 0
    assert max(work.updates.values(), default=0) <= work.bursts
    # The finalizer and the status; what initialises a node.
    assert work.writes["services"] == 2 * SERVICES
    assert work.writes["nodes"] == 2 * nodes

    work = crowd.Work.begin(stage, daemon)
    await crowd.add_nodes(stage, ["latecomer"])
    await crowd.settled(stage, services=SERVICES, members=nodes + 1)
    await crowd.quiet(stage)

    print("latecomer:", json.dumps(work.report()))
    work.check()
    assert work.ensures == {}
    assert set(work.updates) == set(keys)
    assert max(work.updates.values()) <= work.bursts
    assert work.writes["services"] == 0
    assert await daemon.stop() == 0


@pytest.mark.asyncio
@pytest.mark.row("service-scale-01")
async def test_a_crowd_costs_one_ensure_per_service_and_one_update_per_burst(
    stage: Stage,
) -> None:
    """On both servers, with a fifth of the nodes."""
    await appear(stage, nodes=200)


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.parametrize("api_server", ["real"], indirect=True)
@pytest.mark.row("service-scale-01")
async def test_a_thousand_nodes_and_a_hundred_services(stage: Stage) -> None:
    """On the real server, at full size."""
    await appear(stage, nodes=1000)
