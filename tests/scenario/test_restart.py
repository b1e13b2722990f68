"""The daemon starts on a settled cluster: what it spares, and what it does not overlook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from providers.sim import world_balancers
from tests.scenario import load
from tests.scenario.harness import Environment

pytestmark = [pytest.mark.timeout(load.LONGEST_S), pytest.mark.usefixtures("unloaded")]

WITH_ROUTES = {**load.FLAGS, "controllers": "*", "cluster-cidr": load.POD_RANGES}

SERVICES = 100
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


async def restart(env: Environment, *, nodes: int, quiet_s: float, routes: bool = False) -> None:
    """Restart on a settled cluster; then with changes made while no daemon ran.

    Args:
        env: the environment.
        nodes: how many there are.
        quiet_s: how long a daemon does nothing before that is believed.
        routes: whether it keeps routes to them as well.
    """
    services = load.named("web", SERVICES)
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
    await load.settled(env, services=SERVICES, members=nodes)
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
    """With a tenth of the nodes."""
    await restart(env, nodes=100, quiet_s=1.5)


@pytest.mark.soak
@pytest.mark.row("service-scale-02", "service-scale-03")
async def test_a_start_on_a_thousand_nodes(env: Environment) -> None:
    """On both servers, at full size, with a route to each node."""
    await restart(env, nodes=1000, quiet_s=5.0, routes=True)
