"""The whole daemon, an API server and the fake: what a cluster costs in calls, and a restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.model import names
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.scenario import harness
from tests.scenario.harness import Environment, wait_for

NODES, SERVICES = 90, 5
MOST_CALLS = 400

FLAGS: Mapping[str, str] = {
    "cloud-provider": "hcloud",
    "controllers": ",".join(one.name for one in (NODE, NODE_LIFECYCLE, ROUTE, SERVICE)),
    "cluster-cidr": "10.128.0.0/9",
    "cluster-name": "ninety",
    # As they are by default, for the calls that they cost.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "30s",
    "concurrent-service-syncs": "5",
    "concurrent-node-syncs": "10",
}

ANNOTATION = "load-balancer.hetzner.cloud/type"


def web(number: int) -> Mapping[str, Any]:
    port = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080 + number}
    metadata = {"name": f"web-{number}", "annotations": {ANNOTATION: "lb31"}}
    return {"metadata": metadata, "spec": {"type": "LoadBalancer", "ports": [port]}}


async def routed(fake: server.Service) -> None:
    """Wait until every node has its route."""
    (network,) = fake.cloud.networks.values()

    async def done() -> str:
        number = len(network["routes"])
        return "all" if number == NODES else ""

    await wait_for(done, f"routes of {NODES} nodes")


async def served(env: Environment, fake: server.Service) -> None:
    """Wait until every Service has an address, and every node as a member."""

    async def done() -> bool:
        found = {
            one["metadata"]["name"]
            for one in await env.cluster.items("/api/v1/namespaces/default/services")
            if (one.get("status") or {}).get("loadBalancer", {}).get("ingress")
        }
        members = [len(one["targets"]) for one in fake.cloud.load_balancers.values()]
        return len(found) == SERVICES and members == [NODES] * SERVICES

    await wait_for(done, "addresses and members of Services")


async def add_services(env: Environment) -> None:
    for number in range(SERVICES):
        await env.cluster.create("/api/v1/namespaces/default/services", web(number))


@pytest.mark.slow
@pytest.mark.both_servers
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
@pytest.mark.parametrize("first", ["nodes", pytest.param("services", marks=pytest.mark.soak)])
async def test_ninety_nodes_and_a_restart(
    api_server: servers.ApiServer, tmp_path: Path, first: str
) -> None:
    """With Services first each node is a call for each of them: the API adds one at a time."""
    fake = server.Service()
    program.populate(fake, [f"host-{number}" for number in range(NODES)])
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        env.cloud_config.write_text(program.config(endpoint, fake.token))
        daemon = await env.start_leading(flags=FLAGS)
        if first == "services":
            await add_services(env)
        for number in range(NODES):
            cidr = f"10.128.{number}.0/24"
            await env.cluster.register(
                f"host-{number}", ready=names.STATUS_TRUE, podCIDR=cidr, podCIDRs=[cidr]
            )
        await routed(fake)
        if first == "nodes":
            await add_services(env)
        await served(env, fake)
        from_nothing = Counter(fake.calls)
        assert await daemon.stop() == 0

        fake.calls.clear()
        again = await env.start_leading(flags=FLAGS)
        await asyncio.sleep(3.0)  # whatever a start does is done at its start
        restart = Counter(fake.calls)
        writes = fake.writes
        assert await again.stop() == 0
        for number in range(SERVICES):
            await env.cluster.delete(f"/api/v1/namespaces/default/services/web-{number}")
        texts = [one.output for one in env.daemons]
        print("from nothing", from_nothing.total(), dict(from_nothing))
        print("a restart", restart.total(), dict(restart))

    most = MOST_CALLS if first == "nodes" else NODES * SERVICES + 150
    assert from_nothing.total() <= most, from_nothing
    assert (writes, restart.total() > 0) == (0, True), restart
    assert not any(fake.token in text for text in texts)
