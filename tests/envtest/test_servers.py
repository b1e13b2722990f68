"""What all tests rely on holds for the built-in API server and for the real one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from ccm.gardener.names import GROUP, VERSION
from ccm.sandbox import cluster, process, realserver
from tests import servers
from tests.envtest import assets
from tests.scenario.harness import MACHINE_API, define

T = TypeVar("T")

NODES = "/api/v1/nodes"
HOLD = ["example.com/hold"]


async def create(session: aiohttp.ClientSession, name: str, **meta: Any) -> dict[str, Any]:
    async with session.post(NODES, json={"metadata": {"name": name, **meta}}) as response:
        assert response.status == 201, await response.text()
        return dict(await response.json())


@pytest.mark.both_servers
async def test_each_test_begins_with_nothing(api_server: servers.ApiServer) -> None:
    """Kinds that the test before defined are gone, even with objects that finalizers hold."""
    held = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Machine",
        "metadata": {"name": "held", "finalizers": HOLD},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}},
    }
    async with servers.connect(api_server) as session:
        for _ in range(2):
            await create(session, "held", finalizers=HOLD)
            await define(session)
            async with session.post(f"{MACHINE_API}/machines", json=held) as response:
                assert response.status == 201, await response.text()
            await servers.wipe(api_server)
        async with session.get(NODES) as response:
            assert (await response.json())["items"] == []


@pytest.mark.both_servers
@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_objects_survive_an_end_and_a_start(api_server: servers.ApiServer, way: str) -> None:
    async with servers.connect(api_server) as session:
        made = await create(session, "alpha")
    await (api_server.stop() if way == "stop" else api_server.kill())
    assert not api_server.is_running
    await api_server.start()
    async with servers.connect(api_server) as session, session.get(f"{NODES}/alpha") as response:
        assert (await response.json())["metadata"]["uid"] == made["metadata"]["uid"]


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


@pytest.mark.envtest
async def test_a_real_server_can_be_open_to_all_and_write_down_requests(tmp_path: Path) -> None:
    stranger = realserver.User(name="stranger", token="stranger-token")
    audit_log = tmp_path / "audit.log"
    async with (
        realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            users=[stranger],
            authorization_mode="AlwaysAllow",
            audit_log=audit_log,
        ) as server,
        servers.connect(server, token=stranger.token) as session,
    ):
        await create(session, "alpha")
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    (write,) = (
        one for one in lines if (one["verb"], one["user"]["username"]) == ("create", "stranger")
    )
    assert write["requestObject"]["metadata"]["name"] == "alpha"


@pytest.mark.envtest
async def test_a_real_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    for folder, words, said in (
        (servers.require_assets(), ["--no-such-flag"], "unknown flag: --no-such-flag"),
        (tmp_path, [], "no etcd and no kube-apiserver"),
    ):
        opening = realserver.open_real_apiserver(folder, tmp_path / "server", extra_args=words)
        with pytest.raises(realserver.ServerStartError, match=said):
            await opening.__aenter__()


@pytest.mark.soak
@pytest.mark.envtest
@pytest.mark.timeout(3600)  # the first time the server has to be built
@pytest.mark.parametrize("version", assets.OTHER_VERSIONS)
def test_another_version_of_the_api_server_passes_the_same_tests(version: str) -> None:
    """All but `tests/kubectl`, which compares the built-in server with the pinned one."""
    folder = servers.assets_of(version)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert assets.version_of(folder) == version

    ended = subprocess.run(
        [*tests, "-m", "envtest and not soak", "--ignore=tests/kubectl", "tests"],
        cwd=assets.ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(folder), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    counted = re.search(r"(\d+) passed", ended.stdout)
    assert counted, ended.stdout
    assert int(counted[1]) >= 100
