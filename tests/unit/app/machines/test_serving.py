"""The port of the commands: what is served, to whom, and what a probe sees of a stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ccm.app.health import Vitals
from ccm.app.http import ServerContext
from ccm.app.machines.commands import MACHINE_CONTROLLER, CommandOptions
from ccm.app.machines.serving import serving
from ccm.app.provider import Misconfigured
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TlsSettings
from ccm.kube.transport import Transport
from ccm.sandbox import process

NOWHERE = ClusterConfig(server="http://127.0.0.1:1", credentials=Fixed(), tls=TlsSettings())


@contextlib.asynccontextmanager
async def running(*flags: str, port: int = 0) -> AsyncIterator[tuple[Vitals, str]]:
    """The port of these flags, far from any cluster; and its URL."""
    port, vitals = port or process.pick_port(), Vitals()
    given = ["--cloud-provider=sim", f"--address={process.LOOPBACK}", f"--port={port}", *flags]
    options = MACHINE_CONTROLLER.read(given)
    assert isinstance(options, CommandOptions)
    async with Transport(NOWHERE) as wire, Transport(NOWHERE) as other:
        context = ServerContext(
            options=options, vitals=vitals, transport=wire, environ={}, others={"target": other}
        )
        async with serving(context) as served:
            yield vitals, f"http://{process.LOOPBACK}:{port}"
            assert not served.done()


async def asked(url: str, method: str = "GET") -> tuple[int, str]:
    # Credentials that nobody asked for are no reason to be refused.
    headers = {"Authorization": "Bearer x"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.row("machine-command-04")
async def test_a_probe_sees_that_it_is_told_to_stop() -> None:
    async with running() as (vitals, url):
        assert await asked(f"{url}/healthz") == (200, "OK")
        vitals.stopping = lambda: True
        assert await asked(f"{url}/healthz") == (500, "Unhealthy")
        assert (await asked(f"{url}/livez"))[0] == 200


@pytest.mark.row("machine-command-04")
async def test_what_only_a_restart_helps_against_is_unhealthy_too() -> None:
    async with running() as (vitals, url):
        vitals.late_beats = 100
        assert await asked(f"{url}/healthz") == (500, "Unhealthy")
        assert "[-]event-loop failed" in (await asked(f"{url}/livez"))[1]


@pytest.mark.row("machine-command-04")
async def test_settings_and_metrics_are_for_everybody_and_nothing_can_be_changed() -> None:
    async with running("--machine-creation-timeout=3m") as (_, url):
        told = json.loads((await asked(f"{url}/configz"))[1])["componentconfig"]
        assert (told["machine-creation-timeout"], told["port"]) == ("3m0s", url.rpartition(":")[2])
        assert "mcm_machine_items_total" in (await asked(f"{url}/metrics"))[1]
        refused = [await asked(f"{url}/metrics/slis", method) for method in ("DELETE", "POST")]
        assert [status for status, _ in refused] == [405, 405]
        for path in ("/explain", "/debug/pprof/"):
            assert (await asked(f"{url}{path}"))[0] == 404


async def test_a_port_that_is_taken_is_said() -> None:
    port = process.pick_port()
    async with running(port=port):
        with pytest.raises(Misconfigured, match=f"--port={port}: cannot listen on"):
            async with running(port=port):
                await asyncio.sleep(0)
