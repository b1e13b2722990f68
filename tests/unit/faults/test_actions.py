"""Each fault does to a request what its name says, and nothing to others."""

from __future__ import annotations

import asyncio
import errno

import aiohttp
import pytest

from tests import faults
from tests.unit.faults.upstream import ANY, DROPPED, SHORT_S, Environment


async def test_cut_ends_the_connection_and_the_server_is_not_asked(env: Environment) -> None:
    env.proxy.on(faults.Match(method="POST"), faults.Cut(), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await env.client.post("/a", data=b"lost")
    assert env.upstream.asked == []
    assert env.proxy.log[0].body == b"lost"
    assert await env.get()


async def test_reset_is_seen_as_a_reset(env: Environment) -> None:
    env.proxy.on(ANY, faults.Reset())
    with pytest.raises(aiohttp.ClientOSError) as caught:
        await env.client.get("/a")
    assert caught.value.errno == errno.ECONNRESET
    assert env.upstream.asked == []


@pytest.mark.parametrize("fault", [faults.Cut, faults.Reset])
async def test_the_answer_of_a_request_that_took_effect_can_be_lost(
    env: Environment, fault: type[faults.Cut | faults.Reset]
) -> None:
    env.proxy.on(faults.Match(write=True), fault(at=faults.Point.TOOK_EFFECT))
    with pytest.raises(DROPPED):
        await env.client.post("/a", data=b"{}")
    assert env.upstream.asked == ["POST /a"]
    assert (env.proxy.log[0].upstream_status, env.proxy.log[0].status) == (200, None)


async def test_delay_waits_before_the_server_is_asked(env: Environment) -> None:
    env.proxy.on(ANY, faults.Delay(SHORT_S))
    await env.get()
    [exchange] = env.proxy.log
    assert exchange.ended_s is not None
    assert exchange.ended_s - exchange.started_s >= SHORT_S


async def test_hold_waits_for_the_event(env: Environment) -> None:
    release = asyncio.Event()
    env.proxy.on(ANY, faults.Hold(release))
    asking = asyncio.create_task(env.get())
    await env.proxy.wait_for(ANY)
    with pytest.raises(TimeoutError):
        await env.proxy.wait_for(ANY, answered=True, timeout_s=SHORT_S)
    assert env.upstream.asked == []
    release.set()
    await env.proxy.wait_for(ANY, answered=True)
    assert (await asking)["value"] == "plain"


async def test_a_callback_comes_before_the_server_is_asked(env: Environment) -> None:
    seen: list[tuple[faults.Exchange, int]] = []

    async def note(exchange: faults.Exchange) -> None:
        seen.append((exchange, len(env.upstream.asked)))

    env.proxy.on(ANY, faults.Call(note))
    await env.get()
    assert seen == [(env.proxy.log[0], 0)]


@pytest.mark.parametrize(
    ("at", "asked", "answered"),
    [
        (faults.Point.BEFORE, False, False),
        (faults.Point.TOOK_EFFECT, True, False),
        (faults.Point.ANSWERED, True, True),
    ],
)
async def test_a_client_falls_and_nothing_goes_on(
    env: Environment, at: faults.Point, asked: bool, answered: bool
) -> None:
    fallen: list[list[str]] = []
    env.proxy.on(ANY, faults.Fell(lambda: fallen.append(list(env.upstream.asked)), at=at))
    if answered:
        await env.get()
    else:
        with pytest.raises(DROPPED):
            await env.get()
    expected = ["GET /a"] if asked else []
    assert env.upstream.asked == expected
    # The blow came at that very moment, once.
    assert fallen == [expected]


@pytest.mark.parametrize("path", ["/a", "/a?watch=true"])
@pytest.mark.parametrize(
    ("body", "sent"), [({"code": 429}, b'{"code": 429}'), (b"\xff garbage", b"\xff garbage")]
)
async def test_respond_answers_in_the_servers_place(
    env: Environment, path: str, body: object, sent: bytes
) -> None:
    env.proxy.on(ANY, faults.Respond(429, body, headers={"Retry-After": "7"}))
    async with env.client.get(path) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        assert await response.read() == sent
    assert env.upstream.asked == []
    assert env.proxy.log[0].upstream_status is None


async def test_close_after_lines_ends_the_stream_properly(env: Environment) -> None:
    env.proxy.on(ANY, faults.CloseAfterLines(2))
    assert await env.watched(b"1\n2\n3\n") == b"1\n2\n"


async def test_reset_after_lines_breaks_the_stream(env: Environment) -> None:
    env.proxy.on(ANY, faults.ResetAfterLines(1))
    with pytest.raises(aiohttp.ClientError):
        await env.watched(b"1\n")


async def test_silent_after_lines_keeps_the_connection_open(env: Environment) -> None:
    env.proxy.on(ANY, faults.SilentAfterLines(1))
    env.upstream.feed.put_nowait(b"1\n2\n")
    async with env.client.get("/a?watch=1") as response:
        assert await response.content.readline() == b"1\n"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await response.content.readline()


async def test_rewrite_line_changes_and_removes_lines(env: Environment) -> None:
    env.proxy.on(ANY, faults.RewriteLine(lambda line: None if line == b"2\n" else line * 2))
    # A line may come in pieces, and the last one without its end.
    told = await env.watched(b"1\n", b"2\n", b"th", b"ree\nfour", None)
    assert told == b"1\n1\nthree\nthree\nfourfour"


async def test_insert_line_puts_one_before_the_others(env: Environment) -> None:
    env.proxy.on(ANY, faults.InsertLine(b'{"type":"ERROR"}'))
    assert await env.watched(b"1\n", None) == b'{"type":"ERROR"}\n1\n'


async def test_rules_for_lines_count_watches_only(env: Environment) -> None:
    rule = env.proxy.on(faults.Match(path="/a"), faults.CloseAfterLines(0), nth=1)
    await env.get()
    assert rule.seen == 0
    assert await env.watched() == b""
    assert rule.fired == [env.proxy.log[1]]
