"""What other clients of the same API server notice while the daemon brings up new nodes.

Fifty clients read a Node each, ten times a second. The daemon uses its service account, so that
API Priority and Fairness applies to it, and starts when the nodes are there, so that only its own
requests are measured.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox.realserver import TokenUser
from ccm.testing.apiserver.server import write_kubeconfig
from tests.benchmarks import bare, proc
from tests.benchmarks.world import World, open_world

NODES = 1000
CLIENTS = 50
INTERVAL_S = 0.1
FLOW_CONTROL = Path("manifests/components/flow-control/flowcontrol.yaml")
IDLE_S = 10.0
LIMIT_S = 600.0
LIMITED = ("--kube-api-qps=20", "--kube-api-burst=30")
IDLE = "idle"
MODES: dict[str, tuple[Sequence[str], bool]] = {
    IDLE: ((), False),
    "limited": (LIMITED, False),
    "without_flow_schema": ((), False),
    "with_flow_schema": ((), True),
}
"""Mode -> flags, and whether the component flow-control is applied; idle: no node is new."""


async def neighbours() -> dict[str, Any]:
    """Latencies of the clients by mode, and the ratios of their p99 to that of `limited`."""
    figures = {mode: await _measured(mode) for mode in MODES}
    limited_ms = figures["limited"]["p99_ms"]
    ratios = {mode: round(row["p99_ms"] / limited_ms, 2) for mode, row in figures.items()}
    return {**figures, "p99_ratios": ratios}


async def _measured(mode: str) -> dict[str, Any]:
    flags, has_schema = MODES[mode]
    daemon, reader = (
        TokenUser(
            name=f"system:serviceaccount:{namespace}:{name}",
            token=secrets.token_hex(16),
            groups=(
                "system:serviceaccounts",
                f"system:serviceaccounts:{namespace}",
                "system:authenticated",
            ),
        )
        for namespace, name in (("kube-system", "cloud-controller-manager"), ("default", "reader"))
    )
    names = [f"node-{n:04d}" for n in range(NODES)]
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        async with open_world(
            Path(folder), users=(daemon, reader), authorization_mode="AlwaysAllow"
        ) as world:
            if has_schema:
                await _apply_flow_control(world)
            await world.add_instances(names)
            await world.register(names)
            latencies_s: list[float] = []
            server, ca_file = world.server.url, world.server.ca_file
            async with bare.connect(server, reader.token, str(ca_file)) as session:
                readers = [
                    spawn(_read(session, name, latencies_s), name=name) for name in names[:CLIENTS]
                ]
                try:
                    wall_s = await _bring_up(world, daemon.token, mode, flags, latencies_s)
                finally:
                    await cancel_and_join(*readers)
    centiles = statistics.quantiles(latencies_s, n=100)
    return {
        "wall_s": round(wall_s, 2),
        "requests": len(latencies_s),
        "p50_ms": round(centiles[49] * 1000, 1),
        "p99_ms": round(centiles[98] * 1000, 1),
    }


async def _bring_up(
    world: World, token: str, mode: str, flags: Sequence[str], latencies_s: list[float]
) -> float:
    """Run the daemon until all nodes are initialised; return the seconds from its election."""
    if mode == IDLE:
        await asyncio.sleep(IDLE_S)
        return IDLE_S
    kubeconfig = world.folder / "daemon.kubeconfig"
    write_kubeconfig(kubeconfig, url=world.server.url, token=token, ca_file=world.server.ca_file)
    words = (f"--kubeconfig={kubeconfig}", *world.flags, *flags)
    with proc.daemon(world.folder / f"{mode}.log", *words) as daemon:
        await asyncio.to_thread(daemon.wait_for, "became leader")
        latencies_s.clear()
        started = time.monotonic()
        await asyncio.to_thread(daemon.wait_for, "node initialised", NODES, LIMIT_S)
        wall_s = time.monotonic() - started
        daemon.stop()
    return wall_s


async def _read(session: aiohttp.ClientSession, name: str, latencies_s: list[float]) -> None:
    """Read a Node at a constant rate, as long as the responses allow it."""
    while True:
        started = time.perf_counter()
        async with session.get(f"/api/v1/nodes/{name}") as response:
            response.raise_for_status()
            await response.read()
        took_s = time.perf_counter() - started
        latencies_s.append(took_s)
        await asyncio.sleep(max(0.0, INTERVAL_S - took_s))


async def _apply_flow_control(world: World) -> None:
    for document in yaml.safe_load_all(FLOW_CONTROL.read_text()):
        path = f"/apis/{document['apiVersion']}/{document['kind'].lower()}s"
        async with world.api.post(path, json=document) as response:
            if response.status != 201:
                raise RuntimeError(await response.text())
