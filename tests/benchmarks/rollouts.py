"""A MachineDeployment: its machines come, are all exchanged for others, become fewer, and go."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ccm.base import tasks
from ccm.kube.informer import SharedInformers
from ccm.sandbox import machines
from tests.benchmarks import proc
from tests.benchmarks.world import World
from tests.scenario import kubermatic
from tests.scenario.machines import GARDENER_FLEET, Fleet, FleetApi
from tests.waiting import DEADLINE_S

BOOT_S = 2.0
SURGE, UNAVAILABLE = 5, 2
FEW = 10
LIMIT_S = 900.0
DEFAULTS = ("--secure-port=0",)
FLAGS = (*DEFAULTS, "--kube-api-qps=-1", "--machine-concurrent-syncs=100")
ROUNDS = 3
"""One round says little: the short phases differ by half a second from run to run."""

PHASES = ("create", "roll", "scale", "delete")
WRITES = frozenset({"create", "update", "patch", "delete"})


async def rollout(
    world: World,
    *,
    count: int = 50,
    api: FleetApi = GARDENER_FLEET,
    given: Sequence[str] = FLAGS,
) -> dict[str, Any]:
    """The life of a deployment, with bounds as a watch shows them."""
    fleet, (first, second) = Fleet(world.api, boot_s=BOOT_S, api=api), api.kinds
    aliases = [one.alias for one in api.api.manifests.values()]
    flags = (f"--controllers={','.join(aliases)}", *given)
    log = f"{api.api.codec.prefix}machines.log"
    async with _prepared(world, api), fleet.at_work(), world.leader(log, *flags) as daemon:
        figures: dict[str, Any] = {"machines": count}
        await fleet.deploy(count, kind=first, surge=SURGE, unavailable=UNAVAILABLE)
        figures["create"] = await _measured(world, daemon, fleet, first, count, count)
        await asyncio.sleep(2)
        await fleet.roll(second)
        figures["roll"] = await _measured(world, daemon, fleet, second, count, count)
        await asyncio.sleep(2)
        await fleet.edit(replicas=FEW)
        figures["scale"] = await _measured(world, daemon, fleet, second, FEW, count - FEW)
        await fleet.delete()
        figures["delete"] = await _measured(world, daemon, fleet, second, 0, FEW)
        async with world.cloud.get("/admin/snapshot") as response:
            figures["vms_left"] = len((await response.json())["instances"])
        figures["peak_rss_mib"] = round(proc.usage(daemon.pid).peak_mib, 1)
        daemon.stop()
    return figures


async def rollout_default(world: World) -> dict[str, Any]:
    """The same with the default flags."""
    return await rollout(world, given=DEFAULTS)


async def many_rollouts(world: World) -> dict[str, Any]:
    """The same with 200."""
    return await rollout(world, count=200)


async def kubermatic_rollout(world: World) -> dict[str, Any]:
    """The same with the objects of both groups by turns, and the ratios of the median times."""
    groups = {"gardener": GARDENER_FLEET, "kubermatic": kubermatic.FLEET}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in groups}
    for number in range(ROUNDS):
        # Neither group always has the servers first, when they have just started.
        for name in sorted(groups, reverse=number % 2 == 1):
            rounds[name].append(await rollout(world, api=groups[name]))
    walls = {
        name: {phase: [one[phase]["wall_s"] for one in figures] for phase in PHASES}
        for name, figures in rounds.items()
    }
    medians = {
        name: {phase: statistics.median(times) for phase, times in of_group.items()}
        for name, of_group in walls.items()
    }
    ratios = {
        phase: round(medians["kubermatic"][phase] / medians["gardener"][phase], 2)
        for phase in PHASES
    }
    return {
        **{name: figures[-1] for name, figures in rounds.items()},
        "walls_s": walls,
        "wall_ratios": ratios,
    }


@contextlib.asynccontextmanager
async def _prepared(world: World, api: FleetApi) -> AsyncIterator[None]:
    """CRDs, objects that describe VMs, and the other programs that the API group needs."""
    async with world.client() as client:
        await machines.create_crds(client, api.api)
        await machines.describe(client, api.api, api.api.simulated(world.token))
        informers = SharedInformers(client)
        companions = api.api.companions(informers, client)
        works = [informers.run(), *(one.run() for one in companions)]
        running = [tasks.spawn(work, name="companions") for work in works]
        try:
            await informers.wait_synced(DEADLINE_S)
            yield
            for task in running:
                if task.done():
                    task.result()
        finally:
            await tasks.cancel_and_join(*running)


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
        if verb in WRITES:
            found[what] += number
    return found


def _requests(world: World, since: int, *, ours: bool) -> Counter[tuple[str, str]]:
    """Requests of the daemon, or of all others, by verb and resource."""
    return Counter(
        (verb, what) for verb, what, _ in world.audited(since, ours=ours) if verb != "watch"
    )
