"""The daemon dies at each call that changes the cloud: one of everything, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.stackit.testing import __main__ as program
from providers.stackit.testing import server
from tests import servers
from tests.faults import FaultProxy
from tests.scenario import harness, pool_crashes
from tests.scenario.machines import installed
from tests.stackit.test_cluster import FLAGS, pool


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "every", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
async def test_a_daemon_dies_at_a_call_that_writes(
    api_server: servers.ApiServer, tmp_path: Path, every: int
) -> None:
    """Server, network card and load balancer."""
    fake = server.Service()
    world = fake.cloud

    def held() -> dict[str, int]:
        tables = ("servers", "nics", "balancers")
        return {name: len(getattr(world, name)) for name in tables}

    async with (
        server.serve(fake) as url,
        harness.open_environment(api_server, tmp_path) as env,
        FaultProxy(url) as proxy,
    ):
        farm = await installed(env, pool(fake))
        env.cloud_config.write_text(program.config(proxy.url))
        key = tmp_path / "key.json"
        key.write_bytes(fake.account.key)
        flags = {**FLAGS, **pool_crashes.FLAGS}
        del flags["route-shortest-interval"]  # this cloud has no routes
        how = {"flags": flags, "env": program.variables(proxy.url, str(key))}
        lives = pool_crashes.Lives(env, farm, proxy, held, how=how, reads="^/token")
        await pool_crashes.assert_mended(lives, every=every)
        assert {lives.expected["servers"], lives.expected["balancers"]} == {1}
