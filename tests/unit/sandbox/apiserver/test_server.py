"""The server over real HTTP on loopback, in the test's own process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from ccm.sandbox.apiserver import server, store

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE = "application/merge-patch+json"


@contextlib.asynccontextmanager
async def client(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        server.serve(store.Store(), **options) as url,
        aiohttp.ClientSession(url, timeout=timeout) as session,
    ):
        yield session


async def call(
    session: aiohttp.ClientSession, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body)
    if data is not None:
        named.setdefault("Content-Type", "application/json")
    async with session.request(method, path, data=data, headers=named) as response:
        text = await response.text()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(text) if is_json else text


async def create_node(session: aiohttp.ClientSession, name: str = "n1", **more: Any) -> Any:
    status, node = await call(
        session, "POST", "/api/v1/nodes", {"metadata": {"name": name}, **more}
    )
    assert status == 201, node
    return node


async def test_an_object_lives_through_all_verbs() -> None:
    async with client() as session:
        node = await create_node(session)
        one = "/api/v1/nodes/n1"
        assert await call(session, "GET", one) == (200, node)
        patch = {"spec": {"providerID": "sim://1"}}
        status, patched = await call(session, "PATCH", one, patch, Content_Type=MERGE)
        assert (status, patched["spec"]["providerID"]) == (200, "sim://1")
        status, listed = await call(session, "GET", "/api/v1/nodes")
        assert (status, listed["kind"], len(listed["items"])) == (200, "NodeList", 1)
        status, updated = await call(session, "PUT", one, {**patched, "metadata": {"name": "n1"}})
        assert (status, updated["spec"]) == (200, patched["spec"])
        status, gone = await call(session, "DELETE", one)
        assert (status, gone["status"]) == (200, "Success")
        assert gone["details"] == {
            "name": "n1",
            "kind": "nodes",
            "uid": node["metadata"]["uid"],
        }
        status, missing = await call(session, "GET", one)
        assert (status, missing["reason"]) == (404, "NotFound")


async def test_some_kinds_are_returned_when_deleted() -> None:
    async with client() as session:
        path = "/api/v1/namespaces/default/serviceaccounts"
        _, made = await call(session, "POST", path, {"metadata": {"name": "a"}})

        status, gone = await call(session, "DELETE", f"{path}/a")

        assert (status, gone["metadata"]["uid"]) == (200, made["metadata"]["uid"])


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("PUT", "/api/v1/nodes", {}, 405),
        ("POST", "/api/v1/pods", {}, 405),
        ("DELETE", "/api/v1/namespaces", {}, 405),
        ("POST", "/api/v1/nodes/n1", {}, 405),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, 405),
        ("GET", "/api/v1/nopes", {}, 404),
        ("GET", "/api/v1/nodes", {"Accept": "application/xml"}, 406),
        ("GET", "/api/v1/nodes", {"Accept": "application/vnd.kubernetes.protobuf"}, 406),
        ("PATCH", "/api/v1/nodes/n1", {"Content_Type": "text/plain"}, 415),
    ],
)
async def test_a_request_that_is_not_served_is_answered_by_a_status(
    method: str, path: str, headers: dict[str, str], code: int
) -> None:
    async with client() as session:
        status, body = await call(session, method, path, {}, **headers)

        assert (status, body["kind"], body["code"]) == (code, "Status", code)


async def test_a_path_of_nothing_is_plain_text() -> None:
    async with client() as session:
        assert await call(session, "GET", "/nope") == (404, "404 page not found\n")


async def test_protobuf_is_not_sent_but_alternatives_are_taken() -> None:
    async with client() as session:
        accept = "application/vnd.kubernetes.protobuf,application/json"

        status, body = await call(session, "GET", "/api/v1/nodes", Accept=accept)

        assert (status, body["kind"]) == (200, "NodeList")


async def test_unknown_fields_are_warned_of_in_headers() -> None:
    async with client() as session:
        body = json.dumps({"metadata": {"name": "n1"}, "spec": {"foo": 1}})
        async with session.post("/api/v1/nodes", data=body) as response:
            assert response.status == 201
            assert response.headers.getall("Warning") == ['299 - "unknown field \\"spec.foo\\""']


async def test_health_and_version_need_no_token_but_all_else_does() -> None:
    async with client(token="secret") as session:
        for path in ("/healthz", "/readyz", "/livez"):
            assert await call(session, "GET", path) == (200, "ok")
        status, version = await call(session, "GET", "/version")
        assert (status, version["minor"]) == (200, "36")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic %"}):
            status, body = await call(session, "GET", "/api/v1/nodes", **headers)
            assert (status, body["reason"]) == (401, "Unauthorized")
        basic = base64.b64encode(b"anyone:secret").decode()
        for value in ("Bearer secret", f"Basic {basic}"):
            status, _ = await call(session, "GET", "/api/v1/nodes", Authorization=value)
            assert status == 200


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch, is_chunked: bool
) -> None:
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 1000)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async with client() as session:
        data = pieces() if is_chunked else b" " * 2000
        async with session.post("/api/v1/nodes", data=data) as response:
            answer = await response.json()

    assert (response.status, answer["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_watch_streams_lines_until_its_time_is_over() -> None:
    async with client() as session:
        node = await create_node(session)
        path = "/api/v1/nodes?watch=true&timeoutSeconds=1"
        async with session.get(path) as response:
            first = json.loads(await response.content.readline())
            await create_node(session, "n2")
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
        async with session.get("/api/v1/nodes?watch=true&resourceVersion=1") as response:
            reading = asyncio.create_task(response.content.read())
            await asyncio.sleep(0.05)
            await serving.aclose()
            async with asyncio.timeout(2):
                assert await reading == b""


async def test_a_watcher_that_leaves_is_forgotten() -> None:
    objects = store.Store()
    async with server.serve(objects) as url, aiohttp.ClientSession(url) as session:
        before = len(asyncio.all_tasks())
        response = await session.get("/api/v1/nodes?watch=true&resourceVersion=1")
        response.close()
        async with asyncio.timeout(2):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)
