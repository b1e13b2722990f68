"""A hundred Services and many nodes at once: what each of them costs, in calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests import servers
from tests.scenario import load
from tests.scenario.harness import Daemon, Environment

pytestmark = [pytest.mark.timeout(load.LONGEST_S), pytest.mark.usefixtures("unloaded")]

SERVICES = 100
LATENCY_S = 0.05
"""What one call to the cloud takes."""


async def appear(env: Environment, *, nodes: int) -> None:
    """Everything appears while the daemon runs; then a tenth more nodes; then one more."""
    load.with_latency(env, LATENCY_S)
    daemon = await load.start(env)
    work = load.Work.begin(env, daemon)
    services, hosts = load.named("web", SERVICES), load.named("host", nodes)

    await asyncio.gather(load.add_services(env, services), load.add_nodes(env, hosts))
    await load.settled(env, services=SERVICES, members=nodes)
    await load.quiet(env, for_s=load.BURST_S)

    check_load(work, services, hosts)
    await join(env, daemon, services, load.named("herd", nodes // 10), members=nodes)
    await join(env, daemon, services, ["latecomer"], members=nodes + nodes // 10)
    assert await daemon.stop() == 0


async def found(env: Environment, *, nodes: int) -> None:
    """Everything is there, new, when the daemon starts."""
    load.with_latency(env, LATENCY_S)
    services, hosts = load.named("web", SERVICES), load.named("host", nodes)
    await asyncio.gather(load.add_services(env, services), load.add_nodes(env, hosts))

    daemon = await load.start(env)
    work = load.Work(env=env, daemon=daemon, first_call=0, first_write=0, first_line=0)
    await load.settled(env, services=SERVICES, members=nodes)
    await load.quiet(env, for_s=load.BURST_S)

    check_load(work, services, hosts)
    assert await daemon.stop() == 0


def check_load(work: load.Work, services: Sequence[str], hosts: Sequence[str]) -> None:
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
    env: Environment, daemon: Daemon, services: Sequence[str], hosts: Sequence[str], *, members: int
) -> None:
    """Nodes join a quiet cluster: the members change once for each burst, and nothing else."""
    work = load.Work.begin(env, daemon)
    await load.add_nodes(env, hosts)
    await load.settled(env, services=SERVICES, members=members + len(hosts))
    await load.quiet(env, for_s=load.BURST_S)

    work.check()
    assert work.ensures == {}
    assert set(work.updates) == {f"default/{name}" for name in services}
    assert max(work.updates.values()) <= work.bursts
    assert work.writes["services"] == 0
    assert work.writes["nodes"] == 2 * len(hosts)


@pytest.mark.row("service-scale-01")
async def test_a_load_costs_one_ensure_per_service_and_one_update_per_burst(
    env: Environment,
) -> None:
    """With a tenth of the nodes."""
    await appear(env, nodes=100)


@pytest.mark.soak
@servers.only_real
@pytest.mark.row("service-scale-01")
async def test_a_thousand_nodes_and_a_hundred_services(env: Environment) -> None:
    """On the real server, at full size."""
    await appear(env, nodes=1000)


@pytest.mark.soak
@pytest.mark.row("service-scale-01")
async def test_a_daemon_that_finds_many_new_ones(env: Environment) -> None:
    """On both servers, at full size."""
    await found(env, nodes=1000)
