"""Who a client acts as."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ccm.app.clients import EVENTS, Accounts, Clients
from ccm.base.credentials import KeyPair
from ccm.base.drain import Drain
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Aborted, Context
from ccm.cloud.config import READER
from ccm.kube.credentials import Fixed, TlsSettings, bearer
from ccm.model.times import format_time
from ccm.testing import builders
from tests.handclock import HandClock
from tests.unit.kube.proxy import connect, refuses, says, serve


async def test_with_separate_accounts_controllers_act_as_themselves(hand: HandClock) -> None:
    token = {"status": {"token": "theirs", "expirationTimestamp": format_time(hand.now())}}
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours"))) as transport,
        Accounts(transport) as accounts,
    ):
        clients = Clients(transport, None, accounts=accounts)
        server.will(says(token))

        await clients.named("node-controller").raw("GET", "/one")
        await clients.named("node-controller").raw("GET", "/two")
        await clients.named(EVENTS).raw("GET", "/three")
        await clients.lease(10.0).raw("GET", "/four")
        await clients.client(READER).request("GET", "/five")

    asked, *others = server.seen
    assert asked.target.endswith("/kube-system/serviceaccounts/node-controller/token")
    assert [(one.target, one.headers["Authorization"]) for one in others] == [
        ("/one", "Bearer theirs"),
        ("/two", "Bearer theirs"),
        ("/three", "Bearer ours"),
        ("/four", "Bearer ours"),
        ("/five", "Bearer ours"),
    ]
    agent = others[0].headers["User-Agent"]
    assert agent.endswith("/system:serviceaccount:kube-system:node-controller")


async def test_without_separate_accounts_everybody_acts_as_we_do() -> None:
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours"))) as transport,
    ):
        await Clients(transport, None).client("acme").request("GET", "/one")

    assert server.seen[0].headers["Authorization"] == "Bearer ours"
    assert server.seen[0].headers["User-Agent"].endswith("/acme")


async def test_a_provider_reads_what_the_model_does_not_hold() -> None:
    web = {"metadata": {"uid": "uid-default-web"}, "spec": {"trafficDistribution": "PreferClose"}}
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours"))) as transport,
    ):
        context = Context(clients=Clients(transport, None))
        server.will(says(web), refuses(404, "NotFound"))

        assert await context.whole(builders.service()) == web
        with pytest.raises(Aborted, match="default/web is gone"):
            await context.whole(builders.service())

    assert server.seen[0].path == "/api/v1/namespaces/default/services/web"


async def test_accounts_follow_what_we_trust() -> None:
    """Another authority that we were given is theirs too, and our own certificate is not."""
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours"))) as transport,
        Accounts(transport) as accounts,
    ):
        theirs, user = accounts.of("node-controller")
        ours = KeyPair(chain=b"ours", key=b"ours")
        fresh = TlsSettings(authorities=b"fresh", certificate=ours)
        transport.adopt(replace(transport.config, tls=fresh))

        accounts.follow()

        assert theirs.config.tls == TlsSettings(authorities=b"fresh")
        assert accounts.of("node-controller") == (theirs, user)


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_changes_of_controllers_wait_for_their_end_and_those_of_events_do_not(
    method: str,
) -> None:
    """While the daemon stops: a write under way is waited for; events and the Lease go on."""
    stopping = Drain()
    stopping.govern()
    async with serve() as server, connect(server.url) as transport:
        clients = Clients(transport, None)
        assert await stopping.drained(1.0)

        await clients.named("node-controller").raw("GET", "/read")
        await clients.named(EVENTS).raw("POST", "/event", body=b"{}")
        await clients.lease(10.0).raw("PUT", "/lease", body=b"{}")
        write = spawn(clients.named("node-controller").raw(method, "/write"), name="write")
        await asyncio.sleep(0.05)

        assert [one.target for one in server.seen] == ["/read", "/event", "/lease"]
        await cancel_and_join(write)
