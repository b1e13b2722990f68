"""The handler chain, and the health endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

import pytest

from ccm.base import redact
from ccm.serving.authentication import Authenticator, UserInfo
from ccm.serving.handler_chain import DelegatingAuthorizer, HandlerChain, PathSet
from ccm.serving.health import PASSED, CheckResult, HealthCheck, HealthEndpoint, Slis, failed
from ccm.serving.http import Request, Response, text
from tests.unit.serving.callers import Reviewer, request

TOKEN = {"Authorization": "Bearer right"}
RIGHTS = [("alice", "/page"), ("alice", "/folder/below"), ("alice", "/nowhere")]


async def page(asked: Request) -> Response:
    return text(f"page of {asked.path}")


def site(*, rights: list[tuple[str, str]] | None = RIGHTS) -> HandlerChain:
    reviewer = Reviewer({"right": UserInfo(name="alice")}, rights)
    return HandlerChain(
        {"/page": page, "/folder/": page, "/open": page},
        authenticator=Authenticator(reviewer.review_token, token_ttl_s=10.0),
        authorizer=DelegatingAuthorizer(
            reviewer.review_access, PathSet(["/open"]), allowed_ttl_s=10.0, denied_ttl_s=10.0
        ),
    )


@pytest.mark.row("serving-matrix-06")
async def test_failed_access_review_returns_500() -> None:
    answer = await site(rights=None).answer(request("/page", headers=TOKEN))

    assert answer.status == 500
    assert answer.body.startswith(b'Internal Server Error: "/page": ')


def check(name: str, finding: CheckResult = PASSED) -> HealthCheck:
    async def look() -> CheckResult:
        return finding

    return HealthCheck(name=name, probe=look)


GOOD = (check("ping"), check("cloud", CheckResult(detail="as far as we know")))
BAD = (*GOOD, check("api-server", failed("connection\nrefused")))


def health(*checks: HealthCheck, slis: Slis | None = None) -> HealthEndpoint:
    return HealthEndpoint("readyz", lambda: checks, slis=slis or Slis())


async def answer(checks: Sequence[HealthCheck], query: str = "") -> tuple[int, list[str]]:
    asked = request("/readyz", query=parse_qsl(query, keep_blank_values=True))
    response = await health(*checks).all(asked)
    assert ("X-Content-Type-Options", "nosniff") in response.headers
    assert response.content_type == "text/plain; charset=utf-8"
    return response.status, response.body.decode().splitlines()


PING, CLOUD, CHECK_PASSED = "[+]ping ok", "[+]cloud ok: as far as we know", "readyz check passed"
UNMATCHED = 'warn: some health checks cannot be excluded: no matches for "a", "b"'


@pytest.mark.row("serving-health-01", "serving-health-02")
@pytest.mark.parametrize(
    ("checks", "query", "status", "lines"),
    [
        (GOOD, "", 200, ["ok"]),
        (GOOD, "verbose", 200, [PING, CLOUD, CHECK_PASSED]),
        (GOOD, "verbose&exclude=b&exclude=a", 200, [PING, CLOUD, UNMATCHED, CHECK_PASSED]),
        ((), "verbose", 200, [PING, CHECK_PASSED]),
        (
            BAD,
            "verbose=true&exclude=api-server&exclude=cloud",
            200,
            [PING, "[+]cloud excluded: ok", "[+]api-server excluded: ok", CHECK_PASSED],
        ),
        (
            BAD,
            "",
            500,
            [PING, CLOUD, "[-]api-server failed: connection refused", "readyz check failed"],
        ),
    ],
    ids=["well", "verbose", "a name that there is not", "no checks", "excluded", "a failure"],
)
async def test_health_endpoint_lists_all_checks_on_failure_or_request(
    checks: Sequence[HealthCheck], query: str, status: int, lines: list[str]
) -> None:
    assert await answer(checks, query) == (status, lines)


@pytest.mark.row("serving-health-01")
@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/readyz/ping", 200, "ok"),
        ("/readyz/api-server", 500, "internal server error: connection refused\n"),
        ("/readyz/nothing", 404, "404 page not found\n"),
        ("/readyz/", 404, "404 page not found\n"),
    ],
)
async def test_health_endpoint_serves_single_checks(path: str, status: int, body: str) -> None:
    response = await health(*BAD).pages["/readyz/"](request(path))

    assert (response.status, response.body.decode()) == (status, body)


async def test_health_checks_are_counted_and_a_delete_resets_the_metrics() -> None:
    slis = Slis()
    watched = health(*BAD, slis=slis)
    for _ in range(2):
        await watched.all(request("/readyz"))
    await watched.one(request("/readyz/ping"))

    before = (await slis.page(request("/metrics/slis"))).body.decode()
    reset = await slis.page(request("/metrics/slis", method="DELETE"))
    after = (await slis.page(request("/metrics/slis"))).body.decode()

    assert 'kubernetes_healthcheck{name="ping",type="readyz"} 1.0\n' in before
    assert 'kubernetes_healthcheck{name="api-server",type="readyz"} 0.0\n' in before
    counted = "kubernetes_healthchecks_total"
    assert f'{counted}{{name="ping",status="success",type="readyz"}} 3.0\n' in before
    assert f'{counted}{{name="api-server",status="error",type="readyz"}} 2.0\n' in before
    assert reset.body == b"metrics reset\n"
    assert "ping" not in after
    assert f"# TYPE {counted} counter\n" in after


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
async def test_status_of_a_request_depends_on_path_and_credentials(
    path: str, headers: dict[str, str], status: int
) -> None:
    answer = await site().answer(request(path, headers=headers))

    assert answer.status == status
    assert ("Cache-Control", "no-cache, private") in answer.headers


async def test_health_check_detail_is_masked() -> None:
    redact.register("a-password-of-somebody")
    try:
        _, lines = await answer([check("cloud", failed("login a-password-of-somebody failed"))])
    finally:
        redact.unregister("a-password-of-somebody")

    assert "a-password-of-somebody" not in lines[0]
