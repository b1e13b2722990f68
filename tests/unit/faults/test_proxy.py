"""Each fault does to a request what its name says, and nothing to others."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket

import aiohttp
import pytest

from tests import faults
from tests.unit.faults.upstream import (
    ANY,
    SHORT_S,
    Upstream,
    dropped,
    get,
)

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


# After the request took effect.


# Streams.


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
