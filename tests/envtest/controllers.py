"""A real kube-controller-manager with the few controllers that tests need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from ccm.sandbox import process
from ccm.sandbox.realserver import RealServer
from tests.envtest import assets
from tests.waiting import DEADLINE_S

_POLL_S = 0.05


@contextlib.asynccontextmanager
async def open_controllers(
    server: RealServer, folder: Path, *names: str
) -> AsyncIterator[process.Child]:
    """Run those controllers before a server; yields when they answer.

    Raises:
        AssetsError: the program is not there.
        TimeoutError: they do not answer.
    """
    port = process.pick_port()
    folder.mkdir(parents=True, exist_ok=True)
    program = assets.controllers_dir() / assets.CONTROLLERS
    if not program.is_file():
        raise assets.AssetsError(f"{program} is not there; run `python -m tests.envtest.assets`")
    child = process.Child(
        [
            str(program),
            f"--kubeconfig={server.kubeconfig_path}",
            f"--controllers={','.join(names)}",
            f"--bind-address={process.LOOPBACK}",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
        ],
        log=folder / "output.log",
    )
    try:
        await _answers(child, f"https://{process.LOOPBACK}:{port}/healthz")
        yield child
    finally:
        await child.stop(grace_s=10)


async def _answers(child: process.Child, url: str) -> None:
    connector = aiohttp.TCPConnector(ssl=False)  # it signs its certificate itself
    async with (
        asyncio.timeout(DEADLINE_S),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        while True:
            assert child.exit_code is None, child.log_tail()
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)
