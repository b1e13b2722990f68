"""A cloud that quotes the token in whatever it says; nobody else ever says it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from ccm.model import names
from ccm.sandbox import ports
from ccm.testing.fake_faults import Fault
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import servers
from tests.hcloud.pool import FLAGS, pool
from tests.scenario import harness, pool_needle
from tests.scenario.harness import EVENTS, Environment, wait_for
from tests.scenario.pool import MACHINES, installed

QUOTED = "may not do that today"
REFUSED = ("POST /servers", "POST /load_balancers", "POST /networks/{id}/actions/add_route")


@pytest.mark.slow
@pytest.mark.row("hcloud-call-06")
async def test_no_word_of_a_run_tells_the_token(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """Logs, objects and events, metrics, and what commands say."""
    fake = server.Service()
    program.populate(fake, ["n1"])
    for operation in REFUSED:
        message = f"Bearer {fake.token} {QUOTED}"
        fake.script.add(Fault(operation=operation, code="forbidden", message=message))
    port = ports.pick_port()
    more = {**pool_needle.flags(port), "route-shortest-interval": "200ms"}
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        farm = await installed(env, pool(fake))
        env.cloud_config.write_text(program.config(endpoint, fake.token))
        daemon = await env.start_leading(flags={**FLAGS, **more})
        cidr = "100.64.0.0/24"
        await env.cluster.register("n1", ready=names.STATUS_TRUE, podCIDR=cidr, podCIDRs=[cidr])
        await farm.expose(1)
        await farm.order(1)
        said = await wait_for(lambda: quoted(env, daemon), "every refusal is told")
        things = [("service", "default/web-0"), ("node", "n1"), ("machine", "default/m0-0")]
        said += await pool_needle.commands(env, FLAGS, things, {}) + await pool_needle.metrics(port)
        assert await daemon.stop() == 0
        said += daemon.output

    assert said.count(QUOTED) > len(REFUSED)
    for form in (fake.token, base64.b64encode(fake.token.encode()).decode()[:-4]):
        assert [line for line in said.splitlines() if form in line] == []


async def quoted(env: Environment, daemon: harness.Daemon) -> str:
    """What the cluster and the log say, once each refusal is in it."""
    told = await pool_needle.objects(env)
    machine, events = json.dumps(told[MACHINES]), json.dumps(told[EVENTS])
    routes = any("route" in line and QUOTED in line for line in daemon.output.splitlines())
    whole = QUOTED in machine and "web-0" in events and QUOTED in events and routes
    return f"{json.dumps(told)}\n{daemon.output}" if whole else ""
