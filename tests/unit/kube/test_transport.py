"""The transport: requests, streams, connections and TLS sessions."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from ccm.base import clock
from ccm.base.credentials import KeyPair
from ccm.base.lease_guard import LeaseGuard
from ccm.base.metrics import REGISTRY
from ccm.base.tasks import spawn
from ccm.base.throttle import INITIAL_CONCURRENCY, TokenBucket
from ccm.kube import credentials, errors, transport
from ccm.kube.client import Client
from ccm.kube.credentials import Credential, StaticCredentials, TlsSettings
from ccm.kube.transport import ServerClock, Transport
from ccm.testing.clock import VirtualTimeLoop
from tests.handclock import HandClock
from tests.shifted import advance
from tests.unit.kube.proxy import (
    CERTS,
    Answer,
    Server,
    connect,
    cuts,
    no_answer,
    refuses,
    sends,
    serve,
    server_context,
    streams,
)


async def test_slow_response_times_out(server: Server) -> None:
    server.will(streams(b"begun", hold=True))

    with no_answer("timeout"):
        await server.transport.do("GET", "/x", timeout_s=0.1)

    assert len(server.seen) == 1


class Rotating:
    """Credentials with several tokens: the next one after each rejection."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    async def current(self) -> credentials.Credential:
        if not self.tokens:
            raise errors.NoCredentials("none")
        return credentials.bearer(self.tokens[0])

    async def refresh_rejected(self, credential: credentials.Credential, sent_at: float) -> bool:
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
async def test_unauthorized_request_is_repeated_once_with_renewed_credentials(
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


async def test_no_request_is_sent_without_credentials(server: Server) -> None:
    async with connect(server.url, credentials=Rotating()) as transport:
        with pytest.raises(errors.NoCredentials):
            await transport.do("GET", "/x")

    assert server.seen == []


def governing(seconds: float) -> LeaseGuard:
    """Activate a lease guard."""
    made = LeaseGuard()
    made.extend(clock.monotonic() + seconds)
    made.activate()
    return made


async def test_lease_expiry_during_a_wait_refuses_the_request(
    server: Server, hand: HandClock
) -> None:
    """The request waits for the rate limiter, or for its retry."""
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


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_read_only_transport_refuses_writes(server: Server, method: str) -> None:
    async with connect(server.url, reads_only=True) as transport:
        with pytest.raises(errors.WriteRefused, match=f"{method} /api/v1/nodes/a is not sent"):
            await transport.do(method, "/api/v1/nodes/a", body=b"{}")
        await transport.do("GET", "/api/v1/nodes")
        async with transport.stream("/api/v1/nodes", idle_timeout_s=1.0):
            pass

    assert {one.method for one in server.seen} == {"GET"}


async def _read(transport: Transport, idle_timeout_s: float = 5.0) -> list[bytes]:
    async with transport.stream("/watch", idle_timeout_s=idle_timeout_s) as lines:
        return [line async for line in lines]


@pytest.mark.parametrize(
    "chunks",
    [
        (b"one\ntwo\n", b"three\n"),
        (b"o", b"ne", b"\n", b"two\nth", b"ree", b"\n"),
        (b"one\n\n\ntwo\nthree",),
    ],
    ids=["whole lines", "pieces", "empty lines and no end"],
)
async def test_stream_is_split_into_lines(server: Server, chunks: tuple[bytes, ...]) -> None:
    server.will(streams(*chunks))

    assert await _read(server.transport) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (streams(*[b"x" * 500] * 4), "garbage"),
        (streams(b"one\n", hold=True), "silent"),
        (streams(b"one\n", then=cuts), "reset"),
    ],
    ids=["a line without an end", "silent", "cut"],
)
async def test_broken_stream_raises_instead_of_ending(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: str
) -> None:
    monkeypatch.setattr(transport, "MAX_LINE", 1000)
    server.will(answer)
    with no_answer(kind):
        await _read(server.transport, idle_timeout_s=0.2)


