"""Callers: identified, authorized, and the answers about them that are remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from ccm.base import clock, metrics
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving.authentication import (
    ANONYMOUS,
    MAX_NEW_TOKEN_REVIEWS,
    MAX_NEW_TOKEN_REVIEWS_PER_ORIGIN,
    MAX_VALID_TOKENS,
    Authenticator,
    CABundle,
    FrontProxies,
    InvalidCredentials,
    ReviewFailed,
    Trust,
    UserInfo,
)
from ccm.serving.handler_chain import (
    MAX_ANONYMOUS_REVIEWS,
    AccessAttributes,
    AccessDecision,
    DelegatingAuthorizer,
    PathSet,
)
from ccm.serving.http import Caller, Request
from ccm.serving.ttl_cache import ENTRY_OVERHEAD, SWEEP_S, LRUStore, TTLCache, digest
from ccm.testing.clock import jump
from tests.unit.serving.callers import Reviewer, certified, request

pytestmark = pytest.mark.virtual_time


CLIENTS = CABundle(pem=b"clients", members=frozenset({b"clients-ca"}))
PROXIES = CABundle(pem=b"proxies", members=frozenset({b"proxies-ca"}))
TRUST = Trust(
    clients=CLIENTS,
    proxies=FrontProxies(
        authorities=PROXIES,
        names=("front",),
        user_headers=("x-remote-user", "x-other-user"),
        uid_headers=("x-remote-uid",),
        group_headers=("x-remote-group", "x-other-group"),
        extra_prefixes=("x-remote-extra-",),
    ),
)
ALICE = UserInfo(name="alice", uid="7", groups=("devs",), extra=(("scope", ("a", "b")),))
BOB_BY_CERTIFICATE = certified("bob", b"clients-ca", groups=["ops", "devs"])


def authenticator(reviewer: Reviewer | None = None, *, ttl_s: float = 10.0) -> Authenticator:
    made = Authenticator(reviewer.review_token if reviewer else None, token_ttl_s=ttl_s)
    made.trust = TRUST
    return made


def bearer(token: str) -> Request:
    return request(headers={"Authorization": f"Bearer {token}"})


@pytest.mark.row("serving-matrix-05")
@pytest.mark.parametrize("reviewer", [Reviewer({}), None], ids=["unknown", "nobody to ask"])
async def test_a_wrong_token_is_refused(reviewer: Reviewer | None) -> None:
    with pytest.raises(InvalidCredentials):
        await authenticator(reviewer).identify(bearer("wrong"))


@pytest.mark.row("serving-matrix-07")
@pytest.mark.parametrize("token", ["right", "wrong"])
async def test_an_answer_about_a_token_is_remembered_for_a_while(token: str) -> None:
    reviewer = Reviewer({"right": ALICE})
    asked = authenticator(reviewer)

    async def ask() -> bool:
        try:
            await asked.identify(bearer(token))
        except InvalidCredentials:
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
    with pytest.raises(InvalidCredentials):
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

    assert await authenticator().identify(told) == UserInfo(
        name="carol",
        uid="9",
        groups=("a", "b", "c", "system:authenticated"),
        extra=(("scope", ("one", "two")), ("example.com/key", ("three",))),
    )


async def test_headers_of_a_proxy_with_another_name_are_refused() -> None:
    told = request(headers={"X-Remote-User": "root"}, caller=certified("back", b"proxies-ca"))

    with pytest.raises(InvalidCredentials):
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
        with pytest.raises(InvalidCredentials, match="expired"):
            await asked.identify(each)


async def test_a_token_that_is_no_text_is_refused_without_a_question() -> None:
    reviewer = Reviewer({"caf?": ALICE})
    asked = authenticator(reviewer)
    await asked.identify(bearer("caf?"))

    with pytest.raises(InvalidCredentials):
        await asked.identify(bearer("caf\udce9"))

    assert reviewer.asked == ["caf?"]


def came(sent: Request, origin: str) -> Request:
    return replace(sent, caller=Caller(origin=origin))


async def test_only_so_many_good_tokens_are_remembered() -> None:
    """The one unused for longest is forgotten first."""
    names = [str(number) for number in range(MAX_VALID_TOKENS + 1)]
    asked = authenticator(Reviewer(dict.fromkeys(names, ALICE)), ttl_s=0)
    known = Mock()
    for name in (*names[:-1], names[0], names[-1]):
        await asked.identify(bearer(name))

    await asked.identify(replace(bearer(names[0]), mark_authenticated=known))
    kept = known.call_count
    await asked.identify(replace(bearer(names[1]), mark_authenticated=known))

    assert (kept, known.call_count) == (1, 1)


async def test_authorities_are_told_by_their_certificates() -> None:
    with pytest.raises(ValueError, match="no certificate found"):
        CABundle.parse(b"nonsense")
    with pytest.raises(ValueError, match="is truncated"):
        CABundle.parse(b"-----BEGIN CERTIFICATE-----\nAAAA\n")


OPEN = ("/healthz", "/readyz", "/livez", "/open/*")
AUTHORIZATION_ALICE = UserInfo(name="alice", groups=("system:authenticated",))


def question(
    path: str, user: UserInfo = AUTHORIZATION_ALICE, verb: str = "get"
) -> AccessAttributes:
    return AccessAttributes(user=user, verb=verb, path=path)


def authorizer(reviewer: Reviewer | None) -> DelegatingAuthorizer:
    review = reviewer.review_access if reviewer else None
    return DelegatingAuthorizer(review, PathSet(OPEN), allowed_ttl_s=10.0, denied_ttl_s=5.0)


@pytest.mark.row("serving-matrix-05")
async def test_without_anybody_to_ask_the_rest_is_forbidden() -> None:
    assert await authorizer(None).decide(question("/metrics")) == AccessDecision(allowed=False)


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


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Basic eDp5"}],
)
async def test_who_shows_nothing_is_anonymous(headers: dict[str, str]) -> None:
    assert await authenticator().identify(request(headers=headers)) == ANONYMOUS


@pytest.mark.parametrize(
    ("subject", "user"),
    [
        ("organizationName=ops organizationName=devs commonName=bob", {"groups": ("ops", "devs")}),
        ("commonName=bob 1.3.6.1.4.1.57683.2=uid-1", {"uid": "uid-1"}),
        ("commonName=admin commonName=bob", {}),
    ],
    ids=["groups", "a UID", "the last name counts"],
)
async def test_whom_a_certificate_names(subject: str, user: dict[str, Any]) -> None:
    certificate = {"subject": tuple((tuple(fact.split("=")),) for fact in subject.split())}
    caller = Caller(certificate=certificate, chain=(b"leaf", b"clients-ca"))

    found = await authenticator().identify(request(caller=caller))

    assert found == UserInfo(name="bob", **user).authenticated()
    assert "system:authenticated" in found.groups


@pytest.mark.parametrize(
    "caller",
    [
        pytest.param(None, id="without a certificate"),
        pytest.param(BOB_BY_CERTIFICATE, id="with a client's"),
        pytest.param(certified("front", b"clients-ca"), id="with a client's of a proxy's name"),
    ],
)
async def test_headers_of_anybody_else_mean_nothing(caller: Caller | None) -> None:
    told = request(
        headers={"X-Remote-User": "root", "X-Remote-Group": "system:masters"},
        caller=caller,
    )

    user = await authenticator().identify(told)

    assert user.name != "root"
    assert "system:masters" not in user.groups


async def test_without_names_every_certified_proxy_is_trusted() -> None:
    asked = authenticator()
    asked.trust = Trust(
        proxies=FrontProxies(authorities=PROXIES, user_headers=("x-remote-user",)),
    )
    told = request(headers={"X-Remote-User": "carol"}, caller=certified("any", b"proxies-ca"))

    assert (await asked.identify(told)).name == "carol"


async def test_a_token_that_cannot_be_reviewed_is_refused_and_reviewed_again() -> None:
    reviewer = Reviewer(None)
    asked = authenticator(reviewer)

    for _ in range(2):
        with pytest.raises(InvalidCredentials, match="could not be reviewed"):
            await asked.identify(bearer("right"))

    assert reviewer.asked == ["right", "right"]


class Crowded(Reviewer):
    """An API server that answers about good tokens alone."""

    async def review_token(self, token: str) -> UserInfo | None:
        user = await super().review_token(token)
        if user is None:
            await asyncio.Event().wait()
        return user


async def test_a_crowd_of_wrong_tokens_lets_a_newcomer_from_elsewhere_in() -> None:
    reviewer = Crowded({"right": ALICE})
    asked = authenticator(reviewer)
    crowd = [
        spawn(asked.identify(came(bearer(f"wrong-{number}"), "10.0.0.1")), name="wrong")
        for number in range(2 * MAX_NEW_TOKEN_REVIEWS)
    ]
    await asyncio.sleep(1.0)

    async with asyncio.timeout(1.0):
        assert (await asked.identify(came(bearer("right"), "10.0.0.2"))).name == "alice"
    assert len(reviewer.asked) == MAX_NEW_TOKEN_REVIEWS_PER_ORIGIN + 1
    await cancel_and_join(*crowd)


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("/healthz", True),
        ("/healthz/", False),
        ("/healthz/ping", False),
        ("/healthzz", False),
        ("/open/", True),
        ("/open/a/b", True),
        ("/open", False),
        ("/metrics", False),
        ("/", False),
    ],
)
def test_paths_are_exact_or_beginnings(path: str, covered: bool) -> None:
    assert (path in PathSet(OPEN)) is covered
    assert (path in PathSet([pattern.removeprefix("/") for pattern in OPEN])) is covered


async def test_masters_may_all_and_open_paths_are_for_all() -> None:
    reviewer = Reviewer(allowed=())
    asked = authorizer(reviewer)
    root = UserInfo(name="root", groups=("system:masters",))

    assert (await asked.decide(question("/metrics", root, "delete"))).allowed
    assert (await asked.decide(question("/healthz", ANONYMOUS))).allowed
    assert reviewer.asked == []


async def test_another_user_verb_or_path_is_another_question() -> None:
    reviewer = Reviewer(allowed=[("alice", "/metrics")])
    asked = authorizer(reviewer)
    group = UserInfo(name="alice", groups=("more",))

    for each in (
        question("/metrics"),
        question("/metrics", verb="post"),
        question("/configz"),
        question("/metrics", group),
    ):
        await asked.decide(each)

    assert len(reviewer.asked) == 4


async def test_no_answer_is_not_remembered() -> None:
    reviewer = Reviewer(allowed=None)
    asked = authorizer(reviewer)

    for _ in range(2):
        with pytest.raises(ReviewFailed):
            await asked.decide(question("/metrics"))

    assert len(reviewer.asked) == 2


def test_a_key_is_short_however_long_the_question() -> None:
    """And no two questions share one, whatever characters they are made of."""
    keys = {digest(("get", "/" + text)) for text in ("a", "b", "\udcff", "x" * 100_000)}

    assert {len(key) for key in keys} == {32}
    assert len(keys) == 4


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


async def test_a_crowd_of_wrong_tokens_keeps_nobody_waiting_whose_token_was_good() -> None:
    reviewer = Crowded({"right": ALICE})
    asked = authenticator(reviewer, ttl_s=0)
    await asked.identify(bearer("right"))
    crowd = [
        spawn(asked.identify(came(bearer(f"wrong-{number}"), f"10.0.0.{number}")), name="wrong")
        for number in range(2 * MAX_NEW_TOKEN_REVIEWS)
    ]
    await asyncio.sleep(1.0)

    async with asyncio.timeout(1.0):
        assert (await asked.identify(bearer("right"))).name == "alice"
    assert len(reviewer.asked) == 1 + MAX_NEW_TOKEN_REVIEWS + 1
    await cancel_and_join(*crowd)


async def test_whose_token_was_good_keeps_the_connection_before_the_review() -> None:
    """A token that is good no more means nothing."""
    reviewer = Reviewer({"right": ALICE})
    asked = authenticator(reviewer, ttl_s=0)
    known = Mock()
    right = replace(bearer("right"), mark_authenticated=known)

    await asked.identify(right)
    first = known.call_count
    reviewer.tokens = None
    with pytest.raises(InvalidCredentials, match="could not be reviewed"):
        await asked.identify(right)
    unanswered = known.call_count
    reviewer.tokens = {}
    for _ in range(2):
        with pytest.raises(InvalidCredentials, match="invalid"):
            await asked.identify(right)

    assert (first, unanswered, known.call_count) == (0, 1, 2)


async def test_a_crowd_of_nobodies_keeps_nobody_waiting_who_is_somebody() -> None:
    answer, asked = asyncio.Event(), []

    class Slow(Reviewer):
        async def review_access(self, question: AccessAttributes) -> AccessDecision:
            asked.append(question.user.name)
            if question.user == ANONYMOUS:
                await answer.wait()
            return AccessDecision(allowed=True)

    judge = authorizer(Slow())
    crowd = [
        spawn(judge.decide(question(f"/{number}", ANONYMOUS)), name="nobody")
        for number in range(2 * MAX_ANONYMOUS_REVIEWS)
    ]
    await asyncio.sleep(1.0)

    assert (await judge.decide(question("/metrics"))).allowed
    assert len(asked) == MAX_ANONYMOUS_REVIEWS + 1
    answer.set()
    await asyncio.gather(*crowd)
    assert len(asked) == 2 * MAX_ANONYMOUS_REVIEWS + 1


async def test_who_leaves_does_not_take_the_answer_away() -> None:
    """Those who ask at the same time get the same answer."""
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0, name="test")
    source.let.clear()
    leaves = asyncio.create_task(memory.get("key", source))
    stay = [asyncio.create_task(memory.get("key", source)) for _ in range(2)]
    await asyncio.sleep(0)

    leaves.cancel()
    await asyncio.sleep(0)
    source.let.set()

    assert await asyncio.gather(*stay) == [1, 1]
    assert leaves.cancelled()


async def test_a_question_that_nobody_waits_for_ends() -> None:
    """And who comes after that asks anew."""
    source, memory = Source(), TTLCache[str, int](lambda _: 9.0, name="test")
    source.let.clear()
    before = asyncio.all_tasks()
    leave = [asyncio.create_task(memory.get("key", source)) for _ in range(2)]
    await asyncio.sleep(1.0)

    for each in leave:
        each.cancel()
    await asyncio.wait(leave)
    comes = asyncio.create_task(memory.get("key", source))
    await asyncio.sleep(1.0)
    under_way = asyncio.all_tasks() - before - {comes}
    source.let.set()

    assert await comes == source.asked == 2
    assert len(under_way) == 1


async def test_nothing_is_kept_for_no_time() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 0.0, name="test")

    assert [await memory.get("key", source), await memory.get("key", source)] == [1, 2]


async def test_an_answer_whose_time_is_over_leaves_though_nobody_asks() -> None:
    shelf = LRUStore()
    memory = TTLCache[str, str](float, name="leaving", store=shelf)

    for seconds in ("1", "15"):
        await memory.get(seconds, AsyncMock(return_value=seconds))
    both = shelf.size
    await asyncio.sleep(SWEEP_S + 1)
    one = shelf.size
    await asyncio.sleep(SWEEP_S)

    assert both > 2 * ENTRY_OVERHEAD
    assert ENTRY_OVERHEAD < one < both
    assert shelf.size == 0
    labels = {"cache": "leaving"}
    assert metrics.REGISTRY.get_sample_value("ccm_serving_cache_bytes", labels) == 0


async def test_the_answer_unused_for_longest_is_forgotten_first_over_all_caches() -> None:
    source = Source()
    shelf = LRUStore(2 * ENTRY_OVERHEAD + 10)
    memory = TTLCache[str, int](lambda _: 9.0, name="test", store=shelf)
    other = TTLCache[str, int](lambda _: 9.0, name="other", store=shelf)

    await memory.get("a", source)
    await memory.get("b", source)
    await memory.get("a", source)
    await other.get("c", source)

    assert await memory.get("a", source) == 1
    assert await memory.get("b", source) == 4
    assert shelf.size <= 2 * ENTRY_OVERHEAD + 10
