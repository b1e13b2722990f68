"""The whole daemon, an API server and the fake: machines become nodes with Services; a restart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.nodelifecycle.manifest import MANIFEST as NODE_LIFECYCLE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from providers.stackit.testing import __main__ as program
from providers.stackit.testing import server
from providers.stackit.testing.state import Settings
from tests import servers
from tests.scenario import harness
from tests.scenario.machines import CONTROLLERS, Pool, installed, life

REST_S = 600.0
MOST_AT_REST = 10
"""A look at all servers for the nodes, and one for the machines."""

FLAGS: Mapping[str, str] = {
    "cloud-provider": "stackit",
    "controllers": ",".join([NODE.name, NODE_LIFECYCLE.name, SERVICE.name, *CONTROLLERS]),
    "cluster-name": "two-hundred",
    "kube-api-qps": "-1",
    # As they are by default, for the calls that they cost.
    "node-monitor-period": "5s",
    "node-status-update-frequency": "5m",
    "inventory-max-age": "30s",
    "concurrent-service-syncs": "5",
    "concurrent-node-syncs": "10",
}


def pool(fake: server.Service) -> Pool:
    """Machines as the guide has them."""

    def whole(nodes: int, services: int) -> bool:
        members = [len(one["targetPools"][0]["targets"]) for one in fake.cloud.balancers.values()]
        return members == [nodes] * services

    return Pool(
        provider="stackit",
        spec={
            "region": server.REGION,
            "machineType": "c2i.2",
            "imageId": server.IMAGE,
            "networking": {"networkId": server.NETWORK},
            "allowedAddresses": ["10.96.0.0/12"],
        },
        secret={
            "project-id": server.PROJECT.encode(),
            "serviceaccount.json": fake.account.key,
            "userData": b"#!/bin/sh",
        },
        whole=whole,
        empty=lambda: not (fake.cloud.servers or fake.cloud.balancers),
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.row("stackit-call-01", "stackit-balancer-23")
@pytest.mark.parametrize(
    ("count", "services"), [(5, 2), pytest.param(200, 20, marks=pytest.mark.soak)]
)
async def test_machines_become_nodes_with_services(
    api_server: servers.ApiServer, tmp_path: Path, count: int, services: int
) -> None:
    """From nothing, at rest, after a restart, and to nothing again; counted."""
    is_large = count > 100
    rest_s = REST_S if is_large else 2.0
    fake = server.Service(
        Settings(boot_s=2.0 if is_large else 0.0, balancer_s=2.0 if is_large else 0.0)
    )
    async with (
        server.serve(fake) as url,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        env.cloud_config.write_text(program.config(url))
        key = tmp_path / "key.json"
        key.write_bytes(fake.account.key)
        how = {"flags": FLAGS, "env": program.variables(url, str(key))}
        farm = await installed(env, pool(fake))
        costs = await life(farm, env, fake, how, nodes=count, services=services, rest_s=rest_s)
        said = "".join(one.output for one in env.daemons)

    pem = yaml.safe_load(fake.account.key)["credentials"]["privateKey"]
    secrets = [*fake.account._tokens, *pem.splitlines()[1:-1]]
    assert [one for one in secrets if one in said] == []
    assert (costs.restart_writes, fake.cloud.nics) == (0, {})
    # Of a machine: a look, an order, a listing; until it boots now and then a look; its cards, and
    # one of them changed. Of a node: what it is, when it comes. Of a Service: a look, an order, and
    # looks until it is ready.
    assert costs.from_nothing.total() <= 9 * count + 12 * services + 20, costs
    assert costs.at_rest.total() <= MOST_AT_REST, costs
    assert costs.restart.total() <= 10, costs
