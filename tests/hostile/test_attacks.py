"""Attacks on the ports of the daemon: it limits its memory and answers honest callers."""

from __future__ import annotations

import asyncio
import contextlib
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
import pytest
import pytest_asyncio
from aiohttp import web

from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox import process, realserver
from tests import pki, servers
from tests.hostile.attacks import REVIEW
from tests.scenario import harness
from tests.waiting import DEADLINE_S

WITHIN_S = 4.0
"""How long an honest caller may wait on a machine that answers soon at rest. Without limits by
address, each new caller waits for 6.6 s, whatever the machine's speed, or is disconnected."""

_SLOWER = 20
"""Factor for the time of an answer at rest, if that is the higher limit: on a busy machine."""

TOKEN = "scraper-token"
ELSEWHERE = "127.0.0.2"
"""Source address of honest callers; attacks come from another one."""

DELAY_S = 0.1
"""Latency of connections from there; the last data of a caller arrives after three of them."""

REVIEW_S = 0.3
"""How long the API server takes for a token."""

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
        failed: errors of honest callers.
        limit_s: how long one may wait.
    """

    def __init__(self, daemon: harness.Daemon, secure: int, webhook: int) -> None:
        self.daemon = daemon
        self.ports = {"secure": secure, "webhook": webhook}
        self.slowest_s = {"metrics": 0.0, "review": 0.0}
        self.failed: list[str] = []
        self.limit_s = harness.WAIT_S
        self._context = pki.client_context()
        self._newcomers = 0

    @property
    def rss_mib(self) -> float:
        """Resident memory now."""
        return self._memory("VmRSS")

    @property
    def peak_mib(self) -> float:
        """Peak of the resident memory."""
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
        return await self._ask("GET", self.ports["secure"], "/metrics", headers=headers)

    async def newcomer(self) -> float:
        """How many seconds a caller waits for metrics that comes from an address of its own far
        away, with a good token that was never shown before."""
        self._newcomers += 1
        headers = {"Authorization": f"Bearer {TOKEN}-{self._newcomers}"}
        since = time.monotonic()
        async with far_away(self.ports["secure"]) as port:
            await self._ask("GET", port, "/metrics", headers=headers, within_s=DEADLINE_S)
        return time.monotonic() - since

    async def measure(self) -> None:
        """Derive the limit from the time of an answer at rest, with warm caches."""
        await self.scrape()
        since = time.monotonic()
        for _ in range(3):
            await self.scrape()
        self.limit_s = max(WITHIN_S, _SLOWER * (time.monotonic() - since) / 3)

    async def review(self) -> str:
        """A review, over a connection of its own."""
        return await self._ask("POST", self.ports["webhook"], REVIEW, json=_BODY)

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
        """Run these attacks; inside the block, their connections stay open.

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

    async def _ask(
        self, method: str, port: int, path: str, *, within_s: float | None = None, **how: Any
    ) -> str:
        url = f"https://{process.LOOPBACK}:{port}{path}"
        connector = aiohttp.TCPConnector(ssl=self._context, force_close=True)
        async with (
            asyncio.timeout(within_s or self.limit_s),
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
async def far_away(port: int) -> AsyncIterator[int]:
    """A port that leads to another one, from an address of its own and with a delay."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            await asyncio.sleep(DELAY_S)
            writer.write(piece)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(process.LOOPBACK, port, local_addr=(ELSEWHERE, 0))
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        finally:
            writer.transport.abort()
            there[1].transport.abort()

    server = await asyncio.start_server(forward, process.LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def started(env: harness.Environment, *, uvloop: bool) -> AsyncIterator[Target]:
    """A daemon of its own process, asked all the time; an API server that knows one caller."""
    absent = env.folder / "absent"
    absent.mkdir()
    (absent / "uvloop.py").write_text("raise ImportError")
    secure, webhook = process.pick_port(), process.pick_port()
    async with reviewer(env.folder / "reviews.kubeconfig") as kubeconfig:
        daemon = await env.start(
            program=PROGRAM,
            env={} if uvloop else {"PYTHONPATH": str(absent)},
            flags={
                "secure-port": str(secure),
                "bind-address": process.LOOPBACK,
                "authentication-kubeconfig": str(kubeconfig),
                "authorization-kubeconfig": str(kubeconfig),
                "authentication-skip-lookup": "true",
                "feature-gates": "CloudControllerManagerWebhook=true",
                "webhooks": "*",
                "webhook-bind-address": process.LOOPBACK,
                "webhook-secure-port": str(webhook),
            },
        )
        await daemon.says("serving webhooks")
        await daemon.says("became leader")
        target = Target(daemon, secure, webhook)
        await target.measure()
        asking = spawn(target.keep_asking(), name="honest")
        try:
            yield target
        finally:
            await cancel_and_join(asking)


@asynccontextmanager
async def reviewer(kubeconfig: Path) -> AsyncIterator[Path]:
    """An API server that answers reviews: the owner of the token may everything, others nothing.

    It takes its time for tokens.
    """

    async def answer(request: web.Request) -> web.Response:
        review = json.loads(await request.read())
        spec = review["spec"]
        known = spec.get("token", "").startswith(TOKEN) or spec.get("user") == "scraper"
        if "token" in spec:
            await asyncio.sleep(REVIEW_S)
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
    port = process.pick_port()
    await web.TCPSite(runner, process.LOOPBACK, port).start()
    realserver.write_kubeconfig(kubeconfig, url=f"http://{process.LOOPBACK}:{port}", token="t")
    try:
        yield kubeconfig
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture
async def attacked(
    api_server: servers.ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Target]:
    """A daemon of its own process, with honest callers; on which event loop is the parameter."""
    async with (
        harness.open_environment(api_server, tmp_path) as env,
        started(env, uvloop=request.param == "uvloop") as found,
    ):
        yield found


MOST_MIB = 200.0
SOAK = [pytest.mark.soak, pytest.mark.timeout(3600)]
SMALL_MIB = 80.0
"""Memory limit for silent and anonymous callers."""

AT_REST_MIB = 12.0
"""By how much more than after the first round may be held after another."""


@pytest.mark.parametrize(
    ("attack", "number"),
    [
        pytest.param("tokens", 160, id="tokens, a few"),
        pytest.param("one_byte", 2000, id="one byte, a few"),
        pytest.param("tokens", 400, id="tokens", marks=SOAK),
        pytest.param("one_byte", 5000, id="one byte", marks=SOAK),
    ],
)
@pytest.mark.parametrize("attacked", ["uvloop", pytest.param("asyncio", marks=SOAK)], indirect=True)
@servers.only_builtin
async def test_connections_from_one_address_do_not_block_other_addresses(
    attacked: Target, attack: str, number: int
) -> None:
    """The new address connects for the first time at the height of the attack."""
    async with attacked.under((attack, "secure", number)):
        waited = [await attacked.newcomer() for _ in range(5)]
    print(f"newcomers waited for {max(waited):.2f} s at most, {attacked.peak_mib:.0f} MiB")

    # Not the maximum: a busy machine can delay any one of them.
    assert min(waited) < attacked.limit_s
    assert attacked.peak_mib < MOST_MIB


@pytest.mark.parametrize(
    ("part", "rounds"),
    [
        pytest.param(0.04, 1, id="a small part"),
        pytest.param(1.0, 2, id="whole", marks=SOAK),
    ],
)
@pytest.mark.parametrize("attacked", ["uvloop", pytest.param("asyncio", marks=SOAK)], indirect=True)
@servers.only_builtin
async def test_attacks_do_not_exhaust_memory_or_delay_honest_callers(
    attacked: Target, part: float, rounds: int
) -> None:
    before, after = attacked.rss_mib, []
    for _ in range(rounds):
        async with attacked.under(
            ("silent", "secure", max(int(5000 * part), 2500)),
            ("silent", "webhook", max(int(5000 * part), 2500)),
            ("unfinished", "secure", max(int(2000 * part), 270)),
            ("cycles", "secure", int(10_000 * part)),
            ("paths", "secure", int(50_000 * part / rounds)),
            ("bodies", "webhook", 64),
        ):
            pass
        after.append(attacked.rss_mib)
    refused = await attacked.metric(
        "ccm_serving_connections_refused_total", server="secure", reason="crowded"
    )
    print(f"MiB: {before:.0f} before, {after} after, {attacked.peak_mib:.0f} at most")
    print(f"honest callers waited for {attacked.slowest_s} at most")

    assert attacked.peak_mib < MOST_MIB
    assert after[-1] < after[0] + AT_REST_MIB
    assert attacked.failed == []
    assert max(attacked.slowest_s.values()) < attacked.limit_s
    assert refused > 0


@pytest.mark.soak
@pytest.mark.parametrize("paths", ["paths", "longest_paths"])
@pytest.mark.parametrize("attacked", ["uvloop", "asyncio"], indirect=True)
@servers.only_builtin
async def test_silent_callers_and_long_paths_do_not_exhaust_memory(
    attacked: Target, paths: str
) -> None:
    before = attacked.rss_mib
    async with attacked.under(("silent", "secure", 1500), (paths, "secure", 3000)):
        silent = await attacked.metric("ccm_serving_connections", server="secure", stage="silent")
        after = attacked.rss_mib
    print(f"MiB: {before:.0f} before, {after:.0f} after, {attacked.peak_mib:.0f} at most")

    assert silent == 1500
    assert attacked.peak_mib < SMALL_MIB
    assert attacked.failed == []
