"""Many Services and nodes at once: what each costs in calls, and what a start on a settled cluster
spares and does not overlook."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from providers.sim import world_balancers
from tests import servers
from tests.scenario import load
from tests.scenario.harness import Daemon, Environment

pytestmark = [pytest.mark.timeout(load.LONGEST_S), pytest.mark.usefixtures("unloaded")]

SERVICES = 100
LATENCY_S = 0.05
"""What one call to the cloud takes."""


async def appear(env: Environment, *, nodes: int, count: int = SERVICES) -> None:
    """Everything appears while the daemon runs; then a tenth more nodes; then one more."""
    load.with_latency(env, LATENCY_S)
    daemon = await load.start(env)
    work = load.Work.begin(env, daemon)
    services, hosts = load.named("web", count), load.named("host", nodes)

    await asyncio.gather(load.add_services(env, services), load.add_nodes(env, hosts))
    await load.settled(env, services=count, members=nodes)
    await load.quiet(env, for_s=load.BURST_S)

    check_load(work, services, hosts)
    await join(env, daemon, services, load.named("herd", nodes // 10), members=nodes)
    await join(env, daemon, services, ["latecomer"], members=nodes + nodes // 10)
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
    await load.settled(env, services=len(services), members=members + len(hosts))
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
    """With a few nodes and Services."""
    await appear(env, nodes=40, count=40)


@pytest.mark.soak
@servers.only_real
@pytest.mark.row("service-scale-01")
async def test_a_thousand_nodes_and_a_hundred_services(env: Environment) -> None:
    """On the real server, at full size."""
    await appear(env, nodes=1000)


WITH_ROUTES = {**load.FLAGS, "controllers": "*", "cluster-cidr": load.POD_RANGES}

MOST_CALLS = 10
"""Calls to the cloud that a start on a settled cluster may make."""

EDITS: Sequence[dict[str, Any]] = (
    {"spec": {"ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443}]}},
    {"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}},
    {"spec": {"sessionAffinity": "ClientIP"}},
    {"spec": {"externalTrafficPolicy": "Local"}},
    {"metadata": {"annotations": {"load-balancer.sim.cloud/size": "large"}}},
)
"""What people change at Services; each asks for another load balancer."""


def alterations(one: world_balancers.Balancer) -> Sequence[world_balancers.Interference]:
    """What others may do to a load balancer in the cloud."""
    listener = world_balancers.Listener(protocol="TCP", port=8080, target_port=1)
    check = world_balancers.HealthCheck(port=1)
    return (
        world_balancers.Interference(members=one.members[1:]),
        world_balancers.Interference(members=(*one.members, "10.250.0.1")),
        world_balancers.Interference(listeners=(*one.listeners, listener)),
        world_balancers.Interference(source_ranges=("198.51.100.0/24",)),
        world_balancers.Interference(health_check=check),
    )


async def settle(
    env: Environment, services: Sequence[str], *, nodes: int, routes: bool = False
) -> None:
    """A daemon settles a load, and is stopped."""
    daemon = await load.start(env, flags=WITH_ROUTES if routes else load.FLAGS)
    await load.add_nodes(env, load.named("host", nodes), ranges=routes)
    await load.add_services(env, services)
    await load.settled(env, services=len(services), members=nodes)
    if routes:
        await load.routed(env)
    await load.quiet(env, for_s=load.BURST_S)
    assert await daemon.stop() == 0


async def restart(
    env: Environment, *, nodes: int, quiet_s: float, count: int = SERVICES, routes: bool = False
) -> None:
    """Restart on a settled cluster; then with changes made while no daemon ran.

    Args:
        env: the environment.
        nodes: how many there are.
        quiet_s: how long a daemon does nothing before that is believed.
        count: of Services.
        routes: whether it keeps routes to them as well.
    """
    services = load.named("web", count)
    listed = ["list_balancers", *(["list_routes"] if routes else [])]
    flags = WITH_ROUTES if routes else load.FLAGS
    started = partial(load.started, env, *listed, flags=flags, quiet_s=quiet_s)
    await settle(env, services, nodes=nodes, routes=routes)
    before = await load.objects(env)

    daemon, work = await started()

    work.check()
    assert work.ensures == {}
    assert work.updates == {}
    assert work.writes == {}
    assert work.calls.total() <= MOST_CALLS
    assert await load.objects(env) == before
    assert await daemon.stop() == 0

    edited, altered = services[:10], services[10:20]
    await load.in_parallel(
        [
            partial(load.edit, env, name, EDITS[number % len(EDITS)])
            for number, name in enumerate(edited)
        ]
    )
    await alter(env, altered)
    held = load.balancers(env)

    daemon, work = await started()

    work.check()
    assert work.ensures == dict.fromkeys([f"default/{name}" for name in (*edited, *altered)], 1)
    assert work.updates == {}
    assert work.writes["nodes"] == 0
    # One was removed in the cloud, and the new one has another address.
    assert work.writes["services"] == 1
    await load.settled(env, services=count, members=nodes)
    spared = [await load.balancer_of(env, name) for name in services[20:]]
    assert spared == [held[each.name] for each in spared]
    assert await daemon.stop() == 0

    daemon, work = await started()

    assert work.ensures == {}
    assert work.writes == {}
    assert await daemon.stop() == 0


async def alter(env: Environment, services: Sequence[str]) -> None:
    """Alter the load balancers of these Services in the cloud; that of the last is removed."""
    held = env.cloud.worlds.balancers
    for number, name in enumerate(services):
        one = await load.balancer_of(env, name)
        if name == services[-1]:
            # The cloud gives no address twice, so the next one has another.
            held.remove(one.id)
        else:
            choices = alterations(one)
            held.interfere(one.id, choices[number % len(choices)])


@pytest.mark.row("service-scale-02", "service-scale-03")
async def test_a_start_ensures_what_differs_and_nothing_else(env: Environment) -> None:
    """With a few nodes and Services."""
    await restart(env, nodes=40, quiet_s=1.5, count=40)


@pytest.mark.soak
@pytest.mark.row("service-scale-02", "service-scale-03")
async def test_a_start_on_a_thousand_nodes(env: Environment) -> None:
    """On both servers, at full size, with a route to each node."""
    await restart(env, nodes=1000, quiet_s=5.0, routes=True)
