"""Separate service accounts, at an API server that hands out their tokens."""

from __future__ import annotations

from tests import servers
from tests.manifests import account
from tests.scenario import harness
from tests.scenario.harness import Environment

ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
USER = "system:serviceaccount:kube-system:node-controller"


@servers.only_real
async def test_controllers_act_under_an_account_of_their_own(env: Environment) -> None:
    """The account is made, its token works, and nodes are written in its name."""
    async with servers.connect(env.server) as administrator:
        await account.grant_separate_accounts(administrator)
    daemon = await env.start_leading(flags={"use-service-account-credentials": "true"})
    await env.node("a")

    await env.cluster.initialised("a")

    writes = env.proxy.requests(harness.NODE_WRITE)
    assert {one.headers["user-agent"].rpartition("/")[2] for one in writes} == {USER}
    assert len({one.headers["authorization"] for one in writes}) == 1
    assert await env.cluster.get(f"{ACCOUNTS}/node-controller") is not None
    assert await daemon.stop() == 0
