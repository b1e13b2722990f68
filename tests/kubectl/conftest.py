"""kubectl on the built-in API server, and on the real one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccm.sandbox import realserver
from tests import forkserver, servers
from tests.kubectl.tool import Kubectl
from tests.waiting import DEADLINE_S


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(ours):
            item.add_marker(pytest.mark.xdist_group("kubectl"))


@pytest.fixture(scope="module")
def program() -> Path:
    return servers.require_assets() / "kubectl"


@pytest.fixture(scope="module")
def builtin_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("builtin")
    command = [sys.executable, "-m", "ccm.testing.apiserver", "--data-dir", str(folder)]
    with forkserver.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Path(json.loads(process.stdout.readline())["kubeconfig"])
        process.terminate()
        assert process.wait(timeout=DEADLINE_S) == 0


def _emptied(kubectl: Kubectl) -> Kubectl:
    kubectl("delete", "nodes,events,configmaps,pods,services,deployments", "--all", "--wait")
    return kubectl


@pytest.fixture
def kubectl(program: Path, builtin_kubeconfig: Path, tmp_path: Path) -> Kubectl:
    return _emptied(Kubectl(program, builtin_kubeconfig, tmp_path / "home"))


async def _wiped(server: realserver.RealServer) -> None:
    """Started, without objects of other tests: finalizers block `kubectl delete`."""
    await server.start()
    await servers.wipe(server)


@pytest.fixture
def real_kubectl(
    program: Path, shared_real_server: realserver.RealServer, tmp_path: Path
) -> Kubectl:
    asyncio.run(_wiped(shared_real_server))
    return _emptied(Kubectl(program, shared_real_server.kubeconfig_path, tmp_path / "real-home"))
