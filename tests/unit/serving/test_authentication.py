"""Callers: identified, authorized, and the answers about them that are remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from ccm.base import clock
from ccm.serving.authentication import (
    ANONYMOUS,
    GOOD_KEPT,
    Authenticator,
    Authorities,
    Proxies,
    Trust,
    Unauthorized,
    User,
)
from ccm.serving.handler_chain import Authorizer, Decision, Paths, Question
from ccm.serving.http import Caller, Request
from ccm.testing.clock import jump
from tests.unit.serving.callers import Reviewer, certified, request

pytestmark = pytest.mark.virtual_time


CLIENTS = Authorities(pem=b"clients", members=frozenset({b"clients-ca"}))
PROXIES = Authorities(pem=b"proxies", members=frozenset({b"proxies-ca"}))
TRUST = Trust(
    clients=CLIENTS,
    proxies=Proxies(
        authorities=PROXIES,
        names=("front",),
        user_headers=("x-remote-user", "x-other-user"),
        uid_headers=("x-remote-uid",),
        group_headers=("x-remote-group", "x-other-group"),
        extra_prefixes=("x-remote-extra-",),
    ),
)
ALICE = User(name="alice", uid="7", groups=("devs",), extra=(("scope", ("a", "b")),))
BOB_BY_CERTIFICATE = certified("bob", b"clients-ca", groups=["ops", "devs"])


def authenticator(reviewer: Reviewer | None = None, *, ttl_s: float = 10.0) -> Authenticator:
    made = Authenticator(reviewer, token_ttl_s=ttl_s)
    made.trust = TRUST
    return made


def bearer(token: str) -> Request:
    return request(headers={"Authorization": f"Bearer {token}"})


@pytest.mark.row("serving-matrix-05")
@pytest.mark.parametrize("reviewer", [Reviewer({}), None], ids=["unknown", "nobody to ask"])
async def test_a_wrong_token_is_refused(reviewer: Reviewer | None) -> None:
    with pytest.raises(Unauthorized):
        await authenticator(reviewer).identify(bearer("wrong"))


@pytest.mark.row("serving-matrix-07")
@pytest.mark.parametrize("token", ["right", "wrong"])
async def test_an_answer_about_a_token_is_remembered_for_a_while(token: str) -> None:
    reviewer = Reviewer({"right": ALICE})
    asked = authenticator(reviewer)

    async def ask() -> bool:
        try:
            await asked.identify(bearer(token))
        except Unauthorized:
            return False
        return True

    first = [await ask(), await ask()]
    jump(9.9)
    later = await ask()
    assert reviewer.asked == [token]
    jump(0.2)
    again = await ask()

    assert reviewer.asked == [token, token]
    assert {*first, later, again} == {token == "right"}


@pytest.mark.parametrize(
    "caller",
    [
        pytest.param(certified("bob", b"strange-ca"), id="of an authority nobody trusts"),
        pytest.param(certified("front", b"proxies-ca"), id="of a proxy that names no user"),
    ],
)
async def test_a_certificate_that_proves_nothing_is_refused(caller: Caller) -> None:
    with pytest.raises(Unauthorized):
        await authenticator().identify(request(caller=caller))


@pytest.mark.parametrize("name", ["", "system:anonymous"])
async def test_a_certificate_without_a_name_is_nobodys(name: str) -> None:
    asked = authenticator()
    asked.trust = Trust(clients=CLIENTS)

    found = await asked.identify(request(caller=certified(name, b"clients-ca")))

    assert (found.name, "system:authenticated" in found.groups) == (ANONYMOUS.name, False)


async def test_a_trusted_proxy_tells_who_asks() -> None:
    told = request(
        headers=[
            ("X-Other-User", "later"),
            ("X-Remote-User", "carol"),
            ("X-Remote-Uid", "9"),
            ("X-Remote-Group", "a"),
            ("X-Remote-Group", "b"),
            ("X-Other-Group", "c"),
            ("X-Remote-Extra-Scope", "one"),
            ("X-Remote-Extra-scope", "two"),
            ("X-Remote-Extra-example.com%2Fkey", "three"),
        ],
        caller=certified("front", b"proxies-ca"),
    )

    assert await authenticator().identify(told) == User(
        name="carol",
        uid="9",
        groups=("a", "b", "c", "system:authenticated"),
        extra=(("scope", ("one", "two")), ("example.com/key", ("three",))),
    )


async def test_headers_of_a_proxy_with_another_name_are_refused() -> None:
    told = request(headers={"X-Remote-User": "root"}, caller=certified("back", b"proxies-ca"))

    with pytest.raises(Unauthorized):
        await authenticator().identify(told)


async def test_a_certificate_whose_time_is_over_proves_nothing_on_an_old_connection() -> None:
    asked = authenticator()
    end = clock.now() + timedelta(seconds=60)
    facts = {"notAfter": end.strftime("%b %d %H:%M:%S %Y GMT")}
    bob, front = (
        Caller(certificate={**(made.certificate or {}), **facts}, chain=made.chain)
        for made in (BOB_BY_CERTIFICATE, certified("front", b"proxies-ca"))
    )
    requests = [
        request(caller=bob),
        request(caller=front, headers={"X-Remote-User": "carol"}),
    ]

    names = [(await asked.identify(each)).name for each in requests]
    jump(62)

    assert names == ["bob", "carol"]
    for each in requests:
        with pytest.raises(Unauthorized, match="expired"):
            await asked.identify(each)


async def test_a_token_that_is_no_text_is_refused_without_a_question() -> None:
    reviewer = Reviewer({"caf?": ALICE})
    asked = authenticator(reviewer)
    await asked.identify(bearer("caf?"))

    with pytest.raises(Unauthorized):
        await asked.identify(bearer("caf\udce9"))

    assert reviewer.asked == ["caf?"]


def came(sent: Request, origin: str) -> Request:
    return replace(sent, caller=Caller(origin=origin))


async def test_only_so_many_good_tokens_are_remembered() -> None:
    """The one unused for longest is forgotten first."""
    names = [str(number) for number in range(GOOD_KEPT + 1)]
    asked = authenticator(Reviewer(dict.fromkeys(names, ALICE)), ttl_s=0)
    known = Mock()
    for name in (*names[:-1], names[0], names[-1]):
        await asked.identify(bearer(name))

    await asked.identify(replace(bearer(names[0]), known=known))
    kept = known.call_count
    await asked.identify(replace(bearer(names[1]), known=known))

    assert (kept, known.call_count) == (1, 1)


async def test_authorities_are_told_by_their_certificates() -> None:
    with pytest.raises(ValueError, match="no certificate found"):
        Authorities.of(b"nonsense")
    with pytest.raises(ValueError, match="cut short"):
        Authorities.of(b"-----BEGIN CERTIFICATE-----\nAAAA\n")


OPEN = ("/healthz", "/readyz", "/livez", "/open/*")
AUTHORIZATION_ALICE = User(name="alice", groups=("system:authenticated",))


def question(path: str, user: User = AUTHORIZATION_ALICE, verb: str = "get") -> Question:
    return Question(user=user, verb=verb, path=path)


def authorizer(reviewer: Reviewer | None) -> Authorizer:
    return Authorizer(reviewer, Paths(OPEN), allowed_ttl_s=10.0, denied_ttl_s=5.0)


@pytest.mark.row("serving-matrix-05")
async def test_without_anybody_to_ask_the_rest_is_forbidden() -> None:
    assert await authorizer(None).decide(question("/metrics")) == Decision(allowed=False)


@pytest.mark.row("serving-matrix-07")
@pytest.mark.parametrize(("path", "ttl_s"), [("/metrics", 10.0), ("/configz", 5.0)])
async def test_the_answer_is_remembered_for_as_long_as_its_kind(path: str, ttl_s: float) -> None:
    reviewer = Reviewer(allowed=[("alice", "/metrics")])
    asked = authorizer(reviewer)

    answers = [await asked.decide(question(path))]
    jump(ttl_s - 0.1)
    answers.append(await asked.decide(question(path)))
    assert len(reviewer.asked) == 1
    jump(0.2)
    answers.append(await asked.decide(question(path)))

    assert len(reviewer.asked) == 2
    assert {answer.allowed for answer in answers} == {path == "/metrics"}


class Source:
    """Answers with the number of the question, once it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()
        self.let.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.let.wait()
        return number
