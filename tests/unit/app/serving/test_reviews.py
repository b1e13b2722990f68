"""Questions to the API server about callers: what is sent, understood and repeated."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.app.trust import (
    ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    TRIES,
    Reviews,
)
from ccm.base import metrics
from ccm.kube import errors
from ccm.serving.authentication import ReviewFailed, User
from ccm.serving.handler_chain import (
    Decision,
    Question,
)
from tests.unit.app.serving.api import Api

pytestmark = pytest.mark.virtual_time

ALICE = User(name="alice", uid="7", groups=("devs",), extra=(("scope", ("a", "b")),))
DOWN = errors.Unreachable("refused", kind="refused")
REFUSED = errors.Forbidden(status=403, reason="Forbidden", message="not you")
BUSY = errors.TooManyRequests(status=429, reason="TooManyRequests", message="later")


def reviews(*answers: Any) -> tuple[Reviews, Api]:
    """Who asks, and who answers: with the status of a review, as it is told, or not at all."""
    raw = [{"status": one} if isinstance(one, dict) else one for one in answers]
    api = Api(*raw)
    return Reviews(api), api


def counted(kind: str, code: str) -> float:
    name = f"apiserver_delegated_{kind}_request_total"
    return metrics.REGISTRY.get_sample_value(name, {"code": code}) or 0.0


async def test_a_token_review_tells_the_owner() -> None:
    user = {"username": "alice", "uid": "7", "groups": ["devs"], "extra": {"scope": ["a", "b"]}}
    asks, api = reviews({"authenticated": True, "user": user})
    before = counted("authn", "201")

    assert await asks.review_token("token") == ALICE

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
    assert await reviews(status)[0].review_token("token") is None


async def test_an_owner_may_be_a_name_alone() -> None:
    asks, _ = reviews({"authenticated": True, "user": {"username": "bob", "groups": None}})

    assert await asks.review_token("token") == User(name="bob")


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
    asks, api = reviews(status)

    answer = await asks.review_access(Question(user=ALICE, verb="get", path="/metrics"))

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
    asks, api = reviews(*[trouble] * (TRIES - 1), {"authenticated": False})

    assert await asks.review_token("token") is None
    assert len(api.sent) == TRIES


@pytest.mark.parametrize(
    ("trouble", "code", "tries"), [(DOWN, "<error>", TRIES), (REFUSED, "403", 1)]
)
async def test_some_time_it_is_given_up_and_a_refusal_is_not_repeated(
    trouble: errors.KubeError, code: str, tries: int
) -> None:
    asks, api = reviews(trouble)
    before = counted("authz", code)

    with pytest.raises(ReviewFailed, match=str(trouble).split()[-1].strip("()")):
        await asks.review_access(Question(user=ALICE, verb="get", path="/metrics"))

    assert len(api.sent) == tries
    assert counted("authz", code) == before + tries


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"status": null}', b"[]"])
async def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    with pytest.raises(ReviewFailed, match="makes no sense"):
        await reviews(answer)[0].review_token("token")
