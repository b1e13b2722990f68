"""A MachineDeployment: its machines come, are all exchanged for others, become fewer, and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks import proc
from tests.benchmarks.world import World
from tests.scenario import harness
from tests.scenario.machines import ALL_CONTROLLERS, SIM, Fleet, make_class, sim_secret

BOOT_S = 2.0
SURGE, UNAVAILABLE = 5, 2
FEW = 10
LIMIT_S = 900.0
FLAGS = (
    "--kube-api-qps=-1",
    f"--controllers={','.join(ALL_CONTROLLERS)}",
    "--machine-concurrent-syncs=100",
    "--secure-port=0",
)
_WRITES = frozenset({"create", "update", "patch", "delete"})


async def rollout(world: World, *, count: int = 50) -> dict[str, Any]:
    """The life of a deployment, with bounds as a watch shows them."""
    cloud = yaml.safe_load(Path(world.cloud_config).read_text())
    fleet = Fleet(world.api, boot_s=BOOT_S)
    await harness.define(world.api)
    for kind in ("one", "two"):
        await make_class(fleet.cluster, kind, SIM, sim_secret(cloud["token"]))
    async with fleet.at_work(), world.leader("machines.log", *FLAGS) as daemon:
        figures: dict[str, Any] = {"machines": count}
        await fleet.deploy(count, kind="one", surge=SURGE, unavailable=UNAVAILABLE)
        figures["create"] = await _measured(world, daemon, fleet, "one", count, count)
        await asyncio.sleep(2)
        await fleet.roll("two")
        figures["roll"] = await _measured(world, daemon, fleet, "two", count, count)
        await asyncio.sleep(2)
        await fleet.edit(replicas=FEW)
        figures["scale"] = await _measured(world, daemon, fleet, "two", FEW, count - FEW)
        await fleet.delete()
        figures["delete"] = await _measured(world, daemon, fleet, "two", 0, FEW)
        async with world.cloud.get("/admin/snapshot") as response:
            figures["vms_left"] = len((await response.json())["instances"])
        figures["peak_rss_mib"] = round(proc.usage(daemon.pid).peak_mib, 1)
        daemon.stop()
    return figures


async def many_rollouts(world: World) -> dict[str, Any]:
    """The same with 200."""
    return await rollout(world, count=200)


async def _measured(
    world: World, daemon: proc.Daemon, fleet: Fleet, kind: str, count: int, changed: int
) -> dict[str, Any]:
    """One change, from now until all machines are as they should be."""
    await world.cloud_calls()
    offset, before = world.audit.stat().st_size, proc.usage(daemon.pid)
    fleet.watch_bounds()
    wall_s = await fleet.until(lambda one: one.all_run(kind, count), within_s=LIMIT_S)
    after = proc.usage(daemon.pid)
    await asyncio.sleep(1)
    requests, theirs = _requests(world, offset, ours=True), _requests(world, offset, ours=False)
    told = {f"{verb} {what}": number for (verb, what), number in requests.most_common()}
    by_kind = {what: round(number / changed, 2) for what, number in _writes(requests).items()}
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "most": fleet.most,
        "least": fleet.least,
        "writes_per_machine": round(_writes(requests).total() / changed, 2),
        "writes_per_machine_by_kind": by_kind,
        "writes_per_machine_of_others": round(_writes(theirs).total() / changed, 2),
        "requests": told,
        "cloud_calls": (await world.cloud_calls())["total"],
    }


def _writes(requests: Counter[tuple[str, str]]) -> Counter[str]:
    """Requests that change something, or should have, by resource."""
    found: Counter[str] = Counter()
    for (verb, what), number in requests.items():
        if verb in _WRITES:
            found[what] += number
    return found


def _requests(world: World, since: int, *, ours: bool) -> Counter[tuple[str, str]]:
    """Requests of the daemon, or of all others, by verb and resource."""
    return Counter(
        (verb, what) for verb, what, _ in world.audited(since, ours=ours) if verb != "watch"
    )
