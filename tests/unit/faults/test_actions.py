"""Each fault does to a request what its name says, and nothing to others."""

from __future__ import annotations

import asyncio
import errno

import aiohttp
import pytest

from tests import faults
from tests.unit.faults.upstream import (
    ANY,
    SHORT_S,
    WATCH,
    Upstream,
    dropped,
    get,
    lines_until_the_end,
)


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