async def test_watch_without_response_headers_times_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    monkeypatch.setattr(transport, "WATCH_START_TIMEOUT_S", 0.1)
    server.will(never)

    with no_answer("timeout"):
        await _read(server.transport, idle_timeout_s=20)


async def test_refused_stream_raises_the_error_of_the_server(server: Server) -> None:
    server.will(refuses(410, "Expired"), sends(b"<html>", status=502, content_type="text/html"))

    with pytest.raises(errors.Gone):
        await _read(server.transport)
    with pytest.raises(errors.ServerError):
        await _read(server.transport)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Line:
    """A server that sends one scripted response for each request, whatever the request.

    Attributes:
        heads: the first lines of the requests.
        connections: how many were opened.
    """

    def __init__(self, *sayings: bytes) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self._sayings = list(sayings)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while saying := (await self._heard(reader)):
                writer.write(saying)
        writer.close()

    async def _heard(self, reader: asyncio.StreamReader) -> bytes:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0])
        return self._sayings.pop(0)


@contextlib.asynccontextmanager
async def _talking(line: Line) -> AsyncIterator[Transport]:
    listening = await asyncio.start_server(line.talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, connect(f"http://127.0.0.1:{port}") as transport:
        yield transport


async def test_connection_is_reused_for_consecutive_requests() -> None:
    line = Line(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, OK, OK)
    async with _talking(line) as transport:
        answers = [await transport.do("GET", f"/{number}") for number in range(3)]

    assert answers == [b"{}"] * 3
    assert line.connections == 1


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\0"])
async def test_header_with_a_line_end_is_refused(server: Server, end: str) -> None:
    smuggled = StaticCredentials(Credential(header=f"Bearer t{end}X-Remote-User: root"))
    async with connect(server.url, credentials=smuggled) as transport:
        with no_answer("garbage"):
            await transport.do("PATCH", "/x", body=b"{}")

    assert server.seen == []


def _trusting(authority: str, **settings: Any) -> TlsSettings:
    return TlsSettings(authorities=(CERTS / f"{authority}.pem").read_bytes(), **settings)


def _client(name: str) -> KeyPair:
    return KeyPair(
        chain=(CERTS / f"{name}.pem").read_bytes(), key=(CERTS / f"{name}.key.pem").read_bytes()
    )


@contextlib.asynccontextmanager
async def _secured(clients: str = "", **settings: Any) -> AsyncIterator[Server]:
    """Run a TLS server, and a transport to it."""
    async with (
        serve(server_context("server-one", clients=clients)) as server,
        connect(server.url, **settings) as server.transport,
    ):
        yield server


class _Changing:
    """Credentials whose certificate is replaced by the test."""

    def __init__(self) -> None:
        self.name = "client-a"

    async def current(self) -> Credential:
        return Credential(certificate=_client(self.name))

    async def refresh_rejected(self, credential: Credential, sent_at: float) -> bool:
        return False


async def test_changed_client_certificate_is_used_for_the_next_request() -> None:
    settings = _trusting("authority-one")
    source = _Changing()

    async with _secured("authority-one", tls=settings, credentials=source) as server:
        await server.transport.do("GET", "/")
        source.name = "client-b"
        await server.transport.do("GET", "/")

    assert server.peers == ["daemon-a", "daemon-b"]


def test_private_key_is_not_in_the_repr() -> None:
    assert "PRIVATE" not in repr(TlsSettings(certificate=_client("client-a")))


BUSY = 2 * INITIAL_CONCURRENCY


@pytest.mark.parametrize(
    ("method", "status", "headers"),
    [
        ("GET", 503, {}),
        ("PATCH", 429, {}),
        ("PATCH", 500, {}),
        ("PUT", 409, {"Retry_After": "1"}),
        ("GET", 302, {"Location": "/elsewhere"}),
    ],
)
async def test_other_error_responses_are_not_retried(
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


@pytest.mark.usefixtures("hand")
async def test_write_is_not_retried_after_a_reset(server: Server) -> None:
    server.will(cuts)

    with no_answer("reset"):
        await server.transport.do("PATCH", "/x", body=b"{}")
    assert len(server.seen) == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_writes_are_refused_without_a_valid_lease(server: Server, method: str) -> None:
    """Reads and writes of the Lease itself are sent."""
    governing(0)

    with no_answer("timeout"):
        await server.transport.do(method, "/change")
    await server.transport.do("GET", "/read")
    await server.transport.do(method, "/lease", urgent=True)

    assert [seen.path for seen in server.seen] == ["/read", "/lease"]


@pytest.mark.shifted_time
async def test_write_in_progress_ends_when_the_lease_is_lost(server: Server) -> None:
    """It continues while the Lease is renewed."""

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
    lease.expire()
    with no_answer("timeout"):
        await change


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_non_idempotent_request_is_not_resent_on_a_new_connection(method: str) -> None:
    line = Line(OK, b"", OK)
    async with _talking(line) as transport:
        await transport.do("GET", "/first")
        with no_answer("reset"):
            await transport.do(method, "/x")

    assert line.heads[1:] == [f"{method} /x HTTP/1.1"]


@pytest.mark.parametrize(
    "settings",
    [
        _trusting("authority-two"),
        _trusting("authority-one", server_name="other.test"),
        TlsSettings(),
        TlsSettings(authorities=b"none"),
        TlsSettings(
            insecure=True,
            certificate=KeyPair(chain=_client("client-a").chain, key=_client("client-b").key),
        ),
    ],
)
async def test_server_with_an_untrusted_certificate_is_refused(settings: TlsSettings) -> None:
    async with _secured(tls=settings) as server:
        with no_answer("tls"):
            await server.transport.do("GET", "/")

    assert server.seen == []


async def test_request_does_not_wait_for_slots_of_another_client() -> None:
    held = asyncio.Event()
    open_now = 0

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal open_now
        open_now += 1
        if request.path != "/other":
            await held.wait()
        open_now -= 1
        return web.json_response({})

    async with serve() as server, connect(server.url) as transport:
        server.will(*[slow] * (BUSY + 1))
        busy = Client(transport, name="busy")
        waiting = [spawn(busy.raw("GET", f"/{n}"), name="busy") for n in range(BUSY)]
        while open_now < INITIAL_CONCURRENCY:
            await asyncio.sleep(0)

        assert await Client(transport, name="other").raw("PUT", "/other") == b"{}"

        assert open_now < BUSY, "requests were sent although all slots were taken"
        held.set()
        await asyncio.gather(*waiting)


async def test_unread_response_is_never_taken_for_the_next_one(server: Server) -> None:
    server.will(streams(b"of the first", hold=True), sends(b"of the second"))

    with no_answer("timeout"):
        await server.transport.do("PATCH", "/first", timeout_s=0.1)

    assert await server.transport.do("PATCH", "/second") == b"of the second"


DATE, TOLD = "Mon, 23 Nov 2026 10:00:00 GMT", datetime(2026, 11, 23, 10, tzinfo=UTC)


def jump_of_the_wall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)


@pytest.mark.virtual_time
@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_server_clock_is_independent_of_jumps_of_the_local_clock(seconds: float) -> None:
    told = ServerClock()
    told.read_date_header(DATE)
    jump_of_the_wall(seconds)
    await asyncio.sleep(90)

    assert told.now() == TOLD + timedelta(seconds=90)


@pytest.mark.virtual_time
async def test_server_clock_is_the_local_clock_before_any_response() -> None:
    told = ServerClock()
    assert told.now() == clock.now()
    for useless in (None, "", "soon", "Mon, 99 Nov 2026 10:00:00 GMT"):
        told.read_date_header(useless)

    assert told.now() == clock.now()


@pytest.mark.virtual_time
async def test_server_clock_is_corrected_by_later_responses() -> None:
    told = ServerClock()
    told.read_date_header(DATE)
    told.read_date_header("Mon, 23 Nov 2026 12:00:00 GMT")
    assert told.now() == TOLD

    await asyncio.sleep(1)
    told.read_date_header("Mon, 23 Nov 2026 12:00:00 GMT")
    assert told.now() == TOLD + timedelta(hours=2)


Growth = Callable[..., float]


@pytest.fixture
def growth(server: Server) -> Growth:
    """Return a function that returns the growth of a metric of the server's address.

    Not the value: a server of an earlier test in this process may have had the same port.
    """
    host = server.url.removeprefix("http://")
    before = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
    }

    def grown(name: str, **labels: str) -> float:
        labels["host"] = host
        value = REGISTRY.get_sample_value(name, labels) or 0.0
        return value - before.get((name, frozenset(labels.items())), 0.0)

    return grown


