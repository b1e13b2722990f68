"""The whole daemon, an API server and the fake: machines become nodes with routes; a restart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.hcloud.pool import FLAGS, pool
from tests.scenario import harness
from tests.scenario.machines import Costs, installed, life

NODES, SERVICES = 90, 5
FEW = 5
MOST_CALLS = 400
MOST_AT_REST = 60
REST_S = 600.0


@pytest.mark.slow
@pytest.mark.both_servers
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
async def test_machines_become_nodes_with_routes_and_services(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    fast = {"route-shortest-interval": "200ms"}
    costs = await lived(api_server, tmp_path, flags=fast, nodes=FEW, services=2, rest_s=1.0)

    assert costs.from_nothing.total() <= 4 * FEW + 2 * 2 + 15, costs
    assert costs.at_rest.total() <= 5, costs


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
@servers.only_real
@pytest.mark.parametrize(("first", "rest_s"), [("nodes", REST_S), ("services", 10.0)])
async def test_ninety_machines(
    api_server: servers.ApiServer, tmp_path: Path, first: str, rest_s: float
) -> None:
    """With Services first each node is a call for each of them: the API adds one at a time."""
    costs = await lived(
        api_server,
        tmp_path,
        nodes=NODES,
        services=SERVICES,
        rest_s=rest_s,
        services_first=first == "services",
    )

    most = MOST_CALLS + (NODES * SERVICES if first == "services" else 0)
    assert costs.from_nothing.total() <= most, costs
    assert costs.at_rest.total() <= MOST_AT_REST, costs


async def lived(
    api_server: servers.ApiServer, folder: Path, *, flags: Mapping[str, str] = {}, **how: Any
) -> Costs:
    """A life, whose restart wrote nothing, and which told nobody the token."""
    fake = server.Service()
    program.populate(fake, [])
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, folder) as env,
    ):
        farm = await installed(env, pool(fake))
        env.cloud_config.write_text(program.config(endpoint, fake.token))
        costs = await life(farm, env, fake, {"flags": {**FLAGS, **flags}}, **how)
        said = "".join(one.output for one in env.daemons)
    assert (costs.restart_writes, costs.restart.total() > 0) == (0, True), costs
    assert fake.token not in said
    return costs
