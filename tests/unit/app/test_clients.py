"""Who a client acts as."""

from __future__ import annotations

import pytest

from ccm.app.accounts import Accounts
from ccm.app.clients import EVENTS, Clients
from ccm.kube.credentials import Fixed, bearer
from ccm.model.times import format_time
from tests.unit.kube.wire import HandClock, connect, says, serve


@pytest.mark.asyncio
async def test_with_separate_accounts_controllers_act_as_themselves() -> None:
    clock = HandClock()
    token = {"status": {"token": "theirs", "expirationTimestamp": format_time(clock.now())}}
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours")), clock=clock) as wire,
        Accounts(wire, clock) as accounts,
    ):
        clients = Clients(wire, None, clock, accounts=accounts)
        server.will(says(token))

        await clients.named("node-controller").raw("GET", "/one")
        await clients.named("node-controller").raw("GET", "/two")
        await clients.named(EVENTS).raw("GET", "/three")
        await clients.lease(10.0).raw("GET", "/four")

    asked, *others = server.seen
    assert asked.target.endswith("/kube-system/serviceaccounts/node-controller/token")
    assert [(one.target, one.headers["Authorization"]) for one in others] == [
        ("/one", "Bearer theirs"),
        ("/two", "Bearer theirs"),
        ("/three", "Bearer ours"),
        ("/four", "Bearer ours"),
    ]
    assert (
        others[0]
        .headers["User-Agent"]
        .endswith("/system:serviceaccount:kube-system:node-controller")
    )


@pytest.mark.asyncio
async def test_without_separate_accounts_everybody_acts_as_we_do() -> None:
    async with (
        serve() as server,
        connect(server.url, credentials=Fixed(bearer("ours"))) as wire,
    ):
        await Clients(wire, None).client("acme").request("GET", "/one")

    assert [one.headers["Authorization"] for one in server.seen] == ["Bearer ours"]
    assert server.seen[0].headers["User-Agent"].endswith("/acme")
