"""Each fault does to a request what its name says, and nothing to others."""

from __future__ import annotations

import asyncio
import errno

import aiohttp
import pytest

from tests import faults
from tests.unit.faults.upstream import ANY, DROPPED, SHORT_S, Wire


async def test_cut_ends_the_connection_and_the_server_is_not_asked(wire: Wire) -> None:
    wire.proxy.on(faults.Match(method="POST"), faults.Cut(), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await wire.client.post("/a", data=b"lost")
    assert wire.upstream.asked == []
    assert wire.proxy.log[0].body == b"lost"
    assert await wire.get()


async def test_reset_is_seen_as_a_reset(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.Reset())
    with pytest.raises(aiohttp.ClientOSError) as caught:
        await wire.client.get("/a")
    assert caught.value.errno == errno.ECONNRESET
    assert wire.upstream.asked == []


@pytest.mark.parametrize("fault", [faults.Cut, faults.Reset])
async def test_the_answer_of_a_request_that_took_effect_can_be_lost(
    wire: Wire, fault: type[faults.Cut | faults.Reset]
) -> None:
    wire.proxy.on(faults.Match(write=True), fault(at=faults.Point.TOOK_EFFECT))
    with pytest.raises(DROPPED):
        await wire.client.post("/a", data=b"{}")
    assert wire.upstream.asked == ["POST /a"]
    assert (wire.proxy.log[0].upstream_status, wire.proxy.log[0].status) == (200, None)


async def test_delay_waits_before_the_server_is_asked(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.Delay(SHORT_S))
    await wire.get()
    [exchange] = wire.proxy.log
    assert exchange.ended_s is not None
    assert exchange.ended_s - exchange.started_s >= SHORT_S


async def test_hold_waits_for_the_event(wire: Wire) -> None:
    release = asyncio.Event()
    wire.proxy.on(ANY, faults.Hold(release))
    asking = asyncio.create_task(wire.get())
    await wire.proxy.wait_for(ANY)
    with pytest.raises(TimeoutError):
        await wire.proxy.wait_for(ANY, answered=True, timeout_s=SHORT_S)
    assert wire.upstream.asked == []
    release.set()
    await wire.proxy.wait_for(ANY, answered=True)
    assert (await asking)["value"] == "plain"


async def test_a_callback_comes_before_the_server_is_asked(wire: Wire) -> None:
    seen: list[tuple[faults.Exchange, int]] = []

    async def note(exchange: faults.Exchange) -> None:
        seen.append((exchange, len(wire.upstream.asked)))

    wire.proxy.on(ANY, faults.Call(note))
    await wire.get()
    assert seen == [(wire.proxy.log[0], 0)]


@pytest.mark.parametrize(
    ("at", "asked", "answered"),
    [
        (faults.Point.BEFORE, False, False),
        (faults.Point.TOOK_EFFECT, True, False),
        (faults.Point.ANSWERED, True, True),
    ],
)
async def test_a_client_falls_and_nothing_goes_on(
    wire: Wire, at: faults.Point, asked: bool, answered: bool
) -> None:
    fallen: list[list[str]] = []
    wire.proxy.on(ANY, faults.Fell(lambda: fallen.append(list(wire.upstream.asked)), at=at))
    if answered:
        await wire.get()
    else:
        with pytest.raises(DROPPED):
            await wire.get()
    expected = ["GET /a"] if asked else []
    assert wire.upstream.asked == expected
    # The blow came at that very moment, once.
    assert fallen == [expected]


@pytest.mark.parametrize("path", ["/a", "/a?watch=true"])
@pytest.mark.parametrize(
    ("body", "sent"), [({"code": 429}, b'{"code": 429}'), (b"\xff garbage", b"\xff garbage")]
)
async def test_respond_answers_in_the_servers_place(
    wire: Wire, path: str, body: object, sent: bytes
) -> None:
    wire.proxy.on(ANY, faults.Respond(429, body, headers={"Retry-After": "7"}))
    async with wire.client.get(path) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert await response.read() == sent
    assert wire.upstream.asked == []
    assert wire.proxy.log[0].upstream_status is None


async def test_close_after_lines_ends_the_stream_properly(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.CloseAfterLines(2))
    assert await wire.watched(b"1\n2\n3\n") == b"1\n2\n"


async def test_reset_after_lines_breaks_the_stream(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.ResetAfterLines(1))
    with pytest.raises(aiohttp.ClientError):
        await wire.watched(b"1\n")


async def test_silent_after_lines_keeps_the_connection_open(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.SilentAfterLines(1))
    wire.upstream.feed.put_nowait(b"1\n2\n")
    async with wire.client.get("/a?watch=1") as response:
        assert await response.content.readline() == b"1\n"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await response.content.readline()


async def test_rewrite_line_changes_and_removes_lines(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.RewriteLine(lambda line: None if line == b"2\n" else line * 2))
    # A line may come in pieces, and the last one without its end.
    told = await wire.watched(b"1\n", b"2\n", b"th", b"ree\nfour", None)
    assert told == b"1\n1\nthree\nthree\nfourfour"


async def test_insert_line_puts_one_before_the_others(wire: Wire) -> None:
    wire.proxy.on(ANY, faults.InsertLine(b'{"type":"ERROR"}'))
    assert await wire.watched(b"1\n", None) == b'{"type":"ERROR"}\n1\n'


async def test_rules_for_lines_count_watches_only(wire: Wire) -> None:
    rule = wire.proxy.on(faults.Match(path="/a"), faults.CloseAfterLines(0), nth=1)
    await wire.get()
    assert rule.seen == 0
    assert await wire.watched() == b""
    assert rule.fired == [wire.proxy.log[1]]
