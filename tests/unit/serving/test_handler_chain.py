"""The way of a request through the filters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ccm.serving.authentication import Authenticator, User
from ccm.serving.handler_chain import (
    Authorizer,
    HandlerChain,
    Paths,
)
from ccm.serving.http import Request, Response, text
from tests.unit.serving.callers import Reviewer, request

TOKEN = {"Authorization": "Bearer right"}
RIGHTS = [("alice", "/page"), ("alice", "/folder/below"), ("alice", "/nowhere")]


async def page(asked: Request) -> Response:
    return text(f"page of {asked.path}")


def site(*, rights: list[tuple[str, str]] | None = RIGHTS) -> HandlerChain:
    reviewer = Reviewer({"right": User(name="alice")}, rights)
    return HandlerChain(
        {"/page": page, "/folder/": page, "/open": page},
        authenticator=Authenticator(reviewer, token_ttl_s=10.0),
        authorizer=Authorizer(reviewer, Paths(["/open"]), allowed_ttl_s=10.0, denied_ttl_s=10.0),
    )


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/open", {}, 200),
        ("/page", TOKEN, 200),
        ("/page", {}, 403),
        ("/page", {"Authorization": "Bearer wrong"}, 401),
        ("/open", {"Authorization": "Bearer wrong"}, 401),
        ("/folder/below", TOKEN, 200),
        ("/nowhere", TOKEN, 404),
        ("/nowhere", {}, 403),
        ("/page/", TOKEN, 403),
    ],
)
async def test_each_request_gets_its_status_and_is_never_cached(
    path: str, headers: dict[str, str], status: int
) -> None:
    answer = await site().answer(request(path, headers=headers))

    assert answer.status == status
    assert ("Cache-Control", "no-cache, private") in answer.headers


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [("/page", TOKEN, 1), ("/open", {}, 0), ("/secret", TOKEN, 0)],
    ids=["with rights", "anybody", "without rights"],
)
async def test_who_has_a_right_is_known_and_keeps_its_connection(
    path: str, headers: dict[str, str], expected: int
) -> None:
    told: list[bool] = []

    await site().answer(replace(request(path, headers=headers), known=lambda: told.append(True)))

    assert len(told) == expected


async def test_a_refusal_tells_the_reason_of_the_api_server() -> None:
    answer = await site().answer(request("/secret", method="PUT", headers=TOKEN))

    told = json.loads(answer.body)
    assert told["message"] == ('forbidden: User "alice" cannot put path "/secret": no such right')
    assert (told["reason"], told["code"], told["details"]) == ("Forbidden", 403, {})


@pytest.mark.row("serving-matrix-06")
async def test_without_an_answer_about_rights_it_is_our_error() -> None:
    answer = await site(rights=None).answer(request("/page", headers=TOKEN))

    assert answer.status == 500
    assert answer.body.startswith(b'Internal Server Error: "/page": ')
