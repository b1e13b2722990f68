"""A hundred Services and a crowd of nodes at once: what each of them costs, in calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests import servers
from tests.scenario import crowd
from tests.scenario.harness import Daemon, Stage

pytestmark = [pytest.mark.timeout(crowd.LONGEST_S), pytest.mark.usefixtures("dispersed")]

SERVICES = 100
LATENCY_S = 0.05
"""What one call to the cloud takes."""


async def appear(stage: Stage, *, nodes: int) -> None:
    """Everything appears while the daemon runs; then a tenth more nodes; then one more."""
    crowd.with_latency(stage, LATENCY_S)
    daemon = await crowd.start(stage)
    work = crowd.Work.begin(stage, daemon)
    services, hosts = crowd.named("web", SERVICES), crowd.named("host", nodes)

    await asyncio.gather(crowd.add_services(stage, services), crowd.add_nodes(stage, hosts))
    await crowd.settled(stage, services=SERVICES, members=nodes)
    await crowd.quiet(stage, for_s=crowd.BURST_S)

    check_crowd(work, services, hosts)
    await join(stage, daemon, services, crowd.named("herd", nodes // 10), members=nodes)
    await join(stage, daemon, services, ["latecomer"], members=nodes + nodes // 10)
    assert await daemon.stop() == 0


async def found(stage: Stage, *, nodes: int) -> None:
    """Everything is there, new, when the daemon starts."""
    crowd.with_latency(stage, LATENCY_S)
    services, hosts = crowd.named("web", SERVICES), crowd.named("host", nodes)
    await asyncio.gather(crowd.add_services(stage, services), crowd.add_nodes(stage, hosts))

    daemon = await crowd.start(stage)
    work = crowd.Work(stage=stage, daemon=daemon, first_call=0, first_write=0, first_line=0)
    await crowd.settled(stage, services=SERVICES, members=nodes)
    await crowd.quiet(stage, for_s=crowd.BURST_S)

    check_crowd(work, services, hosts)
    assert await daemon.stop() == 0


def check_crowd(work: crowd.Work, services: Sequence[str], hosts: Sequence[str]) -> None:
    """Each Service was ensured once, and everything written twice."""
    work.check()
    assert work.ensures == dict.fromkeys([f"default/{name}" for name in services], 1)
    assert work.calls["create_balancer"] == len(services)
    assert work.calls["change_balancer"] == 0
    assert max(work.updates.values(), default=0) <= work.bursts
    # The finalizer and the status; what initialises a node.
    assert work.writes["services"] == 2 * len(services)
    assert work.writes["nodes"] == 2 * len(hosts)


async def join(
    stage: Stage, daemon: Daemon, services: Sequence[str], hosts: Sequence[str], *, members: int
) -> None:
    """Nodes join a quiet cluster: the members change once for each burst, and nothing else."""
    work = crowd.Work.begin(stage, daemon)
    await crowd.add_nodes(stage, hosts)
    await crowd.settled(stage, services=SERVICES, members=members + len(hosts))
    await crowd.quiet(stage, for_s=crowd.BURST_S)

    work.check()
    assert work.ensures == {}
    assert set(work.updates) == {f"default/{name}" for name in services}
    assert max(work.updates.values()) <= work.bursts
    assert work.writes["services"] == 0
    assert work.writes["nodes"] == 2 * len(hosts)


@pytest.mark.row("service-scale-01")
async def test_a_crowd_costs_one_ensure_per_service_and_one_update_per_burst(
    stage: Stage,
) -> None:
    """With a fifth of the nodes."""
    await appear(stage, nodes=200)


@pytest.mark.soak
@servers.only_real
@pytest.mark.row("service-scale-01")
async def test_a_thousand_nodes_and_a_hundred_services(stage: Stage) -> None:
    """On the real server, at full size."""
    await appear(stage, nodes=1000)


@pytest.mark.soak
@pytest.mark.row("service-scale-01")
async def test_a_daemon_that_finds_a_crowd_of_new_ones(stage: Stage) -> None:
    """On both servers, at full size."""
    await found(stage, nodes=1000)
