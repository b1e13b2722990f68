"""How the cost of new nodes and Services grows with the cluster, up to 15,000 nodes.

Each cluster with Services is then settled, and the daemon is started again and left idle. A further
case has routes to the Pods of 1,000 nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import proc, ticking
from tests.benchmarks.world import RESTING_S, World, open_world

SIZES = {1_000: 133, 5_000: 667, 15_000: 2_000}
"""Nodes -> Services."""

ROUTES = 1_000
CLUSTER_CIDR = "100.64.0.0/10"

READS = ("get ", "list ", "watch ")
OWN_OBJECTS = (" leases", " events", " configmaps")
"""The Lease, the Event of the election, and the record of the journal's leader."""

IDLE_S = 60.0
LIMIT_S = 1_800.0
SAMPLE = 5
"""Load balancers whose members are counted in the end: all of them would be 30 million."""


WIDTH, HEIGHT, MARGIN = 640, 420, 60
"""Size of the plot in pixels."""

SERIES = {
    "bare": "#888888",
    "nodes": "#0b6bcb",
    "bare_with_services": "#b0a090",
    "with_services": "#c2410c",
}
"""Series of the plot -> its colour."""


async def growth() -> dict[str, Any]:
    """Default flags: nodes beside a bare client, then the same with Services; growth exponents."""
    rows = {nodes: await _measured(nodes, services) for nodes, services in SIZES.items()}
    least, most = min(SIZES), max(SIZES)
    exponents = {
        f"{case}.{figure}": _exponent(most / least, rows[least][case], rows[most][case], figure)
        for case, figure in itertools.product(SERIES, ("wall_s", "cpu_s", "peak_rss_mib"))
    }
    return {
        "sizes": {str(nodes): row for nodes, row in rows.items()},
        "exponents": exponents,
        "routes": await _routes(),
    }


def _exponent(factor: float, small: dict[str, Any], large: dict[str, Any], figure: str) -> float:
    """The exponent of a cost that is a power of the number of nodes; 1 = linear."""
    return round(math.log(large[figure] / small[figure]) / math.log(factor), 2)


async def _measured(nodes: int, services: int) -> dict[str, Any]:
    names = [f"node-{n:05d}" for n in range(nodes)]
    webs = [f"web-{n:04d}" for n in range(services)]

    async def measured(run: Callable[..., Awaitable[dict[str, Any]]], *given: Any) -> Any:
        # A world for each: the load balancers of one would slow down the cloud of the next.
        with tempfile.TemporaryDirectory(prefix="growth-") as folder:
            async with open_world(Path(folder)) as world:
                await world.add_instances(names)
                return await run(world, names, *given)

    rows = {
        "bare": await measured(World.bare),
        "nodes": await measured(_bring_up, ()),
        "bare_with_services": await measured(World.bare, webs),
        "with_services": await measured(_bring_up, webs),
    }
    pairs = {"": ("nodes", "bare"), "_with_services": ("with_services", "bare_with_services")}
    ratios = {
        f"{figure}_ratio{case}": round(rows[ours][f"{figure}_s"] / rows[bare][f"{figure}_s"], 2)
        for case, (ours, bare) in pairs.items()
        for figure in ("wall", "cpu")
    }
    return {**rows, **ratios}


async def _bring_up(world: World, names: list[str], webs: Sequence[str]) -> dict[str, Any]:
    """All nodes and Services appear at once, in a cluster that the daemon already watches."""
    ticks = world.folder / f"ticks-{len(webs)}"
    flags = ("--configure-cloud-routes=false",)
    async with world.leader(f"growth-{len(webs)}.log", *flags, ticks=ticks) as daemon:
        await world.cloud_calls()
        before = proc.usage(daemon.pid)
        started = time.time()
        await asyncio.gather(
            world.register(names),
            world.create_services(webs),
        )
        await asyncio.to_thread(daemon.wait_for, "node initialised", len(names), LIMIT_S)
        after = proc.usage(daemon.pid)
        if webs:
            await asyncio.to_thread(daemon.wait_for, "load balancer ensured", len(webs), LIMIT_S)
            after = await _rested(daemon)
            await _check_members(world, len(names))
        done = [
            line["ts"]
            for message in ("node initialised", "load balancer ensured", "members updated")
            for line in daemon.lines(message)
        ]
        ended = max(done) / 1000
        calls = await world.cloud_calls()
        daemon.stop()
    restart = {"restart": await _restart(world, flags)} if webs else {}
    return {
        "wall_s": round(ended - started, 2),
        "cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "peak_rss_mib": round(after.peak_mib, 1),
        "events": await world.count_events(),
        "cloud_calls": calls,
        **ticking.longest(ticks, started, ended),
        **restart,
    }


