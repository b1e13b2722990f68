"""The scenarios; each takes a world and returns figures."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.benchmarks import proc
from tests.benchmarks.world import World

NODES = 1000
TUNED = ("--kube-api-qps=10000", "--kube-api-burst=20000", "--concurrent-node-syncs=64")


async def init(world: World, flags: Sequence[str] = TUNED) -> dict[str, Any]:
    """1,000 nodes at once with raised limits, beside a bare client with the same writes."""
    names = [f"node-{n:04d}" for n in range(NODES)]
    await world.add_instances(names)
    bare = await world.bare(names)
    await world.remove_nodes()
    await world.cloud_calls()
    ours = await _ours(world, names, *flags)
    units = {"wall_ratio": "wall_s", "cpu_ratio": "cpu_s", "rss_ratio": "peak_rss_mib"}
    ratios = {name: round(ours[each] / bare[each], 2) for name, each in units.items()}
    return {"ours": ours, "bare": bare, **ratios}


async def init_default(world: World) -> dict[str, Any]:
    """The same with the default flags."""
    return await init(world, ())


async def memory(world: World, *, watch_s: float = 300) -> dict[str, Any]:
    """Resident size in-cluster: idle, with 5,000 fat nodes, and over five quiet minutes."""
    names = [f"node-{n:04d}" for n in range(5000)]
    account = _service_account(world)
    address = urlsplit(world.server.url)
    env = {
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    flags = (*world.flags, *TUNED)
    figures: dict[str, Any] = {}
    with proc.daemon(world.folder / "idle.log", *flags, in_cluster=account, env=env) as daemon:
        daemon.wait_for("became leader")
        await asyncio.sleep(5)
        figures["idle_in_cluster_mib"] = round(proc.usage(daemon.pid).rss_mib, 1)
        daemon.stop()
    await world.add_instances(names)
    await world.register(names, padding=True)
    async with world.api.get(f"/api/v1/nodes/{names[0]}") as response:
        figures["node_bytes"] = len(await response.read())
    with proc.daemon(world.folder / "memory.log", *flags, in_cluster=account, env=env) as daemon:
        await asyncio.to_thread(daemon.wait_for, "node initialised", 5000, 300)
        await asyncio.sleep(5)
        figures["peak_in_cluster_mib"] = round(proc.usage(daemon.pid).peak_mib, 1)
        samples = []
        ends = time.monotonic() + watch_s
        while time.monotonic() < ends:
            samples.append(proc.usage(daemon.pid).rss_mib)
            await asyncio.sleep(5)
        figures["quiet_min_mib"] = round(min(samples), 1)
        figures["quiet_max_mib"] = round(max(samples), 1)
        daemon.stop()
    async with world.leader("kubeconfig.log", *TUNED) as daemon:
        await asyncio.sleep(4)
        figures["kubeconfig_rss_mib"] = round(proc.usage(daemon.pid).rss_mib, 1)
        daemon.stop()
    return figures


async def stall(world: World) -> dict[str, Any]:
    """How long reading 5,000 large nodes blocks the event loop, by watch-list and by pages."""
    await world.register([f"node-{n:04d}" for n in range(5000)], padding=True)
    return {mode: await _stall(world, mode) for mode in ("watch-list", "pages")}


async def _stall(world: World, mode: str) -> dict[str, Any]:
    server = world.server
    arguments = (server.url, server.token, str(server.ca_file), mode)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.stall", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    figures: dict[str, Any] = json.loads(output)
    return figures


async def _ours(world: World, names: list[str], *flags: str) -> dict[str, Any]:
    async with world.leader(f"daemon-{time.monotonic_ns()}.log", *flags) as daemon:
        await world.cloud_calls()
        offset = world.audit.stat().st_size
        before = proc.usage(daemon.pid)
        started = time.time()
        registered_s = await world.register(names)
        await asyncio.to_thread(daemon.wait_for, "node initialised", len(names), 600)
        after = proc.usage(daemon.pid)
        ended = max(line["ts"] for line in daemon.lines("node initialised")) / 1000
        calls = await world.cloud_calls()
        left = await world.uninitialised()
        said = daemon.stop()
    patches = world.named(offset, "patch", "nodes")
    return {
        "nodes": len(names),
        "left": left,
        "wall_s": round(ended - started, 2),
        "registered_s": round(registered_s, 2),
        "cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "peak_rss_mib": round(after.peak_mib, 1),
        "cloud_calls": calls,
        "patches_per_node": Counter(map(str, patches.values())),
        "said": {key: said[key] for key in ("api_reads", "api_writes", "cloud_calls")},
    }


def _service_account(world: World) -> Path:
    folder = world.folder / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(world.server.token)
    (folder / "ca.crt").write_bytes(world.server.ca_file.read_bytes())
    (folder / "namespace").write_text("kube-system")
    return folder
