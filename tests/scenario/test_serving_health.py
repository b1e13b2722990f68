"""Health endpoints of the daemon during outages, and of a standby."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from ccm.controllers.route.manifest import MANIFEST as ROUTE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.sandbox import process
from tests import pki, servers
from tests.faults import FaultProxy
from tests.scenario.harness import Daemon, Environment, command_line, wait_for
from tests.scenario.test_misconfiguration import GOOD, flags_of, run

HEALTHY = {"/healthz": 200, "/livez": 200, "/readyz": 200}
OUTAGE = {"/healthz": 200, "/livez": 200, "/readyz": 500}

LENGTHS = [
    pytest.param(0.0, id="short"),
    pytest.param(300.0, id="five minutes", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
]
"""How long a trouble lasts after it was noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A daemon whose health can be asked for."""

    daemon: Daemon
    session: aiohttp.ClientSession

    async def codes(self) -> Mapping[str, int]:
        """The answers to all three questions."""
        return {path: (await self.ask(path))[0] for path in HEALTHY}

    async def ask(self, path: str) -> tuple[int, str]:
        """Status and text of one answer."""
        async with self.session.get(path) as response:
            return response.status, await response.text()

    async def says(self, codes: Mapping[str, int]) -> None:
        """Wait for these answers."""

        async def so() -> bool:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                return await self.codes() == codes
            return False

        await wait_for(so, f"{self.daemon.name} answers {codes}")

    async def stays(self, codes: Mapping[str, int], seconds: float) -> None:
        """Ask for so long, at least once; the answers are always these."""
        ends = time.monotonic() + seconds
        while True:
            assert await self.codes() == codes
            if time.monotonic() > ends:
                return
            await asyncio.sleep(min(5.0, seconds))


@contextlib.asynccontextmanager
async def started(
    env: Environment, flags: Mapping[str, str] | None = None, *, proxy: FaultProxy | None = None
) -> AsyncIterator[Asked]:
    """Start another daemon, whose health endpoints need no authorization."""
    port = process.pick_port()
    daemon = await env.start(
        flags={
            "secure-port": str(port),
            "bind-address": process.LOOPBACK,
            "authorization-always-allow-paths": "/healthz*,/livez*,/readyz*",
            **(flags or {}),
        },
        proxy=proxy,
    )
    await daemon.says("serving")
    async with aiohttp.ClientSession(
        f"https://{process.LOOPBACK}:{port}",
        connector=aiohttp.TCPConnector(ssl=pki.client_context()),
    ) as session:
        yield Asked(daemon=daemon, session=session)


@servers.only_builtin
@pytest.mark.row("serving-health-03")
@pytest.mark.parametrize("seconds", LENGTHS)
@pytest.mark.parametrize("of", ["cloud", "api-server"])
async def test_an_outage_fails_readiness_but_not_liveness(
    env: Environment, of: str, seconds: float
) -> None:
    await env.node("alpha")
    async with started(env, {"leader-elect": "false"}) as asked:
        await env.cluster.initialised("alpha")
        await asked.says(HEALTHY)

        proxy = env.cloud_proxy if of == "cloud" else env.proxy
        await proxy.down()
        await env.cluster.register("beta")  # the cloud is asked about it again and again
        await asked.says(OUTAGE)
        assert f"[-]{of} failed: " in (await asked.ask("/readyz"))[1]
        await asked.stays(OUTAGE, seconds)

        await proxy.up()
        env.machine("beta")
        await asked.says(HEALTHY)


@servers.only_builtin
@pytest.mark.row("serving-health-03", "serving-health-05")
@pytest.mark.parametrize("seconds", LENGTHS)
async def test_a_standby_is_ready_only_while_the_api_server_is_reachable(
    env: Environment, seconds: float
) -> None:
    """A daemon that starts during an outage names the API server as the cause."""
    await env.start_leading()
    async with started(env) as standby:
        await standby.daemon.says("new leader elected")
        await standby.says(HEALTHY)
        assert "[+]caches ok: none, standing by" in (await standby.ask("/readyz?verbose"))[1]

        await env.proxies[1].down()
        await standby.says(OUTAGE)
        await standby.stays(OUTAGE, seconds)
        async with started(env, proxy=env.proxies[1]) as late:
            await late.says(OUTAGE)
            assert "[-]api-server failed: " in (await late.ask("/readyz"))[1]

            await env.proxies[1].up()
            await late.says(HEALTHY)
        await standby.says(HEALTHY)


@servers.only_builtin
@pytest.mark.row("serving-health-04")
async def test_a_controller_without_required_flags_is_reported_as_not_running(
    env: Environment,
) -> None:
    flags = {"controllers": f"*,-{SERVICE.name}", "cluster-cidr": ""}
    async with started(env, flags) as asked:
        await asked.says(HEALTHY)

        status, said = await asked.ask("/readyz?verbose")

    (line,) = [line for line in said.splitlines() if ROUTE.name in line]
    assert status == 200
    assert line.startswith(f"[+]{ROUTE.name} ok: not running: --cluster-cidr is not set")


@pytest.mark.row("serving-start-01")
async def test_a_port_in_use_ends_the_process_with_one_message(tmp_path: Path) -> None:
    with socket.create_server((process.LOOPBACK, 0)) as taken:
        address = f"{process.LOOPBACK}:{taken.getsockname()[1]}"
        flags = {"secure-port": address.partition(":")[2], "bind-address": process.LOOPBACK}

        end = await run(command_line({**flags_of(tmp_path, GOOD), **flags}), tmp_path)

    assert end.is_one_message
    assert f"cannot listen on {address}: Address already in use" in end.message
