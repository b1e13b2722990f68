"""Tokens of other service accounts: asked for once, renewed in time, kept when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio

from ccm.base.credentials import KeyPair
from ccm.kube import errors, serviceaccount
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TlsSettings, bearer
from ccm.kube.serviceaccount import ServiceAccount
from ccm.model.times import format_time
from tests.handclock import HandClock
from tests.unit.kube.proxy import Answer, Server, connect, cuts, refuses, says

ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
TOKEN = f"{ACCOUNTS}/node-controller/token"


@pytest_asyncio.fixture
async def account(server: Server, hand: HandClock) -> AsyncIterator[ServiceAccount]:
    credentials = Fixed(bearer("our-own"))
    async with connect(server.url, credentials=credentials) as transport:
        yield ServiceAccount(Client(transport), namespace="kube-system", name="node-controller")


def token(hand: HandClock, text: str, life_s: float = 3600) -> Answer:
    expires = format_time(hand.now() + timedelta(seconds=life_s))
    return says({"status": {"token": text, "expirationTimestamp": expires}}, status=201)


def sent(server: Server) -> list[tuple[str, str]]:
    return [(seen.method, seen.target) for seen in server.seen]


async def test_what_does_not_exist_is_made(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    missing, made = refuses(404, "NotFound"), refuses(409, "AlreadyExists")
    # Somebody else may make the account at the same time.
    server.will(missing, missing, says({}), made, token(hand, "theirs"))

    assert (await account.current()).header == "Bearer theirs"

    assert sent(server) == [
        ("POST", TOKEN),
        ("POST", ACCOUNTS),
        ("POST", "/api/v1/namespaces"),
        ("POST", ACCOUNTS),
        ("POST", TOKEN),
    ]
    assert server.seen[1].json["metadata"]["name"] == "node-controller"


async def test_a_token_that_cannot_be_renewed_stays_in_use(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "first"), refuses(403, "Forbidden"), token(hand, "second"))

    await account.current()
    hand.advance(3000)
    kept = [(await account.current()).header for _ in range(3)]
    hand.advance(serviceaccount.RETRY_S)
    renewed = (await account.current()).header

    assert (kept, renewed) == (["Bearer first"] * 3, "Bearer second")
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refuses(403, "Forbidden", "may not"), "may not"),
        (says({"status": {"token": ""}}), "holds no token"),
        (says({"status": {"token": "a"}}), ""),
        (says([]), ""),
    ],
    ids=["refused", "empty", "no end", "nonsense"],
)
async def test_without_any_token_nothing_is_sent(
    server: Server, account: ServiceAccount, answer: Answer, words: str
) -> None:
    server.will(*[answer] * serviceaccount.TRIES)

    with pytest.raises(errors.NoCredentials, match=f"kube-system/node-controller: .*{words}"):
        await account.current()


async def test_the_first_token_is_tried_for_a_while(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    failed: list[Answer] = [refuses(500, "InternalError"), says({}), cuts]
    server.will(*failed, token(hand, "theirs"))

    assert (await account.current()).header == "Bearer theirs"
    assert hand.naps == [0.5, 1.0, 2.0]


async def test_a_rejected_token_is_replaced_once(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "first"), token(hand, "second"))
    first = await account.current()
    hand.advance(1)
    sent_at = hand.monotonic()

    answers = [await account.rejected(first, sent_at) for _ in range(2)]

    assert answers == [True, True]
    assert len(server.seen) == 2


async def test_a_token_is_asked_for_once_with_our_own_credentials(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "theirs"))

    found = await asyncio.gather(*(account.current() for _ in range(3)))

    assert {one.header for one in found} == {"Bearer theirs"}
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", TOKEN)
    assert seen.headers["Authorization"] == "Bearer our-own"
    assert seen.json["spec"] == {"expirationSeconds": 3600}
    assert account.user == "system:serviceaccount:kube-system:node-controller"


def test_our_own_certificate_is_left_out() -> None:
    certificate = KeyPair(chain=b"chain", key=b"key")
    ours = ClusterConfig(
        server="https://host",
        credentials=Fixed(),
        tls=TlsSettings(authorities=b"ca", certificate=certificate),
    )
    theirs = Fixed(bearer("theirs"))

    acting = serviceaccount.acting_as(ours, theirs)

    assert acting == replace(ours, credentials=theirs, tls=TlsSettings(authorities=b"ca"))
