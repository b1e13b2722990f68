"""The transport: what is sent, what is repeated, what is raised, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from ccm.base import clock
from ccm.base.fence import Fence
from ccm.base.metrics import REGISTRY
from ccm.base.throttle import TokenBucket
from ccm.kube import credentials, errors
from ccm.kube.credentials import Fixed
from tests.handclock import HandClock
from tests.shifted import advance
from tests.unit.kube.proxy import (
    Server,
    connect,
    cuts,
    no_answer,
    refuses,
    says,
    sends,
    serve,
    streams,
)


def _metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_request_arrives_as_it_was_meant(server: Server) -> None:
    below_a_path = f"{server.url}/clusters/one/"
    async with connect(below_a_path, credentials=Fixed(credentials.bearer("t"))) as transport:
        body = await transport.do(
            "PATCH",
            "/api/v1/nodes/a%2Fb",
            query={"fieldSelector": "metadata.name=a,b c", "force": "true"},
            body=b'{"x": 1}',
            content_type="application/merge-patch+json",
        )

    assert body == b"{}"
    seen = server.seen[0]
    assert seen.method == "PATCH"
    query = "fieldSelector=metadata.name%3Da%2Cb%20c&force=true"
    assert seen.target == f"/clusters/one/api/v1/nodes/a%2Fb?{query}"
    assert seen.body == b'{"x": 1}'
    assert seen.headers["Authorization"] == "Bearer t"
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.headers["Accept"] == "application/json"
    assert seen.headers["User-Agent"] == "ccm/1.0 (linux/amd64) kubernetes/abc1234"


@pytest.mark.parametrize(("disabled", "expected"), [(True, "identity"), (False, "gzip")])
async def test_compression_is_asked_for_unless_disabled(
    server: Server, disabled: bool, expected: str
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers["Accept-Encoding"] == "identity":
            return web.Response(body=b"plain")
        return web.Response(body=gzip.compress(b"plain"), headers={"Content-Encoding": "gzip"})

    server.will(answer)

    async with connect(server.url, disable_compression=disabled) as transport:
        body = await transport.do("GET", "/")

    assert body == b"plain"
    assert server.seen[0].headers["Accept-Encoding"] == expected


async def test_nothing_is_sent_that_nobody_gave(server: Server) -> None:
    server.will(says({}, Set_Cookie="a=b"))

    await server.transport.do("GET", "/")
    await server.transport.do("GET", "/")

    assert not {"Authorization", "Content-Type", "Cookie"} & {*server.seen[1].headers}


async def test_every_answer_tells_the_time_at_the_server(server: Server) -> None:
    server.will(says({}, Date="Mon, 23 Nov 2026 10:00:00 GMT"))

    await server.transport.do("GET", "/")

    told = datetime(2026, 11, 23, 10, tzinfo=UTC)
    assert timedelta(0) <= server.transport.clock.now() - told < timedelta(minutes=1)


async def test_no_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.transport.do("GET", "/")
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await server.transport.do("GET", "/")

    assert len(server.seen) == 2


async def test_a_redirect_is_not_followed(server: Server) -> None:
    server.will(says({}, status=302, Location="/elsewhere"))

    with pytest.raises(errors.ApiError) as caught:
        await server.transport.do("GET", "/")

    assert caught.value.status == 302
    assert len(server.seen) == 1


async def test_429_with_retry_after_is_repeated_once_after_that_time(
    hand: HandClock, server: Server
) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    host = server.url.removeprefix("http://")
    await server.transport.do("PATCH", "/x", body=b"{}")

    assert hand.naps == [1]
    assert [seen.body for seen in server.seen] == [b"{}", b"{}"]
    assert _metric("rest_client_requests_total", code="429", method="PATCH", host=host) == 1
    assert _metric("rest_client_requests_total", code="200", method="PATCH", host=host) == 1
    retries = _metric("rest_client_request_retries_total", code="200", verb="PATCH", host=host)
    assert retries == 1


@pytest.mark.parametrize(
    ("method", "status", "headers"),
    [
        ("GET", 503, {}),
        ("PATCH", 429, {}),
        ("PATCH", 500, {}),
        ("PUT", 409, {"Retry_After": "1"}),
    ],
)
async def test_other_answers_are_final(
    hand: HandClock,
    server: Server,
    method: str,
    status: int,
    headers: dict[str, str],
) -> None:
    server.will(refuses(status, "Whatever", **headers))

    with pytest.raises(errors.ApiError) as caught:
        await server.transport.do(method, "/x")

    assert caught.value.status == status
    assert hand.naps == []
    assert len(server.seen) == 1


async def test_after_ten_repetitions_it_is_an_error(hand: HandClock, server: Server) -> None:
    server.will(*[refuses(503, "ServiceUnavailable", Retry_After="2")] * 20)

    with pytest.raises(errors.ServerError) as caught:
        await server.transport.do("GET", "/x")

    assert caught.value.retry_after == 2
    assert len(server.seen) == 11
    assert hand.naps == [2] * 10


@pytest.mark.usefixtures("hand")
async def test_a_caller_may_forbid_repetition(server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))

    with pytest.raises(errors.TooManyRequests):
        await server.transport.do("POST", "/x", retry=False)

    assert len(server.seen) == 1


async def test_each_attempt_takes_a_turn(hand: HandClock, server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    limiter = TokenBucket(qps=0.1, burst=1)
    await server.transport.do("PATCH", "/x", limiter=limiter)

    assert hand.naps == [1, pytest.approx(9)]


async def test_a_get_that_was_cut_is_repeated(hand: HandClock, server: Server) -> None:
    server.will(cuts, cuts)

    assert await server.transport.do("GET", "/x") == b"{}"

    assert set(hand.naps) <= {1.0}
    assert len(server.seen) == 3


@pytest.mark.usefixtures("hand")
async def test_a_write_that_was_cut_is_not_repeated(server: Server) -> None:
    server.will(cuts)
    host = server.url.removeprefix("http://")

    with no_answer("reset"):
        await server.transport.do("PATCH", "/x", body=b"{}")
    assert len(server.seen) == 1
    failed = _metric("rest_client_requests_total", code="<error>", method="PATCH", host=host)
    assert failed == 1


@pytest.mark.usefixtures("hand")
async def test_an_answer_cut_in_the_middle_is_repeated(server: Server) -> None:
    server.will(streams(b"half an ans", then=cuts))

    assert await server.transport.do("GET", "/x") == b"{}"


async def test_refused_connections_are_not_repeated_here(hand: HandClock) -> None:
    async with serve() as gone:
        pass

    async with connect(gone.url) as transport:
        with no_answer("refused"):
            await transport.do("GET", "/x")

    assert hand.naps == []


async def test_a_slow_answer_times_out(server: Server) -> None:
    server.will(streams(b"begun", hold=True))

    with no_answer("timeout"):
        await server.transport.do("GET", "/x", timeout_s=0.1)

    assert len(server.seen) == 1


@pytest.mark.usefixtures("hand")
async def test_what_is_no_http_is_garbage() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    async with listening, connect(f"http://127.0.0.1:{port}") as transport:
        with no_answer("garbage"):
            await transport.do("GET", "/x")


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

    async with connect(server.url, credentials=Rotating(*tokens)) as transport:
        with (
            contextlib.nullcontext() if refusals < len(sent) else pytest.raises(errors.Unauthorized)
        ):
            await transport.do("POST", "/x", body=b"{}")

    assert [seen.headers["Authorization"] for seen in server.seen] == sent
    assert {seen.body for seen in server.seen} == {b"{}"}


async def test_without_a_credential_nothing_is_sent(server: Server) -> None:
    async with connect(server.url, credentials=Rotating()) as transport:
        with pytest.raises(errors.NoCredentials):
            await transport.do("GET", "/x")

    assert server.seen == []


async def test_durations_and_sizes_are_counted(server: Server) -> None:
    server.will(sends(b"12345"))
    host = server.url.removeprefix("http://")
    await server.transport.do("POST", "/x", body=b"abc")

    labels = {"verb": "POST", "host": host}
    assert _metric("rest_client_request_duration_seconds_count", **labels) == 1
    assert _metric("rest_client_rate_limiter_duration_seconds_count", **labels) == 1
    assert _metric("rest_client_request_size_bytes_sum", **labels) == 3
    assert _metric("rest_client_response_size_bytes_sum", **labels) == 5


def governing(seconds: float) -> Fence:
    """The fence of this test."""
    made = Fence()
    made.extend(clock.monotonic() + seconds)
    made.govern()
    return made


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_nothing_is_changed_without_a_lease_that_holds(server: Server, method: str) -> None:
    """But for the Lease itself; whoever only asks changes nothing."""
    governing(0)

    with no_answer("timeout"):
        await server.transport.do(method, "/change")
    await server.transport.do("GET", "/read")
    await server.transport.do(method, "/lease", urgent=True)

    assert [seen.path for seen in server.seen] == ["/read", "/lease"]


async def test_a_lease_that_ran_out_meanwhile_is_noticed(server: Server, hand: HandClock) -> None:
    """While it waited for its turn, or for another attempt."""
    governing(1)
    server.will(refuses(429, "TooManyRequests", Retry_After="2"))

    with no_answer("timeout"):
        await server.transport.do("PATCH", "/again")
    assert len(server.seen) == 1

    governing(1)
    limiter = TokenBucket(qps=0.1, burst=1)
    await limiter.acquire()
    with no_answer("timeout"):
        await server.transport.do("PATCH", "/turn", limiter=limiter)
    assert len(server.seen) == 1


@pytest.mark.shifted_time
async def test_a_change_under_way_ends_with_the_lease(server: Server) -> None:
    """Not before, however often it is renewed meanwhile."""

    async def slow(_: web.BaseRequest) -> web.StreamResponse:
        arrived.set()
        await go_on.wait()
        return web.Response(body=b"{}")

    arrived, go_on = asyncio.Event(), asyncio.Event()
    server.will(slow, slow)
    lease = governing(10)
    change = asyncio.create_task(server.transport.do("PATCH", "/renewed"))
    await arrived.wait()
    lease.extend(clock.monotonic() + 600)
    await advance(15)
    go_on.set()
    assert await change == b"{}"
    go_on.clear()

    arrived.clear()
    change = asyncio.create_task(server.transport.do("PATCH", "/lost"))
    await arrived.wait()
    lease.lapse()
    with no_answer("timeout"):
        await change


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_a_wire_that_only_reads_sends_nothing_else(server: Server, method: str) -> None:
    async with connect(server.url, reads_only=True) as transport:
        with pytest.raises(errors.WriteRefused, match=f"{method} /api/v1/nodes/a is not sent"):
            await transport.do(method, "/api/v1/nodes/a", body=b"{}")
        await transport.do("GET", "/api/v1/nodes")
        async with transport.stream("/api/v1/nodes", idle_timeout_s=1.0):
            pass

    assert {one.method for one in server.seen} == {"GET"}
