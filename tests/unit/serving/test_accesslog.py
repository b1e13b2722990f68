"""The access log: refused requests and privileged requests."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import log
from ccm.serving import handler_chain
from ccm.serving.authentication import Authenticator, UserInfo
from ccm.serving.handler_chain import DelegatingAuthorizer, HandlerChain, PathSet
from ccm.serving.http import Caller, Request, Response, text
from ccm.testing.clock import jump
from tests.unit.serving.callers import Reviewer, request

pytestmark = pytest.mark.virtual_time

TOKEN = {"Authorization": "Bearer right-token"}
WRONG = {"Authorization": "Bearer wrong-token"}
PATHS = ("/metrics", "/configz")
HERE = Caller(address="192.0.2.7:1234")

Line = MutableMapping[str, Any]


@pytest.fixture(autouse=True, params=[1])
def _verbose(request: pytest.FixtureRequest) -> Iterator[None]:
    before = log.verbosity()
    log.set_verbosity(request.param, ())
    yield
    log.set_verbosity(before, ())


async def page(_asked: Request) -> Response:
    return text("a page")


def site(*, answers: bool = True) -> HandlerChain:
    reviewer = Reviewer(
        {"right-token": UserInfo(name="alice")},
        [("alice", path) for path in PATHS] if answers else None,
    )
    return HandlerChain(
        dict.fromkeys(("/healthz", *PATHS), page),
        authenticator=Authenticator(reviewer.review_token, token_ttl_s=10.0),
        authorizer=DelegatingAuthorizer(
            reviewer.review_access, PathSet(["/healthz"]), allowed_ttl_s=10.0, denied_ttl_s=10.0
        ),
    )


async def told(chain: HandlerChain, *asked: Request) -> list[Line]:
    with capture_logs() as lines:
        for each in asked:
            await chain.answer(each)
    return list(lines)


def only(lines: list[Line]) -> dict[str, Any]:
    """Return the only line without the common fields."""
    (line,) = lines
    return {key: line[key] for key in line if key not in ("logger", "_caller", "log_level", "v")}


async def test_flood_of_one_kind_of_request_is_limited_and_hides_no_other() -> None:
    chain = site()
    flood = [request(f"/metrics/{number}") for number in range(500)]

    lines = await told(chain, *flood, request("/configz", headers=TOKEN))
    jump(1.0)
    later = await told(chain, *flood[:1])

    assert [line["event"] for line in lines].count("request forbidden") == handler_chain.BURST
    assert lines[-1]["event"] == "privileged request"
    assert later[0]["left_out"] == len(flood) - handler_chain.BURST


@pytest.mark.parametrize(
    ("path", "headers", "facts"),
    [
        (
            "/healthz",
            WRONG,
            {"event": "request rejected", "status": 401, "error": "the token is invalid"},
        ),
        ("/metrics", {}, {"event": "request forbidden", "status": 403, "user": "system:anonymous"}),
        ("/secret", TOKEN, {"event": "request forbidden", "status": 403, "user": "alice"}),
    ],
    ids=["a wrong proof", "nobody", "somebody without the right"],
)
async def test_refused_request_is_logged_with_its_caller_and_path(
    path: str, headers: dict[str, str], facts: dict[str, Any]
) -> None:
    asked = request(path, headers=headers, query=[("token", "in-the-query")], caller=HERE)

    (line,) = await told(site(), asked)

    common = {"verb": "get", "path": path, "client": HERE.address}
    assert only([line]) == common | facts
    assert line["v"] == 1
    assert not any(secret in str(line) for secret in ("in-the-query", "wrong-token", "right-token"))


async def test_long_paths_and_methods_are_truncated_in_the_log() -> None:
    asked = request("/" + "x" * 10_000, method="Y" * 10_000)

    assert len(str(await told(site(), asked))) < 1500
