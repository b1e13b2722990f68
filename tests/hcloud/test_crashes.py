"""The daemon dies at each call that changes the cloud: one of everything, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.faults import FaultProxy
from tests.hcloud.pool import FLAGS, pool
from tests.scenario import harness, pool_crashes
from tests.scenario.machines import installed

WEB = {
    ann.PROTOCOL.name: "https",
    ann.CERTIFICATE_TYPE.name: "managed",
    ann.MANAGED_DOMAINS.name: "example.com",
    ann.IPV4_RDNS.name: "web.example.com",
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "every", [pytest.param(11, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)]
)
async def test_a_daemon_dies_at_a_call_that_writes(
    api_server: servers.ApiServer, tmp_path: Path, every: int
) -> None:
    """Server, key, volume, placement group, route, load balancer and certificate."""
    fake = server.Service()
    program.populate(fake, [])
    world = fake.cloud
    (network,) = world.networks.values()
    cattle = pool(fake, annotations=WEB, volumes=[10], placementGroupPrefix="workers")

    def held() -> dict[str, int]:
        tables = ("servers", "ssh_keys", "volumes", "placement_groups", "load_balancers")
        found = {name: len(getattr(world, name)) for name in (*tables, "certificates")}
        return {**found, "routes": len(network["routes"])}

    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
        FaultProxy(endpoint.removesuffix(server.PREFIX)) as proxy,
    ):
        farm = await installed(env, cattle)
        env.cloud_config.write_text(program.config(f"{proxy.url}{server.PREFIX}", fake.token))
        how = {"flags": {**FLAGS, **pool_crashes.FLAGS}}
        lives = pool_crashes.Lives(env, farm, proxy, held, how=how)
        await pool_crashes.assert_mended(lives, every=every)
        assert set(lives.expected.values()) == {1}
