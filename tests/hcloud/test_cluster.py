"""The whole daemon, an API server and the fake: machines become nodes with routes; a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.hcloud.pool import FLAGS, pool
from tests.scenario import harness
from tests.scenario.pool import installed, life

NODES, SERVICES = 90, 5
FEW = 5
MOST_CALLS = 400
MOST_AT_REST = 60
REST_S = 600.0


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.row("hcloud-call-01", "hcloud-balancer-20")
@pytest.mark.parametrize(
    ("count", "services", "rest_s", "first"),
    [
        pytest.param(FEW, 2, 1.0, "nodes", id="few"),
        pytest.param(NODES, SERVICES, REST_S, "nodes", marks=pytest.mark.soak, id="nodes"),
        pytest.param(NODES, SERVICES, 10.0, "services", marks=pytest.mark.soak, id="services"),
    ],
)
async def test_machines_become_nodes_with_routes_and_services(
    api_server: servers.ApiServer,
    tmp_path: Path,
    count: int,
    services: int,
    rest_s: float,
    first: str,
) -> None:
    """With Services first each node is a call for each of them: the API adds one at a time."""
    flags = {"route-shortest-interval": "200ms"} if count == FEW else {}
    fake = server.Service()
    program.populate(fake, [])
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
        installed(env, pool(fake)) as farm,
    ):
        env.cloud_config.write_text(program.config(endpoint, fake.token))
        costs = await life(
            farm,
            env,
            fake,
            {"flags": {**FLAGS, **flags}},
            nodes=count,
            services=services,
            rest_s=rest_s,
            services_first=first == "services",
        )
        said = "".join(one.output for one in env.daemons)

    most = MOST_CALLS if first == "nodes" else MOST_CALLS + count * services
    assert costs.from_nothing.total() <= most * count / NODES + 20 * (count < NODES), costs
    assert costs.at_rest.total() <= (MOST_AT_REST if rest_s == REST_S else 10), costs
    assert (costs.restart_writes, costs.restart.total() > 0) == (0, True), costs
    assert fake.token not in said
