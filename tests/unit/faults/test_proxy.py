"""Requests, answers and streams pass the proxy as they are, unless a rule says otherwise."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket

import aiohttp
import pytest

from tests import faults
from tests.unit.faults.upstream import ANY, DROPPED, SHORT_S, Environment
from tests.waiting import DEADLINE_S

# Without rules.


async def test_requests_and_answers_pass_untouched(env: Environment) -> None:
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/merge-patch+json"}
    path = "/n%2Fx?dryRun=All&a=%20b"
    async with env.client.patch(path, data=b"{}", headers=headers) as response:
        assert response.headers["X-Served-By"] == "upstream"
        assert (await response.json())["path"] == "/n/x"
    assert env.upstream.asked == ["PATCH /n%2Fx?dryRun=All&a=%20b"]
    assert env.upstream.bodies == [b"{}"]
    assert env.upstream.headers[0].items() >= headers.items()


async def test_statuses_pass_with_and_without_a_body(env: Environment) -> None:
    async with env.client.get("/missing") as response:
        assert (response.status, await response.text()) == (404, "no such thing")
    async with env.client.delete("/empty") as response:
        assert (response.status, await response.read()) == (204, b"")


async def test_a_large_compressed_body_arrives_as_it_was_sent(env: Environment) -> None:
    body = gzip.compress(bytes(range(256)) * 20_000, compresslevel=0)
    headers = {"Content-Encoding": "gzip"}
    async with env.client.post("/a", data=io.BytesIO(body), headers=headers) as response:
        assert response.status == 200
    assert gzip.decompress(body) == env.upstream.bodies[0]


async def test_the_log_tells_what_was_asked_and_answered(env: Environment) -> None:
    await env.get("/a?limit=5")
    async with env.client.put("/missing", json={"x": 1}) as response:
        assert response.status == 404
    read, write = env.proxy.log
    assert (read.method, read.path, read.query, read.status) == ("GET", "/a", {"limit": "5"}, 200)
    assert (write.json(), write.upstream_status) == ({"x": 1}, 404)
    assert str(write) == "PUT /missing -> 404"


async def test_a_watch_passes_each_line_as_it_comes(env: Environment) -> None:
    async with env.client.get("/a?watch=1") as response:
        for number in range(3):
            env.upstream.feed.put_nowait(b"line %d\n" % number)
            assert await response.content.readline() == b"line %d\n" % number
        await env.proxy.wait_for(faults.Match(where=lambda e: e.lines == 3))
        env.upstream.feed.put_nowait(None)
        assert await response.content.readline() == b""


async def test_a_client_that_goes_away_ends_the_watch_upstream(env: Environment) -> None:
    async with env.client.get("/a?watch=1"):
        assert env.upstream.watches == 1
    await env.proxy.wait_for(faults.Match(where=lambda e: e.ended_s is not None))
    async with asyncio.timeout(DEADLINE_S):
        while env.upstream.watches:
            await asyncio.sleep(0.01)


async def test_an_upstream_that_is_not_there_looks_like_a_cut_connection() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        async with (
            faults.FaultProxy(f"http://127.0.0.1:{port}") as proxy,
            aiohttp.ClientSession() as client,
        ):
            with pytest.raises(DROPPED):
                await client.get(proxy.url)
            assert proxy.log[0].status is None
            assert "ClientConnectorError" in str(proxy.log[0])


# Rules.


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
    env: Environment, nth: int | None, times: int | None, expected: list[int]
) -> None:
    rule = env.proxy.on(ANY, faults.Respond(500), nth=nth, times=times)
    for status in expected:
        async with env.client.get("/a") as response:
            assert response.status == status
    assert (rule.seen, len(rule.fired)) == (4, expected.count(500))
    env.proxy.remove(rule)
    await env.get()


async def test_several_rules_work_on_one_request_in_order(env: Environment) -> None:
    env.proxy.on(ANY, faults.Delay(SHORT_S))
    env.proxy.on(ANY, faults.RewriteBody(lambda _: b'{"n": 1}'))
    env.proxy.on(ANY, faults.RewriteBody(lambda body: json.dumps([json.loads(body)]).encode()))
    assert await env.get() == [{"n": 1}]


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


async def test_wait_for_says_what_came_instead(env: Environment) -> None:
    await env.get()
    with pytest.raises(TimeoutError, match="GET /a -> 200"):
        await env.proxy.wait_for(faults.Match(method="POST"), timeout_s=SHORT_S)


# The whole proxy.


async def test_down_refuses_connections_and_up_accepts_them_again(env: Environment) -> None:
    url = env.proxy.url
    async with env.client.get("/a?watch=1") as response:
        await env.proxy.down()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readline()
    for _ in range(2):
        with pytest.raises(aiohttp.ClientConnectionError):
            await env.client.get("/a")
    await env.proxy.up()
    assert env.proxy.url == url
    assert await env.get()


async def test_all_connections_can_be_cut_at_once(env: Environment) -> None:
    async with env.client.get("/a?watch=1") as one, env.client.get("/b?watch=1") as other:
        env.proxy.cut_connections()
        for response in (one, other):
            with pytest.raises(aiohttp.ClientError):
                await response.content.readline()
    assert await env.get()


async def test_closing_the_proxy_ends_what_it_holds(env: Environment) -> None:
    async with faults.FaultProxy(env.proxy.url) as outer:
        outer.on(ANY, faults.Hold(asyncio.Event()))
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(session.get(outer.url))
            await outer.wait_for(ANY)
            await outer.__aexit__(None, None, None)
            with pytest.raises(DROPPED):
                await asking
    assert env.upstream.asked == []
