"""A daemon under attack, as it runs in a cluster, and what honest callers see meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox import ports, realserver
from tests import pki
from tests.hostile.attacks import REVIEW
from tests.scenario import harness

WITHIN_S = 2.0
TOKEN = "scraper-token"
PROGRAM = Path(sys.executable).with_name("cloud-controller-manager")
_BODY = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "operation": "DELETE"},
}
_EACH_S = 0.25


class Target:
    """One daemon, its two ports, and the honest callers who never stop asking.

    Attributes:
        ports: of the server and of the webhooks.
        slowest_s: how long an honest caller waited at most, by what it asked for.
        failed: what honest callers were told instead of an answer.
    """

    def __init__(self, daemon: harness.Daemon, secure: int, webhook: int) -> None:
        self.daemon = daemon
        self.ports = {"secure": secure, "webhook": webhook}
        self.slowest_s = {"metrics": 0.0, "review": 0.0}
        self.failed: list[str] = []
        self._context = pki.client_context()

    @property
    def rss_mib(self) -> float:
        """What it holds now."""
        return self._memory("VmRSS")

    @property
    def peak_mib(self) -> float:
        """What it held at most."""
        return self._memory("VmHWM")

    async def metric(self, name: str, **labels: str) -> float:
        """A sample of its metrics."""
        shown = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
        found = re.search(rf"^{re.escape(f'{name}{{{shown}}}')} (\S+)$", await self.scrape(), re.M)
        assert found, f"{name}{{{shown}}} is no metric"
        return float(found[1])

    async def scrape(self) -> str:
        """Its metrics, over a connection of their own."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return await self._ask("GET", "secure", "/metrics", headers=headers)

    async def review(self) -> str:
        """A review, over a connection of its own."""
        return await self._ask("POST", "webhook", REVIEW, json=_BODY)

    async def keep_asking(self) -> None:
        """Be an honest caller until cancelled."""
        while True:
            for name, ask in (("metrics", self.scrape), ("review", self.review)):
                since = time.monotonic()
                try:
                    await ask()
                except (aiohttp.ClientError, AssertionError, TimeoutError) as error:
                    self.failed.append(f"{name}: {error!r}")
                self.slowest_s[name] = max(self.slowest_s[name], time.monotonic() - since)
            await asyncio.sleep(_EACH_S)

    @asynccontextmanager
    async def under(self, *attacks: tuple[str, str, int]) -> AsyncIterator[None]:
        """Inside the block these attacks have been made, and what they hold they hold.

        Args:
            attacks: each by its name, the port and how many.
        """
        words = [f"{name}:{self.ports[port]}:{number}" for name, port, number in attacks]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.attacks", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert await asyncio.to_thread(child.stdout.readline) == b"done\n"
            yield
            child.stdin.close()
            await asyncio.to_thread(child.wait)

    async def _ask(self, method: str, port: str, path: str, **how: Any) -> str:
        url = f"https://127.0.0.1:{self.ports[port]}{path}"
        connector = aiohttp.TCPConnector(ssl=self._context, force_close=True)
        async with (
            asyncio.timeout(WITHIN_S),
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, url, **how) as response,
        ):
            text = await response.text()
            assert response.status == 200, text
            return text

    def _memory(self, name: str) -> float:
        status = Path(f"/proc/{self.daemon._child.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) / 1024


@asynccontextmanager
async def started(env: harness.Environment, *, uvloop: bool) -> AsyncIterator[Target]:
    """A daemon of its own process, asked all the time; an API server that knows one caller."""
    absent = env.folder / "absent"
    absent.mkdir()
    (absent / "uvloop.py").write_text("raise ImportError")
    secure, webhook = ports.pick_port(), ports.pick_port()
    async with reviewer(env.folder / "reviews.kubeconfig") as kubeconfig:
        daemon = await env.start(
            program=PROGRAM,
            env={} if uvloop else {"PYTHONPATH": str(absent)},
            flags={
                "secure-port": str(secure),
                "bind-address": ports.LOOPBACK,
                "authentication-kubeconfig": str(kubeconfig),
                "authorization-kubeconfig": str(kubeconfig),
                "authentication-skip-lookup": "true",
                "feature-gates": "CloudControllerManagerWebhook=true",
                "webhooks": "*",
                "webhook-bind-address": ports.LOOPBACK,
                "webhook-secure-port": str(webhook),
            },
        )
        await daemon.says("serving webhooks")
        await daemon.says("became leader")
        target = Target(daemon, secure, webhook)
        asking = spawn(target.keep_asking(), name="honest")
        try:
            yield target
        finally:
            await cancel_and_join(asking)


@asynccontextmanager
async def reviewer(kubeconfig: Path) -> AsyncIterator[Path]:
    """An API server that answers reviews: the owner of the token may everything, others nothing."""

    async def answer(request: web.Request) -> web.Response:
        review = json.loads(await request.read())
        spec = review["spec"]
        known = spec.get("token") == TOKEN or spec.get("user") == "scraper"
        review["status"] = {
            "authenticated": known,
            "allowed": known,
            "user": {"username": "scraper", "groups": ["scrapers"]},
        }
        return web.json_response(review, status=201)

    application = web.Application()
    application.router.add_post("/{any:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    port = ports.pick_port()
    await web.TCPSite(runner, ports.LOOPBACK, port).start()
    realserver.write_kubeconfig(kubeconfig, url=f"http://{ports.LOOPBACK}:{port}", token="t")
    try:
        yield kubeconfig
    finally:
        await runner.cleanup()
