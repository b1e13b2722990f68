"""The wire: what is sent, what is repeated, what is raised, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from ccm.base.metrics import REGISTRY
from ccm.base.throttle import TokenBucket
from ccm.kube import config, credentials, errors, transport
from ccm.kube.credentials import Fixed
from tests.handclock import HandClock
from tests.unit.kube.wire import (
    CERTS,
    Server,
    connect,
    cuts,
    refuses,
    says,
    sends,
    serve,
    server_context,
    streams,
)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serve() as running:
        yield running


def _metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_request_arrives_as_it_was_meant(server: Server) -> None:
    wire = connect(server.url, credentials=Fixed(credentials.bearer("t")))

    async with wire:
        body = await wire.do(
            "PATCH",
            "/api/v1/nodes/a%2Fb",
            query={"fieldSelector": "metadata.name=a,b c", "force": "true"},
            body=b'{"x": 1}',
            content_type="application/merge-patch+json",
        )

    assert body == b"{}"
    seen = server.seen[0]
    assert seen.method == "PATCH"
    assert seen.target == ("/api/v1/nodes/a%2Fb?fieldSelector=metadata.name%3Da%2Cb%20c&force=true")
    assert seen.body == b'{"x": 1}'
    assert seen.headers["Authorization"] == "Bearer t"
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.headers["Accept"] == "application/json"
    assert seen.headers["User-Agent"] == "ccm/1.0 (linux/amd64) kubernetes/abc1234"


async def test_a_server_may_live_below_a_path(server: Server) -> None:
    async with connect(server.url + "/clusters/one/") as wire:
        await wire.do("GET", "/version")

    assert server.seen[0].target == "/clusters/one/version"


async def test_nobody_sends_no_authorization(server: Server) -> None:
    async with connect(server.url) as wire:
        await wire.do("GET", "/version")

    assert "Authorization" not in server.seen[0].headers
    assert "Content-Type" not in server.seen[0].headers


@pytest.mark.parametrize(("disabled", "expected"), [(True, "identity"), (False, "gzip")])
async def test_compression_is_asked_for_unless_disabled(
    server: Server, disabled: bool, expected: str
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers["Accept-Encoding"] == "identity":
            return web.Response(body=b"plain")
        return web.Response(body=gzip.compress(b"plain"), headers={"Content-Encoding": "gzip"})

    server.will(answer)

    async with connect(server.url, disable_compression=disabled) as wire:
        body = await wire.do("GET", "/")

    assert body == b"plain"
    assert server.seen[0].headers["Accept-Encoding"] == expected


async def test_cookies_are_not_kept(server: Server) -> None:
    server.will(says({}, Set_Cookie="a=b"))

    async with connect(server.url) as wire:
        await wire.do("GET", "/")
        await wire.do("GET", "/")

    assert "Cookie" not in server.seen[1].headers


async def test_no_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url) as wire:
        await wire.do("GET", "/")
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        await wire.do("GET", "/")

    assert len(server.seen) == 2


async def test_a_redirect_is_not_followed(server: Server) -> None:
    server.will(says({}, status=302, Location="/elsewhere"))

    async with connect(server.url) as wire:
        with pytest.raises(errors.ApiError) as caught:
            await wire.do("GET", "/")

    assert caught.value.status == 302
    assert len(server.seen) == 1


async def test_429_with_retry_after_is_repeated_once_after_that_time(
    hand: HandClock, server: Server
) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    host = server.url.removeprefix("http://")

    async with connect(server.url) as wire:
        await wire.do("PATCH", "/x", body=b"{}")

    assert hand.naps == [1]
    assert [seen.body for seen in server.seen] == [b"{}", b"{}"]
    assert _metric("rest_client_requests_total", code="429", method="PATCH", host=host) == 1
    assert _metric("rest_client_requests_total", code="200", method="PATCH", host=host) == 1
    retries = _metric("rest_client_request_retries_total", code="200", verb="PATCH", host=host)
    assert retries == 1


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_without_the_header_an_answer_is_final(
    hand: HandClock, server: Server, status: int, method: str
) -> None:
    server.will(refuses(status, "Whatever"))

    async with connect(server.url) as wire:
        with pytest.raises(errors.ApiError) as caught:
            await wire.do(method, "/x")

    assert caught.value.status == status
    assert hand.naps == []
    assert len(server.seen) == 1


@pytest.mark.usefixtures("hand")
async def test_a_4xx_is_final_even_with_the_header(server: Server) -> None:
    server.will(refuses(409, "Conflict", Retry_After="1"))

    async with connect(server.url) as wire:
        with pytest.raises(errors.Conflict):
            await wire.do("PUT", "/x")

    assert len(server.seen) == 1


async def test_after_ten_repetitions_it_is_an_error(hand: HandClock, server: Server) -> None:
    server.will(*[refuses(503, "ServiceUnavailable", Retry_After="2")] * 20)

    async with connect(server.url) as wire:
        with pytest.raises(errors.ServerError) as caught:
            await wire.do("GET", "/x")

    assert caught.value.retry_after == 2
    assert len(server.seen) == 11
    assert hand.naps == [2] * 10


@pytest.mark.usefixtures("hand")
async def test_a_caller_may_forbid_repetition(server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))

    async with connect(server.url) as wire:
        with pytest.raises(errors.TooManyRequests):
            await wire.do("POST", "/x", retry=False)

    assert len(server.seen) == 1


async def test_each_attempt_takes_a_turn(hand: HandClock, server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    limiter = TokenBucket(qps=0.1, burst=1)

    async with connect(server.url) as wire:
        await wire.do("PATCH", "/x", limiter=limiter)

    assert hand.naps == [1, pytest.approx(9)]


async def test_a_get_that_was_cut_is_repeated(hand: HandClock, server: Server) -> None:
    server.will(cuts, cuts)

    async with connect(server.url) as wire:
        assert await wire.do("GET", "/x") == b"{}"

    assert set(hand.naps) <= {1.0}
    assert len(server.seen) == 3


@pytest.mark.usefixtures("hand")
async def test_a_write_that_was_cut_is_not_repeated(server: Server) -> None:
    server.will(cuts)
    host = server.url.removeprefix("http://")

    async with connect(server.url) as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("PATCH", "/x", body=b"{}")

    assert caught.value.kind == "reset"
    assert caught.value.__cause__ is not None
    assert len(server.seen) == 1
    failed = _metric("rest_client_requests_total", code="<error>", method="PATCH", host=host)
    assert failed == 1


@pytest.mark.usefixtures("hand")
async def test_an_answer_cut_in_the_middle_is_repeated(server: Server) -> None:
    server.will(streams(b"half an ans", then=cuts))

    async with connect(server.url) as wire:
        assert await wire.do("GET", "/x") == b"{}"


async def test_refused_connections_are_not_repeated_here(hand: HandClock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    async with connect(f"http://127.0.0.1:{port}") as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/x")

    assert caught.value.kind == "refused"
    assert hand.naps == []


async def test_a_slow_answer_times_out(server: Server) -> None:
    server.will(streams(b"begun", hold=True))

    async with connect(server.url) as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/x", timeout_s=0.1)

    assert caught.value.kind == "timeout"


@pytest.mark.usefixtures("hand")
async def test_what_is_no_http_is_garbage() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    async with listening, connect(f"http://127.0.0.1:{port}") as wire:
        with pytest.raises(errors.Unreachable) as caught:
            await wire.do("GET", "/x")

    assert caught.value.kind == "garbage"


async def test_cancellation_passes_through(server: Server) -> None:
    server.will(streams(hold=True))

    async with connect(server.url) as wire:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.do("GET", "/x")


class Rotating:
    """A source that has so many tokens, a new one after each rejection."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    async def current(self) -> credentials.Credential:
        if not self.tokens:
            raise errors.NoCredentials("none")
        return credentials.bearer(self.tokens[0])

    async def rejected(self, credential: credentials.Credential, sent_at: float) -> bool:
        assert credential.header == f"Bearer {self.tokens[0]}"
        if len(self.tokens) > 1:
            del self.tokens[0]
        return credential.header != f"Bearer {self.tokens[0]}"


