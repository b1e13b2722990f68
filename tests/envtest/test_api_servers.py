"""What every scenario relies on holds for the built-in API server and for the real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import aiohttp
import pytest

from ccm.gardener.names import GROUP, VERSION
from ccm.sandbox import cluster, process
from tests import servers
from tests.scenario import definitions
from tests.waiting import DEADLINE_S

T = TypeVar("T")

NODES = "/api/v1/nodes"
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


async def create(session: aiohttp.ClientSession, name: str) -> dict[str, Any]:
    async with session.post(NODES, json=node(name)) as response:
        assert response.status == 201, await response.text()
        return dict(await response.json())


async def stored(api_server: servers.ApiServer) -> dict[str, Any]:
    async with servers.connect(api_server) as session, session.get(f"{NODES}/alpha") as response:
        return dict(await response.json())


async def label(session: aiohttp.ClientSession, name: str, text: str) -> None:
    patch = json.dumps({"metadata": {"labels": {"mark": text}}})
    async with session.patch(f"{NODES}/{name}", data=patch, headers=MERGE_PATCH) as response:
        assert response.status == 200, await response.text()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        yield json.loads(line)


@pytest.mark.both_servers
async def test_a_node_is_created_read_and_patched(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        await create(session, "alpha")
        await label(session, "alpha", "seen")
    assert (await stored(api_server))["metadata"]["labels"]["mark"] == "seen"


@pytest.mark.both_servers
async def test_a_watch_tells_of_changes(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session, asyncio.timeout(DEADLINE_S):
        made = await create(session, "alpha")
        since = made["metadata"]["resourceVersion"]
        async with session.get(f"{NODES}?watch=1&resourceVersion={since}") as response:
            told = events(response)
            await label(session, "alpha", "seen")
            change = await anext(told)
            assert change["type"] == "MODIFIED"
            assert change["object"]["metadata"]["labels"]["mark"] == "seen"


@pytest.mark.both_servers
async def test_each_test_begins_with_no_nodes(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        held = node("held")
        held["metadata"]["finalizers"] = ["example.com/hold"]
        async with session.post(NODES, json=held) as response:
            assert response.status == 201, await response.text()
        await servers.wipe(api_server)
        async with session.get(NODES) as response:
            assert (await response.json())["items"] == []


@pytest.mark.both_servers
async def test_each_test_defines_its_own_kinds(api_server: servers.ApiServer) -> None:
    """Those of the test before are gone, even with an object that a finalizer holds."""
    held = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Machine",
        "metadata": {"name": "held", "finalizers": ["example.com/hold"]},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}},
    }
    async with servers.connect(api_server) as session:
        for _ in range(2):
            await definitions.define(session)
            async with session.post(f"{definitions.BASE}/machines", json=held) as response:
                assert response.status == 201, await response.text()
            await servers.wipe(api_server)


async def test_a_wrong_token_is_unauthorized(api_server: servers.ApiServer) -> None:
    async with (
        servers.connect(api_server, token="wrong") as session,
        session.get(NODES) as response,
    ):
        assert response.status == 401
        assert (await response.json())["reason"] == "Unauthorized"


async def test_objects_survive_stop_and_start(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        made = await create(session, "alpha")
    await api_server.stop()
    assert not api_server.is_running
    async with servers.connect(api_server) as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(NODES)
    await api_server.start()
    assert (await stored(api_server))["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.both_servers
async def test_objects_survive_kill_and_start(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        made = await create(session, "alpha")
    await api_server.kill()
    await api_server.start()
    assert (await stored(api_server))["metadata"]["uid"] == made["metadata"]["uid"]


def without_the_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine while the event loop stands still."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@servers.only_builtin
async def test_a_client_may_post_as_soon_as_the_server_is_back(
    api_server: servers.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its event loop had no turn since the connections to the former server ended."""
    ready = cluster.until_ready

    async def until_ready(child: process.Child, within_s: float) -> dict[str, Any]:
        return without_the_loop(ready(child, within_s))

    monkeypatch.setattr(cluster, "until_ready", until_ready)
    async with servers.connect(api_server) as session:
        await create(session, "alpha")
        without_the_loop(api_server.kill())
        await api_server.start()
        await create(session, "beta")
