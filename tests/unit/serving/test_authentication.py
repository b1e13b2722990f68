"""Authentication and authorization of callers, and the caches of reviews."""

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
async def test_unknown_token_is_refused(reviewer: Reviewer | None) -> None:
    with pytest.raises(InvalidCredentials):
        await authenticator(reviewer).identify(bearer("wrong"))


@pytest.mark.row("serving-matrix-07")
@pytest.mark.parametrize("token", ["right", "wrong"])
async def test_token_review_is_cached_for_its_ttl(token: str) -> None:
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
async def test_certificate_of_an_unsuitable_ca_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidCredentials):
        await authenticator().identify(request(caller=caller))


@pytest.mark.parametrize("name", ["", "system:anonymous"])
async def test_certificate_without_a_user_name_is_anonymous(name: str) -> None:
    asked = authenticator()
    asked.trust = Trust(clients=CLIENTS)

    found = await asked.identify(request(caller=certified(name, b"clients-ca")))

    assert (found.name, "system:authenticated" in found.groups) == (ANONYMOUS.name, False)


async def test_front_proxy_headers_name_the_user() -> None:
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


async def test_front_proxy_with_a_disallowed_name_is_refused() -> None:
    told = request(headers={"X-Remote-User": "root"}, caller=certified("back", b"proxies-ca"))

    with pytest.raises(InvalidCredentials):
        await authenticator().identify(told)


async def test_expired_client_certificate_is_refused_on_an_open_connection() -> None:
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


async def test_token_that_is_no_valid_text_is_refused_without_a_review() -> None:
    reviewer = Reviewer({"caf?": ALICE})
    asked = authenticator(reviewer)
    await asked.identify(bearer("caf?"))

    with pytest.raises(InvalidCredentials):
        await asked.identify(bearer("caf\udce9"))

    assert reviewer.asked == ["caf?"]


def came(sent: Request, origin: str) -> Request:
    return replace(sent, caller=Caller(origin=origin))


async def test_number_of_remembered_valid_tokens_is_limited() -> None:
    """The least recently used token is forgotten first."""
    names = [str(number) for number in range(MAX_VALID_TOKENS + 1)]
    asked = authenticator(Reviewer(dict.fromkeys(names, ALICE)), ttl_s=0)
    known = Mock()
    for name in (*names[:-1], names[0], names[-1]):
        await asked.identify(bearer(name))

    await asked.identify(replace(bearer(names[0]), mark_authenticated=known))
    kept = known.call_count
    await asked.identify(replace(bearer(names[1]), mark_authenticated=known))

    assert (kept, known.call_count) == (1, 1)


async def test_ca_bundle_without_a_valid_certificate_is_refused() -> None:
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
async def test_paths_that_need_a_review_are_forbidden_without_a_reviewer() -> None:
    assert await authorizer(None).decide(question("/metrics")) == AccessDecision(allowed=False)


@pytest.mark.row("serving-matrix-07")
@pytest.mark.parametrize(("path", "ttl_s"), [("/metrics", 10.0), ("/configz", 5.0)])
async def test_allowed_and_denied_decisions_are_cached_for_their_own_ttl(
    path: str, ttl_s: float
) -> None:
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
async def test_caller_without_credentials_is_anonymous(headers: dict[str, str]) -> None:
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
async def test_user_is_read_from_the_certificate_subject(
    subject: str, user: dict[str, Any]
) -> None:
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
async def test_front_proxy_headers_of_other_callers_are_ignored(caller: Caller | None) -> None:
    told = request(
        headers={"X-Remote-User": "root", "X-Remote-Group": "system:masters"},
        caller=caller,
    )

    user = await authenticator().identify(told)

    assert user.name != "root"
    assert "system:masters" not in user.groups


async def test_every_certified_front_proxy_is_trusted_without_allowed_names() -> None:
    asked = authenticator()
    asked.trust = Trust(
        proxies=FrontProxies(authorities=PROXIES, user_headers=("x-remote-user",)),
    )
    told = request(headers={"X-Remote-User": "carol"}, caller=certified("any", b"proxies-ca"))

    assert (await asked.identify(told)).name == "carol"


async def test_failed_token_review_refuses_and_is_not_cached() -> None:
    reviewer = Reviewer(None)
    asked = authenticator(reviewer)

    for _ in range(2):
        with pytest.raises(InvalidCredentials, match="could not be reviewed"):
            await asked.identify(bearer("right"))

    assert reviewer.asked == ["right", "right"]


class Crowded(Reviewer):
    """API server that responds only to reviews of valid tokens."""

    async def review_token(self, token: str) -> UserInfo | None:
        user = await super().review_token(token)
        if user is None:
            await asyncio.Event().wait()
        return user


async def test_flood_of_unknown_tokens_does_not_block_other_addresses() -> None:
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
def test_always_allowed_paths_match_exactly_or_by_prefix(path: str, covered: bool) -> None:
    assert (path in PathSet(OPEN)) is covered
    assert (path in PathSet([pattern.removeprefix("/") for pattern in OPEN])) is covered


async def test_system_masters_and_open_paths_are_allowed_without_a_review() -> None:
    reviewer = Reviewer(allowed=())
    asked = authorizer(reviewer)
    root = UserInfo(name="root", groups=("system:masters",))

    assert (await asked.decide(question("/metrics", root, "delete"))).allowed
    assert (await asked.decide(question("/healthz", ANONYMOUS))).allowed
    assert reviewer.asked == []


async def test_decisions_are_cached_by_user_verb_and_path() -> None:
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


async def test_failed_access_review_is_not_cached() -> None:
    reviewer = Reviewer(allowed=None)
    asked = authorizer(reviewer)

    for _ in range(2):
        with pytest.raises(ReviewFailed):
            await asked.decide(question("/metrics"))

    assert len(reviewer.asked) == 2


def test_cache_key_has_a_fixed_length() -> None:
    """Different attributes have different keys, whatever their characters."""
    keys = {digest(("get", "/" + text)) for text in ("a", "b", "\udcff", "x" * 100_000)}

    assert {len(key) for key in keys} == {32}
    assert len(keys) == 4


class Source:
    """Source that returns the number of its call once it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()
        self.let.set()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.let.wait()
        return number


async def test_flood_of_unknown_tokens_does_not_delay_known_valid_tokens() -> None:
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


async def test_known_valid_token_marks_its_connection_before_the_review() -> None:
    """A token that is no longer valid does not mark the connection."""
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


async def test_flood_of_anonymous_callers_does_not_delay_authenticated_ones() -> None:
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


async def test_cancelled_waiter_does_not_cancel_a_shared_lookup() -> None:
    """Concurrent lookups of a key share one result."""
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


async def test_lookup_without_waiters_is_cancelled() -> None:
    """A later lookup starts a new one."""
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


async def test_ttl_of_zero_disables_caching() -> None:
    source, memory = Source(), TTLCache[str, int](lambda _: 0.0, name="test")

    assert [await memory.get("key", source), await memory.get("key", source)] == [1, 2]


async def test_expired_entries_are_removed_without_a_lookup() -> None:
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


async def test_least_recently_used_entry_of_all_caches_is_evicted_first() -> None:
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
