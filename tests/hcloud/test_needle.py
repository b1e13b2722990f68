"""A cloud that quotes the token in whatever it says; nobody else ever says it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from ccm.cli import doctor, explain
from ccm.model import names
from ccm.sandbox import ports
from ccm.testing.fake_faults import Fault
from providers.hcloud.testing import __main__ as program
from providers.hcloud.testing import server
from tests import pki, servers
from tests.hcloud.pool import FLAGS, pool
from tests.scenario import harness
from tests.scenario.harness import EVENTS, NODES, Environment, wait_for
from tests.scenario.pool import MACHINES, SERVICES, installed

QUOTED = "may not do that today"
REFUSED = ("POST /servers", "POST /load_balancers", "POST /networks/{id}/actions/add_route")
EVERYTHING = "10"
"""The most that a daemon says."""


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
    more = {
        "v": EVERYTHING,
        "secure-port": str(port),
        "authorization-always-allow-paths": "/metrics",
        "route-shortest-interval": "200ms",
    }
    async with (
        server.serve(fake) as endpoint,
        harness.open_environment(api_server, tmp_path) as env,
        installed(env, pool(fake)) as farm,
    ):
        env.cloud_config.write_text(program.config(endpoint, fake.token))
        daemon = await env.start_leading(flags={**FLAGS, **more})
        cidr = "100.64.0.0/24"
        await env.cluster.register("n1", ready=names.STATUS_TRUE, podCIDR=cidr, podCIDRs=[cidr])
        await farm.expose(1)
        await farm.order(1)
        said = await wait_for(lambda: quoted(env, daemon), "every refusal is told")
        said += await commands(env) + await metrics(port)
        assert await daemon.stop() == 0
        said += daemon.output

    assert said.count(QUOTED) > len(REFUSED)
    for form in (fake.token, base64.b64encode(fake.token.encode()).decode()[:-4]):
        assert [line for line in said.splitlines() if form in line] == []


async def quoted(env: Environment, daemon: harness.Daemon) -> str:
    """What the cluster and the log say, once each refusal is in it."""
    told = {path: await env.cluster.items(path) for path in (EVENTS, MACHINES, SERVICES, NODES)}
    machine, events = json.dumps(told[MACHINES]), json.dumps(told[EVENTS])
    routes = any("route" in line and QUOTED in line for line in daemon.output.splitlines())
    whole = QUOTED in machine and "web-0" in events and QUOTED in events and routes
    return f"{json.dumps(told)}\n{daemon.output}" if whole else ""


async def commands(env: Environment) -> str:
    """What people are told about it."""
    out = io.StringIO()
    words = [
        f"--kubeconfig={env.server.kubeconfig_path}",
        *harness.command_line({**FLAGS, "cloud-config": str(env.cloud_config)}),
    ]
    nobody: Mapping[str, str] = {}
    await doctor.answer(doctor.read(words), out, environ=nobody)
    for thing in (["service", "default/web-0"], ["node", "n1"], ["machine", "default/m0-0"]):
        await explain.answer(explain.read([*thing, *words]), out, environ=nobody)
    return out.getvalue()


async def metrics(port: int) -> str:
    """All that is counted."""
    connector = aiohttp.TCPConnector(ssl=pki.client_context())
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://{ports.LOOPBACK}:{port}/metrics") as response,
    ):
        assert response.status == 200
        return await response.text()
