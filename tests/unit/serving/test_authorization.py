"""Who may: masters, open paths, the API server's word, and its memory."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base.tasks import spawn
from ccm.serving.authentication import ANONYMOUS, ReviewFailed, User
from ccm.serving.handler_chain import (
    ANONYMOUS_AT_ONCE,
    Authorizer,
    Decision,
    Paths,
    Question,
)
from ccm.testing.clock import jump
from tests.unit.serving.callers import Reviewer

pytestmark = pytest.mark.virtual_time

OPEN = ("/healthz", "/readyz", "/livez", "/open/*")
ALICE = User(name="alice", groups=("system:authenticated",))


def question(path: str, user: User = ALICE, verb: str = "get") -> Question:
    return Question(user=user, verb=verb, path=path)


def authorizer(reviewer: Reviewer | None) -> Authorizer:
    return Authorizer(reviewer, Paths(OPEN), allowed_ttl_s=10.0, denied_ttl_s=5.0)


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
    assert (path in Paths(OPEN)) is covered
    assert (path in Paths([pattern.removeprefix("/") for pattern in OPEN])) is covered


def test_a_star_alone_covers_everything_and_nothing_covers_nothing() -> None:
    assert "/any/where" in Paths(["*"])
    assert "/any/where" not in Paths([])


async def test_masters_may_all_and_open_paths_are_for_all() -> None:
    reviewer = Reviewer(allowed=())
    asked = authorizer(reviewer)
    root = User(name="root", groups=("system:masters",))

    assert (await asked.decide(question("/metrics", root, "delete"))).allowed
    assert (await asked.decide(question("/healthz", ANONYMOUS))).allowed
    assert reviewer.asked == []


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


async def test_another_user_verb_or_path_is_another_question() -> None:
    reviewer = Reviewer(allowed=[("alice", "/metrics")])
    asked = authorizer(reviewer)
    group = User(name="alice", groups=("more",))

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


async def test_a_crowd_of_nobodies_keeps_nobody_waiting_who_is_somebody() -> None:
    answer, asked = asyncio.Event(), []

    class Slow(Reviewer):
        async def review_access(self, question: Question) -> Decision:
            asked.append(question.user.name)
            if question.user == ANONYMOUS:
                await answer.wait()
            return Decision(allowed=True)

    judge = authorizer(Slow())
    crowd = [
        spawn(judge.decide(question(f"/{number}", ANONYMOUS)), name="nobody")
        for number in range(2 * ANONYMOUS_AT_ONCE)
    ]
    await asyncio.sleep(1.0)

    assert (await judge.decide(question("/metrics"))).allowed
    assert len(asked) == ANONYMOUS_AT_ONCE + 1
    answer.set()
    await asyncio.gather(*crowd)
    assert len(asked) == 2 * ANONYMOUS_AT_ONCE + 1
