"""Questions to the API server about callers: what is sent, understood and repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccm.app.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, TRIES, Reviews
from ccm.base import metrics
from ccm.kube import errors
from ccm.serving.authentication import ReviewFailed
from ccm.serving.authorization import Decision, Question
from ccm.serving.identity import User

pytestmark = pytest.mark.virtual_time

ALICE = User(name="alice", uid="7", groups=("devs",), extra=(("scope", ("a", "b")),))
DOWN = errors.Unreachable("refused", kind="refused")
REFUSED = errors.Forbidden(status=403, reason="Forbidden", message="not you")
BUSY = errors.TooMany(status=429, reason="TooManyRequests", message="later")


class Api:
    """Answers with these, the last one again and again; notes what was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, str, Any]] = []

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None, retry: bool = True
    ) -> bytes:
        self.sent.append((method, path, json.loads(body or b"null")))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps({"status": answer}).encode()


def reviews(api: Api) -> Reviews:
    return Reviews(api)


def counted(kind: str, code: str) -> float:
    name = f"apiserver_delegated_{kind}_request_total"
    return metrics.REGISTRY.get_sample_value(name, {"code": code}) or 0.0


async def test_a_token_review_tells_the_owner() -> None:
    user = {"username": "alice", "uid": "7", "groups": ["devs"], "extra": {"scope": ["a", "b"]}}
    api = Api({"authenticated": True, "user": user})
    before = counted("authn", "201")

    assert await reviews(api).review_token("token") == ALICE

    ((method, path, review),) = api.sent
    assert (method, path) == ("POST", TOKEN_REVIEWS)
    assert review["kind"] == "TokenReview"
    assert review["spec"] == {"token": "token"}
    assert counted("authn", "201") == before + 1


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "error": "expired"},
        {"authenticated": False, "user": {"username": "alice"}},
    ],
)
async def test_a_token_that_is_no_good_has_no_owner(status: dict[str, Any]) -> None:
    assert await reviews(Api(status)).review_token("token") is None


async def test_an_owner_may_be_a_name_alone() -> None:
    api = Api({"authenticated": True, "user": {"username": "bob", "groups": None}})

    assert await reviews(api).review_token("token") == User(name="bob")


@pytest.mark.parametrize(
    ("status", "decision"),
    [
        ({"allowed": True, "reason": "a role"}, Decision(allowed=True, reason="a role")),
        ({"allowed": False}, Decision(allowed=False)),
        ({"allowed": True, "denied": True}, Decision(allowed=False)),
    ],
)
async def test_an_access_review_tells_the_decision(
    status: dict[str, Any], decision: Decision
) -> None:
    api = Api(status)

    answer = await reviews(api).review_access(Question(user=ALICE, verb="get", path="/metrics"))

    ((_, path, review),) = api.sent
    assert answer == decision
    assert path == ACCESS_REVIEWS
    assert review["spec"] == {
        "user": "alice",
        "uid": "7",
        "groups": ["devs"],
        "extra": {"scope": ["a", "b"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize("trouble", [DOWN, BUSY], ids=["down", "busy"])
async def test_what_got_no_answer_is_asked_again(trouble: Exception) -> None:
    api = Api(*[trouble] * (TRIES - 1), {"authenticated": False})

    assert await reviews(api).review_token("token") is None
    assert len(api.sent) == TRIES


async def test_some_time_it_is_given_up() -> None:
    api = Api(DOWN)
    before = counted("authn", "<error>")

    with pytest.raises(ReviewFailed, match="refused"):
        await reviews(api).review_token("token")

    assert len(api.sent) == TRIES
    assert counted("authn", "<error>") == before + TRIES


async def test_a_refusal_is_not_repeated() -> None:
    api = Api(REFUSED)
    before = counted("authz", "403")

    with pytest.raises(ReviewFailed, match="not you"):
        await reviews(api).review_access(Question(user=ALICE, verb="get", path="/metrics"))

    assert len(api.sent) == 1
    assert counted("authz", "403") == before + 1


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"status": null}', b"[]"])
async def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    with pytest.raises(ReviewFailed, match="makes no sense"):
        await reviews(Api(answer)).review_token("token")
