"""Who we are to the API server: a wrong token is no reason to give up."""

from __future__ import annotations

import pytest

from tests.faults import Match
from tests.scenario import objects
from tests.scenario.harness import Environment

REFUSED = "cannot acquire or renew lease, retrying"


@pytest.mark.both_servers
async def test_a_wrong_token_becomes_right(env: Environment) -> None:
    """401 at start is tried again with pauses and said once; a new token is taken at once."""
    token = env.folder / "token"
    token.write_text("wrong")
    proxy = await env.new_proxy()
    await env.node("alpha")
    kubeconfig = env.folder / "kubeconfig"
    objects.write_kubeconfig(kubeconfig, proxy.url, {"tokenFile": str(token)})
    daemon = await env.start(kubeconfig=kubeconfig)
    await daemon.says(REFUSED)
    refused = await proxy.wait_for(Match(), count=13)
    assert {exchange.status for exchange in refused} <= {401, None}
    # Every half second or slower the Lease, and now and then its watch.
    assert refused[12].started_s - refused[0].started_s >= 2.0
    token.write_text(env.token)
    await env.cluster.initialised("alpha")

    assert len(daemon.lines(REFUSED)) == 1
    assert len(daemon.lines("became leader")) == 1
