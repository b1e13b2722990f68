"""A daemon that has all it knows of the cloud from its environment, as the guide has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.hcloud.pool import FLAGS, KINDS
from tests.scenario import harness
from tests.scenario.harness import wait_for
from tests.scenario.pool import SERVICES

SPEC = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}


@pytest.mark.row("hcloud-config-03", "hcloud-balancer-08")
async def test_a_token_in_a_file_is_exchanged_without_a_restart(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """And what the cloud chooses in somebody's place is an event about the Service."""
    fake, token = server.Service(), tmp_path / "token"
    program.populate(fake, [])
    token.write_text(fake.token)
    flags = {**FLAGS, "cloud-config": "", "controllers": ",".join(KINDS)}
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        environ = {
            "HCLOUD_ENDPOINT": endpoint,
            "HCLOUD_TOKEN_FILE": str(token),
            "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        }
        daemon = await env.start_leading(flags=flags, env=environ)
        await env.cluster.create(SERVICES, {"metadata": {"name": "web"}, "spec": SPEC})
        await wait_for(balancers(fake, 1), "there is a load balancer")

        fake.token = "renewed" * 9
        token.write_text(fake.token)
        await daemon.says("changed file is in use", file=str(token))
        await env.cluster.delete(f"{SERVICES}/web")
        await wait_for(balancers(fake, 0), "there is none")
        (event,) = await env.cluster.events("web", "LoadBalancerTypeUnconfigured")
        assert await daemon.stop() == 0

    assert (event["type"], event["source"]["component"]) == (
        "Warning",
        "hcloud-cloud-controller-manager",
    )


def balancers(fake: server.Service, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether there are so many."""

    async def held() -> bool:
        return len(fake.cloud.load_balancers) == number

    return held