async def test_request_arrives_with_path_query_body_and_headers(server: Server) -> None:
    below_a_path = f"{server.url}/clusters/one/"
    async with connect(
        below_a_path, credentials=StaticCredentials(credentials.bearer("t"))
    ) as transport:
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
async def test_compression_is_requested_unless_disabled(
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


async def test_proxy_environment_variables_are_ignored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.transport.do("GET", "/")
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    await server.transport.do("GET", "/")

    assert len(server.seen) == 2


async def test_too_many_requests_is_retried_after_the_given_delay(
    hand: HandClock, server: Server, growth: Growth
) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    await server.transport.do("PATCH", "/x", body=b"{}")

    assert hand.naps == [1]
    assert [seen.body for seen in server.seen] == [b"{}", b"{}"]
    assert growth("rest_client_requests_total", code="429", method="PATCH") == 1
    assert growth("rest_client_requests_total", code="200", method="PATCH") == 1
    assert growth("rest_client_request_retries_total", code="200", verb="PATCH") == 1


async def test_request_fails_after_ten_retries(hand: HandClock, server: Server) -> None:
    server.will(*[refuses(503, "ServiceUnavailable", Retry_After="2")] * 20)

    with pytest.raises(errors.ServerError) as caught:
        await server.transport.do("GET", "/x")

    assert caught.value.retry_after == 2
    assert len(server.seen) == 11
    assert hand.naps == [2] * 10


async def test_get_is_retried_after_a_reset(hand: HandClock, server: Server) -> None:
    server.will(cuts, cuts)

    assert await server.transport.do("GET", "/x") == b"{}"

    assert set(hand.naps) <= {1.0}
    assert len(server.seen) == 3


async def test_each_attempt_takes_a_rate_limiter_token(hand: HandClock, server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))
    limiter = TokenBucket(qps=0.1, burst=1)
    await server.transport.do("PATCH", "/x", limiter=limiter)

    assert hand.naps == [1, pytest.approx(9)]


