"""A cloud that quotes every secret in whatever it says; nobody else ever says one."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ccm.model import names
from ccm.sandbox import ports
from ccm.testing.fake_faults import Fault
from providers.stackit.testing import __main__ as program
from providers.stackit.testing import server
from providers.stackit.testing.state import ApiError
from tests import servers
from tests.scenario import harness, pool_needle
from tests.scenario.harness import EVENTS, Environment, wait_for
from tests.scenario.pool import MACHINES, installed
from tests.stackit.balancing import METRICS
from tests.stackit.test_cluster import FLAGS, pool

QUOTED = "may not do that today"
REFUSED = ("POST *servers", "POST *load-balancers")


class Gossip(server.Service):
    """It says whatever it knows."""

    @property
    def lines(self) -> Sequence[str]:
        """Of the key's private half."""
        pem: str = msgspec.json.decode(self.account.key)["credentials"]["privateKey"]
        return pem.splitlines()[1:-1]

    @property
    def words(self) -> Sequence[str]:
        """Tokens, and the password for metrics."""
        return [*self.account._tokens, METRICS["STACKIT_REMOTEWRITE_PASSWORD"]]

    def refusal(self, fault: Fault) -> ApiError:
        """Quoting all of that, the key as its file has it and in one line."""
        said = [*self.words, self.account.key.decode(), "".join(self.lines)]
        return super().refusal(replace(fault, message=f"{QUOTED}: Bearer {' '.join(said)}"))


@pytest.mark.soak  # what is of the provider itself, test_auth looks for
@pytest.mark.row("stackit-auth-04")
async def test_no_word_of_a_run_tells_a_secret(
    api_server: servers.ApiServer, tmp_path: Path
) -> None:
    """Logs, objects and events, metrics, and what commands say."""
    fake = Gossip()
    program.populate(fake, ["n1"])
    for operation in REFUSED:
        fake.script.add(Fault(operation=operation, code="forbidden"))
    port, key = ports.pick_port(), tmp_path / "key.json"
    key.write_bytes(fake.account.key)
    async with (
        server.serve(fake) as url,
        harness.open_environment(api_server, tmp_path) as env,
    ):
        farm = await installed(env, pool(fake))
        env.cloud_config.write_text(program.config(url))
        environ = {**program.variables(url, str(key)), **METRICS}
        flags = {**FLAGS, **pool_needle.flags(port)}
        daemon = await env.start_leading(flags=flags, env=environ)
        await env.cluster.register("n1", ready=names.STATUS_TRUE)
        await farm.expose(1)
        await farm.order(1)
        said = await wait_for(lambda: quoted(env, daemon), "every refusal is told")
        things = [("service", "default/web-0"), ("node", "n1"), ("machine", "default/m0-0")]
        said += await pool_needle.commands(env, FLAGS, things, environ)
        said += await pool_needle.metrics(port)
        assert await daemon.stop() == 0
        said += daemon.output

    assert said.count(QUOTED) > len(REFUSED)
    assert fake.account.issued >= 2
    for secret in (*fake.words, *fake.lines):
        for form in (secret, base64.b64encode(secret.encode()).decode()[:-4]):
            assert [line for line in said.splitlines() if form in line] == []


async def quoted(env: Environment, daemon: harness.Daemon) -> str:
    """What the cluster and the log say, once each refusal is in it."""
    told = await pool_needle.objects(env)
    events = json.dumps(told[EVENTS])
    whole = QUOTED in json.dumps(told[MACHINES]) and "web-0" in events and QUOTED in events
    return f"{json.dumps(told)}\n{daemon.output}" if whole else ""
