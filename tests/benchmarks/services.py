"""A hundred Services and a thousand nodes at once, and one node more beside more Services."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import proc
from tests.benchmarks.scenarios import TUNED
from tests.benchmarks.world import SERVICES_PATH, World

NODES = 1000
SERVICES = 100
LATECOMERS = 5
FLAGS = (*TUNED, "--concurrent-service-syncs=32", "--configure-cloud-routes=false")
TIMEOUT_S = 300.0
QUIET_S = 3.0


async def services(world: World) -> dict[str, Any]:
    """The load appears, for a bare client and for the daemon. Then latecomers."""
    nodes = [f"node-{n:04d}" for n in range(NODES)]
    webs = [f"web-{n:04d}" for n in range(SERVICES)]
    latecomers = [f"late-{n:04d}" for n in range(2 * LATECOMERS)]
    await world.add_instances([*nodes, *latecomers])
    bare = await world.bare(nodes, webs)
    await world.remove_services(webs)
    await world.remove_nodes()
    async with world.leader("services.log", *FLAGS) as daemon:
        ours = await _load(world, daemon, nodes, webs)
        once = await _latecomers(world, daemon, latecomers[:LATECOMERS], SERVICES, NODES)
        more = [f"more-{n:04d}" for n in range(SERVICES)]
        await world.create_services(more)
        members = NODES + LATECOMERS
        await settled(world, 2 * SERVICES, members)
        twice = await _latecomers(world, daemon, latecomers[LATECOMERS:], 2 * SERVICES, members)
        daemon.stop()
    return {
        "ours": ours,
        "bare": bare,
        "cpu_ratio": round(ours["cpu_s"] / bare["cpu_s"], 2),
        "one_node_more": {
            f"{SERVICES}_services": once,
            f"{2 * SERVICES}_services": twice,
            "cpu_ratio": round(twice["cpu_s_per_node"] / once["cpu_s_per_node"], 2),
        },
    }


async def _load(
    world: World, daemon: proc.Daemon, nodes: list[str], webs: list[str]
) -> dict[str, Any]:
    await world.cloud_calls()
    offset = world.audit.stat().st_size
    before = proc.usage(daemon.pid)
    started = time.time()
    registered_s, created_s = await asyncio.gather(
        world.register(nodes), world.create_services(webs)
    )
    await settled(world, len(webs), len(nodes))
    await asyncio.to_thread(daemon.wait_for, "node initialised", len(nodes), 300)
    after = proc.usage(daemon.pid)
    await asyncio.sleep(QUIET_S)
    ensured, changed = daemon.lines("load balancer ensured"), daemon.lines("members updated")
    done = [*ensured, *changed, *daemon.lines("node initialised")]
    calls = await world.cloud_calls()
    ensures = Counter(line["service"] for line in ensured)
    updates = Counter(line["service"] for line in changed)
    bursts = len(daemon.lines("nodes changed"))
    # Each ensure and each update looks its load balancer up once: more looks are failures.
    looks = calls.get("list_balancers", 0)
    return {
        "nodes": len(nodes),
        "services": len(webs),
        "without_address": sum(1 for item in await _wanting(world) if not _ingress(item)),
        "ensures_per_service": max(ensures.values()),
        "host_updates_per_service": max(updates.values(), default=0),
        "bursts": bursts,
        "host_updates_per_service_and_burst": max(updates.values(), default=0) / max(bursts, 1),
        "failed_calls": looks - ensures.total() - updates.total(),
        "wall_s": round(max(line["ts"] for line in done) / 1000 - started, 2),
        "addresses_s": round(max(line["ts"] for line in ensured) / 1000 - started, 2),
        "registered_s": round(registered_s, 2),
        "created_s": round(created_s, 2),
        "cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "peak_rss_mib": round(after.peak_mib, 1),
        "api_writes": {
            "nodes": world.named(offset, "patch", "nodes").total(),
            "services": world.named(offset, "patch", "services").total(),
            "events": world.named(offset, "create", "events").total(),
        },
        "cloud_calls": calls,
    }


async def _latecomers(
    world: World, daemon: proc.Daemon, names: Sequence[str], webs: int, members: int
) -> dict[str, Any]:
    """Cost of one more node, when the daemon is idle between two of them."""
    await asyncio.sleep(QUIET_S)
    before = proc.usage(daemon.pid)
    seconds = []
    for number, name in enumerate(names, 1):
        started = time.monotonic()
        await world.register([name])
        await settled(world, webs, members + number)
        seconds.append(time.monotonic() - started)
        await asyncio.sleep(1)
    after = proc.usage(daemon.pid)
    return {
        "cpu_s_per_node": round((after.cpu_s - before.cpu_s) / len(names), 3),
        "member_everywhere_s": round(sum(seconds) / len(seconds), 2),
    }


async def settled(world: World, webs: int, members: int) -> None:
    """Wait until there are so many load balancers with so many members, all shown."""

    async def is_settled() -> bool:
        found = await _balancers(world)
        complete = [each for each in found if len(each["members"]) == members]
        if not len(found) == len(complete) == webs:
            return False
        return all(map(_ingress, await _wanting(world)))

    async with asyncio.timeout(TIMEOUT_S):
        while not await is_settled():
            await asyncio.sleep(0.2)


async def _balancers(world: World) -> list[dict[str, Any]]:
    async with world.cloud.get("/admin/balancers?limit=500") as response:
        response.raise_for_status()
        return list((await response.json())["balancers"])


async def _wanting(world: World) -> list[dict[str, Any]]:
    async with world.api.get(SERVICES_PATH) as response:
        items = (await response.json())["items"]
    return [item for item in items if item["spec"]["type"] == "LoadBalancer"]


def _ingress(service: dict[str, Any]) -> list[Any]:
    return list(service["status"]["loadBalancer"].get("ingress") or ())
