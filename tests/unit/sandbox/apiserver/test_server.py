"""The server over real HTTP on loopback, in the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ccm.sandbox.apiserver import server, store
from tests.unit.sandbox.apiserver.client import serving
from tests.waiting import DEADLINE_S

NODES = "/api/v1/nodes"
N1 = {"metadata": {"name": "n1"}}


async def test_an_object_lives_through_all_verbs() -> None:
    async with serving() as ask:
        node = await ask("POST", NODES, N1, 201)
        one = f"{NODES}/n1"
        assert await ask("GET", one) == node
        patched = await ask("PATCH", one, {"spec": {"providerID": "sim://1"}})
        assert patched["spec"]["providerID"] == "sim://1"
        listed = await ask("GET", NODES)
        assert (listed["kind"], len(listed["items"])) == ("NodeList", 1)
        updated = await ask("PUT", one, {**patched, **N1})
        assert updated["spec"] == patched["spec"]
        gone = await ask("DELETE", one)
        uid = node["metadata"]["uid"]
        assert gone["details"] == {"name": "n1", "kind": "nodes", "uid": uid}
        assert (await ask("GET", one, code=404))["reason"] == "NotFound"
        # Some kinds are returned when they are deleted.
        path = "/api/v1/namespaces/default/serviceaccounts"
        made = await ask("POST", path, N1, 201)
        assert (await ask("DELETE", f"{path}/n1"))["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("PUT", NODES, {}, 405),
        ("POST", "/api/v1/pods", {}, 405),
        ("DELETE", "/api/v1/namespaces", {}, 405),
        ("POST", f"{NODES}/n1", {}, 405),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, 405),
        ("GET", "/api/v1/nopes", {}, 404),
        ("GET", NODES, {"Accept": "application/xml"}, 406),
        ("GET", NODES, {"Accept": "application/vnd.kubernetes.protobuf"}, 406),
        ("PATCH", f"{NODES}/n1", {"Content_Type": "text/plain"}, 415),
    ],
)
async def test_a_request_that_is_not_served_is_answered_by_a_status(
    method: str, path: str, headers: dict[str, str], code: int
) -> None:
    async with serving() as ask:
        body = await ask(method, path, {}, code, **headers)

        assert (body["kind"], body["code"]) == ("Status", code)


async def test_a_path_of_nothing_is_plain_text_and_of_alternatives_one_is_sent() -> None:
    async with serving() as ask:
        assert await ask("GET", "/nope", code=404) == "404 page not found\n"
        accept = "application/vnd.kubernetes.protobuf,application/json"
        assert (await ask("GET", NODES, Accept=accept))["kind"] == "NodeList"


async def test_unknown_fields_are_warned_of_in_headers() -> None:
    async with serving() as ask:
        body = json.dumps({**N1, "spec": {"foo": 1}})
        async with ask.session.post(NODES, data=body) as response:
            assert response.status == 201
            assert response.headers.getall("Warning") == ['299 - "unknown field \\"spec.foo\\""']


async def test_health_and_version_need_no_token_but_all_else_does() -> None:
    async with serving(token="secret") as ask:
        for path in ("/healthz", "/readyz", "/livez"):
            assert await ask("GET", path) == "ok"
        assert (await ask("GET", "/version"))["minor"] == "36"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            assert (await ask("GET", NODES, code=401, **headers))["reason"] == "Unauthorized"
        await ask("GET", NODES, Authorization="Bearer secret")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch, is_chunked: bool
) -> None:
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with serving() as ask:
        data = pieces() if is_chunked else b" " * 2000
        async with ask.session.post(NODES, data=data) as response:
            answer = await response.json()

    assert (response.status, answer["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_watch_streams_lines_until_its_time_is_over() -> None:
    async with serving() as ask:
        node = await ask("POST", NODES, N1, 201)
        async with ask.session.get(f"{NODES}?watch=true&timeoutSeconds=1") as response:
            first = json.loads(await response.content.readline())
            await ask("POST", NODES, {"metadata": {"name": "n2"}}, 201)
            second = json.loads(await response.content.readline())
            rest = await response.content.read()

        assert first == {"type": "ADDED", "object": node}
        assert second["object"]["metadata"]["name"] == "n2"
        assert rest == b""


async def test_stopping_ends_watches_cleanly() -> None:
    async with contextlib.AsyncExitStack() as stack:
        serving = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await serving.enter_async_context(server.serve(store.Store()))
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        async with session.get(f"{NODES}?watch=true&resourceVersion=1") as response:
            reading = asyncio.create_task(response.content.read())
            await asyncio.sleep(0)
            await serving.aclose()
            async with asyncio.timeout(DEADLINE_S):
                assert await reading == b""


async def test_a_watcher_that_leaves_is_forgotten() -> None:
    objects = store.Store()
    async with server.serve(objects) as url, aiohttp.ClientSession(url) as session:
        before = len(asyncio.all_tasks())
        response = await session.get(f"{NODES}?watch=true&resourceVersion=1")
        response.close()
        async with asyncio.timeout(DEADLINE_S):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