@pytest.mark.parametrize(
    ("tokens", "refusals", "sent"),
    [
        (("one", "two"), 1, ["Bearer one", "Bearer two"]),
        (("one", "two", "three"), 9, ["Bearer one", "Bearer two"]),
        (("one",), 1, ["Bearer one"]),
    ],
    ids=["renewed", "refused again", "not renewed"],
)
async def test_a_401_is_repeated_once_with_another_credential(
    server: Server, tokens: tuple[str, ...], refusals: int, sent: list[str]
) -> None:
    server.will(*[refuses(401, "Unauthorized")] * refusals)

    async with connect(server.url, credentials=Rotating(*tokens)) as wire:
        with (
            contextlib.nullcontext() if refusals < len(sent) else pytest.raises(errors.Unauthorized)
        ):
            await wire.do("POST", "/x", body=b"{}")

    assert [seen.headers["Authorization"] for seen in server.seen] == sent
    assert {seen.body for seen in server.seen} == {b"{}"}


async def test_without_a_credential_nothing_is_sent(server: Server) -> None:
    async with connect(server.url, credentials=Rotating()) as wire:
        with pytest.raises(errors.NoCredentials):
            await wire.do("GET", "/x")

    assert server.seen == []


async def test_a_pods_configuration_reaches_the_server_over_tls(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("pod\n")
    (tmp_path / "ca.crt").write_bytes((CERTS / "authority-one.pem").read_bytes())

    async with serve(server_context("server-one")) as server:
        found = config.load(
            environ={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(server.port),
            },
            service_account=tmp_path,
        )
        async with transport.Transport(found, user_agent="ccm") as wire:
            await wire.do("GET", "/version")

    assert server.seen[0].headers["Authorization"] == "Bearer pod"
    assert server.seen[0].headers["Accept-Encoding"] == "identity"


async def test_durations_and_sizes_are_counted(server: Server) -> None:
    server.will(sends(b"12345"))
    host = server.url.removeprefix("http://")

    async with connect(server.url) as wire:
        await wire.do("POST", "/x", body=b"abc")

    labels = {"verb": "POST", "host": host}
    assert _metric("rest_client_request_duration_seconds_count", **labels) == 1
    assert _metric("rest_client_rate_limiter_duration_seconds_count", **labels) == 1
    assert _metric("rest_client_request_size_bytes_sum", **labels) == 3
    assert _metric("rest_client_response_size_bytes_sum", **labels) == 5


@pytest.mark.parametrize(
    ("method", "kind", "expected"),
    [("GET", "reset", 1.0), ("PATCH", "reset", None), ("GET", "timeout", None)],
)
def test_only_a_get_that_was_cut_is_tried_again(
    method: str, kind: Any, expected: float | None
) -> None:
    assert transport.cut_delay(method, errors.Unreachable("", kind=kind)) == expected