async def test_request_durations_and_sizes_are_measured(server: Server, growth: Growth) -> None:
    server.will(sends(b"12345"))
    await server.transport.do("POST", "/x", body=b"abc")

    assert growth("rest_client_request_duration_seconds_count", verb="POST") == 1
    assert growth("rest_client_rate_limiter_duration_seconds_count", verb="POST") == 1
    assert growth("rest_client_request_size_bytes_sum", verb="POST") == 3
    assert growth("rest_client_response_size_bytes_sum", verb="POST") == 5


@pytest.mark.usefixtures("hand")
async def test_caller_may_disable_retries(server: Server) -> None:
    server.will(refuses(429, "TooManyRequests", Retry_After="1"))

    with pytest.raises(errors.TooManyRequests):
        await server.transport.do("POST", "/x", retry=False)

    assert len(server.seen) == 1


async def test_many_watches_do_not_block_a_write(server: Server) -> None:
    """The number of connections is unlimited, so watches never starve writes."""
    server.will(*[streams(b"one\n", hold=True)] * 120)

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(120):
            lines = await stack.enter_async_context(server.transport.stream("/", idle_timeout_s=20))
            assert await anext(lines) == b"one"
        # A server may delay compressed data.
        assert {one.headers["Accept-Encoding"] for one in server.seen} == {"identity"}
        assert await server.transport.do("PATCH", "/x", timeout_s=5) == b"{}"
