"""Each fault does to a request what its name says, and nothing to others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import io
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tests import faults

ANY = faults.Match()
WATCH = faults.Match(stream=True)
SHORT_S = 0.05
GONE = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


class Upstream:
    """A small server that remembers what it was asked and watches on command."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.feed: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.raw_path}")
        self.headers.append(dict(request.headers))
        if request.query.get("watch"):
            return await self._watch(request)
        self.bodies.append(await request.content.read())
        headers = {"X-Served-By": "upstream"}
        if request.path == "/missing":
            return web.Response(status=404, text="no such thing", headers=headers)
        if request.path == "/empty":
            return web.Response(status=204)
        return web.json_response({"path": request.path, "value": "plain"}, headers=headers)

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.watches += 1
        try:
            while (piece := await self.feed.get()) is not None:
                await response.write(piece)
        finally:
            self.watches -= 1
        return response


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    yield Upstream()


@pytest_asyncio.fixture
async def proxy(upstream: Upstream) -> AsyncIterator[faults.FaultProxy]:
    server = web.Server(upstream.handle, handler_cancellation=True, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with faults.FaultProxy(f"http://127.0.0.1:{port}") as between:
        yield between
    listener.close()
    await server.shutdown(1)


@pytest_asyncio.fixture
async def client(proxy: faults.FaultProxy) -> AsyncIterator[aiohttp.ClientSession]:
    # No silent second try of a request: a test wants to see the first one fail.
    async with aiohttp.ClientSession(proxy.url, timeout=aiohttp.ClientTimeout(total=5)) as session:
        session._retry_connection = False
        yield session


@contextlib.contextmanager
def dropped() -> Iterator[None]:
    with pytest.raises(GONE):
        yield


async def get(client: aiohttp.ClientSession, path: str = "/a") -> Any:
    async with client.get(path) as response:
        assert response.status == 200
        return await response.json()


async def lines_until_the_end(response: aiohttp.ClientResponse) -> list[bytes]:
    return [line async for line in response.content]


# Without rules.


async def test_requests_and_answers_pass_untouched(
    client: aiohttp.ClientSession, upstream: Upstream
) -> None:
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/merge-patch+json"}
    async with client.patch("/n%2Fx?dryRun=All&a=%20b", data=b"{}", headers=headers) as response:
        assert response.headers["X-Served-By"] == "upstream"
        assert (await response.json())["path"] == "/n/x"
    assert upstream.asked == ["PATCH /n%2Fx?dryRun=All&a=%20b"]
    assert upstream.bodies == [b"{}"]
    assert upstream.headers[0]["Authorization"] == "Bearer secret"
    assert upstream.headers[0]["Content-Type"] == "application/merge-patch+json"


async def test_statuses_pass_with_and_without_a_body(client: aiohttp.ClientSession) -> None:
    async with client.get("/missing") as response:
        assert (response.status, await response.text()) == (404, "no such thing")
    async with client.delete("/empty") as response:
        assert (response.status, await response.read()) == (204, b"")


async def test_a_large_compressed_body_arrives_as_it_was_sent(
    client: aiohttp.ClientSession, upstream: Upstream
) -> None:
    body = gzip.compress(bytes(range(256)) * 20_000, compresslevel=0)
    async with client.post(
        "/a", data=io.BytesIO(body), headers={"Content-Encoding": "gzip"}
    ) as response:
        assert response.status == 200
    assert gzip.decompress(body) == upstream.bodies[0]


async def test_the_log_tells_what_was_asked_and_answered(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    await get(client, "/a?limit=5")
    async with client.put("/missing", json={"x": 1}) as response:
        assert response.status == 404
    read, write = proxy.log
    assert (read.method, read.path, read.query, read.status) == ("GET", "/a", {"limit": "5"}, 200)
    assert (write.content_type, write.json(), write.upstream_status) == (
        "application/json",
        {"x": 1},
        404,
    )
    assert proxy.writes == [write]
    assert str(write) == "PUT /missing -> 404"


async def test_a_watch_passes_each_line_as_it_comes(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    async with client.get("/a?watch=1") as response:
        for number in range(3):
            upstream.feed.put_nowait(b"line %d\n" % number)
            assert await response.content.readline() == b"line %d\n" % number
        await proxy.wait_for(faults.Match(where=lambda e: e.lines == 3))
        upstream.feed.put_nowait(None)
        assert await response.content.readline() == b""


async def test_a_client_that_goes_away_ends_the_watch_upstream(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    async with client.get("/a?watch=1"):
        assert upstream.watches == 1
    await proxy.wait_for(faults.Match(where=lambda e: e.ended_s is not None))
    async with asyncio.timeout(1):
        while upstream.watches:
            await asyncio.sleep(0.01)


async def test_an_upstream_that_is_not_there_looks_like_a_cut_connection() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        async with (
            faults.FaultProxy(f"http://127.0.0.1:{port}") as proxy,
            aiohttp.ClientSession() as client,
        ):
            with dropped():
                await client.get(proxy.url)
            assert proxy.log[0].status is None
            assert "ClientConnectorError" in str(proxy.log[0])


# Before the request is sent on.


async def test_cut_ends_the_connection_and_the_server_is_not_asked(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(faults.Match(method="POST"), faults.Cut(), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await client.post("/a", data=b"lost")
    assert upstream.asked == []
    assert proxy.writes[0].body == b"lost"
    assert await get(client)


async def test_reset_is_seen_as_a_reset(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(ANY, faults.Reset())
    with pytest.raises(aiohttp.ClientOSError) as caught:
        await client.get("/a")
    assert caught.value.errno == errno.ECONNRESET
    assert upstream.asked == []


async def test_delay_waits_before_the_server_is_asked(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(ANY, faults.Delay(SHORT_S))
    await get(client)
    [exchange] = proxy.log
    assert exchange.ended_s is not None
    assert exchange.ended_s - exchange.started_s >= SHORT_S


async def test_hold_waits_for_the_event(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    release = asyncio.Event()
    proxy.on(ANY, faults.Hold(release))
    asking = asyncio.create_task(get(client))
    await proxy.wait_for(ANY)
    await asyncio.sleep(SHORT_S)
    assert upstream.asked == []
    release.set()
    assert (await asking)["value"] == "plain"


@pytest.mark.parametrize(
    ("at", "asked", "answered"),
    [
        (faults.Point.BEFORE, False, False),
        (faults.Point.TOOK_EFFECT, True, False),
        (faults.Point.ANSWERED, True, True),
    ],
)
async def test_a_client_falls_and_nothing_goes_on(
    client: aiohttp.ClientSession,
    proxy: faults.FaultProxy,
    upstream: Upstream,
    at: faults.Point,
    asked: bool,
    answered: bool,
) -> None:
    fallen: list[list[str]] = []
    proxy.on(ANY, faults.Fell(lambda: fallen.append(list(upstream.asked)), at=at))
    if answered:
        await get(client)
    else:
        with dropped():
            await get(client)
    expected = ["GET /a"] if asked else []
    assert upstream.asked == expected
    # The blow came at that very moment, once.
    assert fallen == [expected]


async def test_respond_answers_in_the_servers_place(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(ANY, faults.Respond(429, {"code": 429}, headers={"Retry-After": "7"}))
    async with client.get("/a") as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert await response.json() == {"code": 429}
    assert upstream.asked == []
    assert proxy.log[0].upstream_status is None


async def test_respond_sends_bytes_as_they_are(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(ANY, faults.Respond(200, b"\xff garbage"))
    async with client.get("/a") as response:
        assert await response.read() == b"\xff garbage"


async def test_a_watch_too_can_be_refused(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(WATCH, faults.Respond(410, {"reason": "Expired"}))
    async with client.get("/a?watch=true") as response:
        assert response.status == 410


# After the request took effect.


@pytest.mark.parametrize("fault", [faults.Cut, faults.Reset])
async def test_the_answer_of_a_request_that_took_effect_can_be_lost(
    client: aiohttp.ClientSession,
    proxy: faults.FaultProxy,
    upstream: Upstream,
    fault: type[faults.Cut | faults.Reset],
) -> None:
    proxy.on(faults.Match(write=True), fault(at=faults.Point.TOOK_EFFECT))
    with dropped():
        await client.post("/a", data=b"{}")
    assert upstream.asked == ["POST /a"]
    assert (proxy.log[0].upstream_status, proxy.log[0].status) == (200, None)


async def test_rewrite_body_changes_the_answer(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(ANY, faults.RewriteBody(lambda body: body.replace(b"plain", b"somewhat longer")))
    assert (await get(client))["value"] == "somewhat longer"


async def test_truncate_breaks_off_in_the_middle_of_the_body(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(ANY, faults.Truncate(5))
    async with client.get("/a") as response:
        assert response.status == 200
        assert await response.content.readexactly(5) == b'{"pat'
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()


async def test_callbacks_mark_the_three_points_of_a_request(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    seen: list[tuple[faults.Point, int, int | None]] = []

    def note(point: faults.Point) -> None:
        async def callback(exchange: faults.Exchange) -> None:
            seen.append((point, len(upstream.asked), exchange.status))

        proxy.on(ANY, faults.Call(callback, at=point))

    for point in faults.Point:
        note(point)
    await get(client)
    await proxy.wait_for(faults.Match(where=lambda e: e.ended_s is not None))
    assert seen == [
        (faults.Point.BEFORE, 0, None),
        (faults.Point.TOOK_EFFECT, 1, None),
        (faults.Point.ANSWERED, 1, 200),
    ]


async def test_a_plain_callback_will_do(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    seen: list[faults.Exchange] = []
    proxy.on(ANY, faults.Call(seen.append))
    await get(client)
    assert seen == proxy.log


# Streams.


async def test_close_after_lines_ends_the_stream_properly(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(ANY, faults.CloseAfterLines(2))
    upstream.feed.put_nowait(b"1\n2\n3\n")
    async with client.get("/a?watch=1") as response:
        assert await lines_until_the_end(response) == [b"1\n", b"2\n"]


@pytest.mark.parametrize("fault", [faults.CutAfterLines, faults.ResetAfterLines])
async def test_cut_and_reset_after_lines_break_the_stream(
    client: aiohttp.ClientSession,
    proxy: faults.FaultProxy,
    upstream: Upstream,
    fault: type[faults.CutAfterLines | faults.ResetAfterLines],
) -> None:
    proxy.on(ANY, fault(1))
    async with client.get("/a?watch=1") as response:
        upstream.feed.put_nowait(b"1\n")
        with pytest.raises(aiohttp.ClientError):
            await lines_until_the_end(response)


async def test_silent_after_lines_keeps_the_connection_open(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(ANY, faults.SilentAfterLines(1))
    upstream.feed.put_nowait(b"1\n2\n")
    async with client.get("/a?watch=1") as response:
        assert await response.content.readline() == b"1\n"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await response.content.readline()


async def test_rewrite_line_changes_and_removes_lines(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    proxy.on(ANY, faults.RewriteLine(lambda line: None if line == b"2\n" else line * 2))
    # A line may come in pieces, and the last one without its end.
    for piece in (b"1\n", b"2\n", b"th", b"ree\nfour", None):
        upstream.feed.put_nowait(piece)
    async with client.get("/a?watch=1") as response:
        assert await response.read() == b"1\n1\nthree\nthree\nfourfour"


@pytest.mark.parametrize("after", [0, 1])
async def test_insert_line_adds_one_at_its_place(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream, after: int
) -> None:
    proxy.on(ANY, faults.InsertLine(b'{"type":"ERROR"}', after=after), times=1)
    upstream.feed.put_nowait(b"1\n")
    expected = [b"1\n"]
    expected.insert(after, b'{"type":"ERROR"}\n')
    async with client.get("/a?watch=1") as response:
        assert [await response.content.readline() for _ in expected] == expected


async def test_rules_for_lines_count_watches_only(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    rule = proxy.on(faults.Match(path="/a"), faults.CloseAfterLines(0), nth=1)
    await get(client)
    assert rule.seen == 0
    async with client.get("/a?watch=1") as response:
        assert await response.read() == b""
    assert rule.fired == [proxy.log[1]]


# Rules.


async def statuses(client: aiohttp.ClientSession, count: int) -> list[int]:
    found = []
    for _ in range(count):
        async with client.get("/a") as response:
            found.append(response.status)
    return found


@pytest.mark.parametrize(
    ("nth", "times", "expected"),
    [
        (None, None, [500, 500, 500, 500]),
        (None, 2, [500, 500, 200, 200]),
        (3, None, [200, 200, 500, 200]),
        (2, 2, [200, 500, 500, 200]),
    ],
)
async def test_nth_and_times_choose_which_requests_suffer(
    client: aiohttp.ClientSession,
    proxy: faults.FaultProxy,
    nth: int | None,
    times: int | None,
    expected: list[int],
) -> None:
    rule = proxy.on(ANY, faults.Respond(500), nth=nth, times=times)
    assert await statuses(client, 4) == expected
    assert (rule.seen, len(rule.fired)) == (4, expected.count(500))


async def test_rules_end_when_removed_or_cleared(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    rule = proxy.on(ANY, faults.Respond(500))
    proxy.remove(rule)
    assert await statuses(client, 1) == [200]
    proxy.on(ANY, faults.Respond(500))
    proxy.clear()
    assert await statuses(client, 1) == [200]


async def test_several_rules_work_on_one_request_in_order(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    proxy.on(ANY, faults.Delay(SHORT_S))
    proxy.on(ANY, faults.RewriteBody(lambda _: b'{"n": 1}'))
    proxy.on(ANY, faults.RewriteBody(lambda body: json.dumps([json.loads(body)]).encode()))
    assert await get(client) == [{"n": 1}]


@pytest.mark.parametrize(
    ("match", "covered"),
    [
        (faults.Match(), True),
        (faults.Match(method="PUT|PATCH"), True),
        (faults.Match(method="PUT"), False),
        (faults.Match(path=r"/nodes/a$"), True),
        (faults.Match(path=r"^nodes"), False),
        (faults.Match(query="fieldManager=ccm"), True),
        (faults.Match(query="watch"), False),
        (faults.Match(stream=False, write=True), True),
        (faults.Match(stream=True), False),
        (faults.Match(write=False), False),
        (faults.Match(where=lambda e: b"spec" in e.body), True),
        (faults.Match(where=lambda e: b"status" in e.body), False),
    ],
)
async def test_every_field_of_a_match_must_hold(match: faults.Match, covered: bool) -> None:
    exchange = faults.Exchange(
        method="PATCH",
        path="/api/v1/nodes/a",
        query={"fieldManager": "ccm"},
        query_string="fieldManager=ccm",
        body=b'{"spec": {}}',
    )
    assert match.covers(exchange) is covered


async def test_wait_for_says_what_came_instead(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    await get(client)
    with pytest.raises(TimeoutError, match="GET /a -> 200"):
        await proxy.wait_for(faults.Match(method="POST"), timeout_s=SHORT_S)


async def test_wait_for_can_ask_for_the_answer(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    release = asyncio.Event()
    proxy.on(ANY, faults.Hold(release))
    asking = asyncio.create_task(get(client))
    await proxy.wait_for(ANY)
    with pytest.raises(TimeoutError):
        await proxy.wait_for(ANY, answered=True, timeout_s=SHORT_S)
    release.set()
    await proxy.wait_for(ANY, answered=True)
    await asking


# The whole wire.


async def test_down_refuses_connections_and_up_accepts_them_again(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy
) -> None:
    url = proxy.url
    await get(client)
    await proxy.down()
    for _ in range(2):
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get("/a")
    await proxy.up()
    assert proxy.url == url
    assert await get(client)


async def test_down_cuts_watches_unless_told_otherwise(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    async with client.get("/a?watch=1") as response:
        await proxy.down(cut=False)
        upstream.feed.put_nowait(b"still here\n")
        assert await response.content.readline() == b"still here\n"
        await proxy.up()
        await proxy.down()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readline()


@pytest.mark.parametrize("reset", [False, True])
async def test_all_connections_can_be_cut_at_once(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, reset: bool
) -> None:
    async with client.get("/a?watch=1") as one, client.get("/b?watch=1") as other:
        proxy.cut_connections(reset=reset)
        for response in (one, other):
            with pytest.raises(aiohttp.ClientError):
                await response.content.readline()
    assert await get(client)


async def test_closing_the_proxy_ends_what_it_holds(
    client: aiohttp.ClientSession, proxy: faults.FaultProxy, upstream: Upstream
) -> None:
    async with faults.FaultProxy(proxy.url) as outer:
        outer.on(ANY, faults.Hold(asyncio.Event()))
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(session.get(outer.url))
            await outer.wait_for(ANY)
            await outer.__aexit__(None, None, None)
            with dropped():
                await asking
    assert upstream.asked == []
