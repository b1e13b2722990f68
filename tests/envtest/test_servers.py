"""What all tests rely on holds for the built-in API server and for the real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.sandbox import realserver
from tests import servers
from tests.envtest import assets

NODES = "/api/v1/nodes"


async def create(session: aiohttp.ClientSession, name: str, **meta: Any) -> dict[str, Any]:
    async with session.post(NODES, json={"metadata": {"name": name, **meta}}) as response:
        assert response.status == 201, await response.text()
        return dict(await response.json())


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