async def _restart(world: World, flags: Sequence[str]) -> dict[str, Any]:
    """Figures of a start on a settled cluster, until the daemon rests, and of an idle minute.

    The CPU of the idle minute includes about a second of the ticker.
    """
    await world.cloud_calls()
    offset, ticks = world.audit.stat().st_size, world.folder / "ticks-restart"
    started = time.time()
    async with world.leader("restart.log", *flags, ticks=ticks) as daemon:
        rested, rested_at = await _rested(daemon), time.time()
        calls = await world.cloud_calls()
        requests = world.requests(offset)
        await asyncio.sleep(IDLE_S)
        idle = proc.usage(daemon.pid)
        daemon.stop()
    return {
        "cpu_s": round(rested.cpu_s, 2),
        "peak_rss_mib": round(rested.peak_mib, 1),
        "requests": requests,
        "writes": sum(
            count
            for request, count in requests.items()
            if not request.startswith(READS) and not request.endswith(OWN_OBJECTS)
        ),
        "cloud_calls": calls,
        "idle_cpu_s": round(idle.cpu_s - rested.cpu_s, 2),
        **ticking.longest(ticks, started, rested_at),
    }


async def _routes() -> dict[str, Any]:
    """Nodes and their routes appear at once."""
    names = [f"node-{n:05d}" for n in range(ROUTES)]
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        async with open_world(Path(folder)) as world:
            await world.add_instances(names)
            ticks = world.folder / "ticks"
            flag = f"--cluster-cidr={CLUSTER_CIDR}"
            async with world.leader("routes.log", flag, ticks=ticks) as daemon:
                await world.cloud_calls()
                before = proc.usage(daemon.pid)
                started = time.time()
                await world.register(names, pod_cidrs=True)
                await asyncio.to_thread(daemon.wait_for, "route created", ROUTES, LIMIT_S)
                ended, calls = time.time(), await world.cloud_calls()
                after = await _rested(daemon)
                daemon.stop()
            return {
                "wall_s": round(ended - started, 2),
                "cpu_s": round(after.cpu_s - before.cpu_s, 2),
                "peak_rss_mib": round(after.peak_mib, 1),
                "cloud_calls": calls,
                **ticking.longest(ticks, started, ended),
            }


async def _rested(daemon: proc.Daemon) -> proc.Usage:
    """Wait until the last members are updated: the daemon has used little CPU for ten seconds.

    The result is its usage when these began.
    """
    quiet, last = 0, proc.usage(daemon.pid)
    async with asyncio.timeout(LIMIT_S):
        while quiet < 10:
            await asyncio.sleep(1)
            now = proc.usage(daemon.pid)
            if now.cpu_s - last.cpu_s < (quiet + 1) * RESTING_S:
                quiet += 1
            else:
                quiet, last = 0, now
    return last


async def _check_members(world: World, members: int) -> None:
    async with world.cloud.get(f"/admin/balancers?limit={SAMPLE}") as response:
        found = [len(each["members"]) for each in (await response.json())["balancers"]]
    if found != [members] * SAMPLE:
        raise RuntimeError(f"the first load balancers have {found} members, not {members}")


def draw(figures: dict[str, Any]) -> str:
    """Return the CPU seconds of each size as an SVG picture; both axes are logarithmic."""
    points = {
        series: [(int(nodes), row[series]["cpu_s"]) for nodes, row in figures["sizes"].items()]
        for series in SERIES
    }
    costs = [cost for line in points.values() for _, cost in line]
    across = _axis(min(SIZES), max(SIZES), MARGIN, WIDTH - MARGIN)
    up = _axis(min(costs), max(costs), HEIGHT - MARGIN, MARGIN)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="24">CPU seconds of a bring-up, by number of nodes</text>',
    ]
    parts += [
        f'<text x="{across(nodes)}" y="{HEIGHT - 24}" text-anchor="middle">{nodes:,}</text>'
        for nodes in SIZES
    ]
    for row, (series, line) in enumerate(points.items()):
        path = " ".join(f"{across(nodes)},{up(cost)}" for nodes, cost in line)
        seconds = ", ".join(str(cost) for _, cost in line)
        exponent = figures["exponents"][f"{series}.cpu_s"]
        legend = f"{series.replace('_', ' ')}: {seconds} s, exponent {exponent}"
        colour = SERIES[series]
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            # At the points, the values of two series would cover each other.
            f'<text x="{MARGIN}" y="{48 + 18 * row}" fill="{colour}">{legend}</text>',
        ]
    return "\n".join((*parts, "</svg>\n"))


def _axis(least: float, most: float, start: int, end: int) -> Callable[[float], float]:
    """Return a function from a value to its place on a logarithmic axis, in pixels."""
    scale = (end - start) / math.log(most / least)
    return lambda value: round(start + scale * math.log(value / least), 1)
