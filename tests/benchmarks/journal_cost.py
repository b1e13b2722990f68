"""Cost of the journal: the same load without and with it, by turns."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ccm.runtime.deletions import CONFIG_MAP_NAME
from tests.benchmarks import machine_pool, proc, rollouts, services
from tests.benchmarks.world import World, open_world

MODES = ("off", "report")
ROUNDS = 3
MACHINES = 100
LOOK_S = 0.1
"""How late the kubelet of a VM may hear that it runs: a look at a thousand VMs takes time."""

REST_S = 3.0
"""Longer than an entry that is not urgent waits for its write."""

FLAGS = (*services.FLAGS, "--secure-port=0")
# An update of all load balancers costs much. Each turn has one, after all nodes are initialised.
START_FLAGS = (
    *FLAGS,
    "--load-balancer-node-update-quiet-period=5s",
    "--load-balancer-node-update-max-delay=1m",
)
MACHINE_FLAGS = (
    *FLAGS,
    "--load-balancer-node-update-quiet-period=1h",
    "--load-balancer-node-update-max-delay=1h",
    "--controllers=*,machine,machineclass,machinesafety",
)
JOURNAL, TOTAL = "journal_writes", "all"
LIMITS = {"api_writes": 1.10, "wall_s": 1.05, "cpu_s": 1.10}
"""Figure -> highest ratio of the journal to none."""


async def journal() -> dict[str, Any]:
    """Figures of all turns by phase, and the ratios of their medians."""
    turns: dict[str, list[dict[str, dict[str, float]]]] = {mode: [] for mode in MODES}
    for number in range(ROUNDS):
        # Neither mode is always the first.
        for mode in sorted(MODES, reverse=number % 2 == 1):
            turns[mode].append(await _turn(mode))
    phases = turns[MODES[0]][0]
    medians = {
        mode: {
            phase: {
                figure: round(statistics.median(turn[phase][figure] for turn in figures), 2)
                for figure in phases[phase]
            }
            for phase in phases
        }
        for mode, figures in turns.items()
    }
    off, report = (medians[mode] for mode in MODES)
    return {
        "turns": turns,
        "medians": medians,
        "ratios": {
            phase: {
                figure: round(report[phase][figure] / value, 3)
                for figure, value in of_phase.items()
                if value
            }
            for phase, of_phase in off.items()
        },
        # More exact than the ratio: the number of events may differ from turn to turn.
        "journal_writes_to_others": {
            phase: round(figures[JOURNAL] / (figures["api_writes"] - figures[JOURNAL]), 3)
            for phase, figures in report.items()
        },
        "limits_of_ratios": LIMITS,
    }


async def _turn(mode: str) -> dict[str, dict[str, float]]:
    """One life of a cluster with servers of its own: what one turn leaves slows no other."""
    with tempfile.TemporaryDirectory(prefix="ccm-bench-") as folder:
        async with open_world(Path(folder)) as world:
            started = await _start(world, mode)
            created, deleted = await _machines(world, mode)
    parts = (started, created, deleted)
    total = {figure: round(sum(part[figure] for part in parts), 2) for figure in started}
    total["peak_rss_mib"] = max(part["peak_rss_mib"] for part in parts)
    return {"start": started, "create": created, "delete": deleted, TOTAL: total}


async def _start(world: World, mode: str) -> dict[str, float]:
    """The daemon starts beside nodes and Services; the time until all of them are initialised."""
    nodes = [f"node-{n:04d}" for n in range(services.NODES)]
    await world.add_instances(nodes)
    await world.register(nodes)
    await world.create_services([f"web-{n:04d}" for n in range(services.SERVICES)])
    words = (*world.flags, f"--kubeconfig={world.server.kubeconfig_path}", *START_FLAGS)
    measured = _Measured(world)
    with proc.daemon(world.folder / "start.log", *words, f"--journal={mode}") as daemon:
        await asyncio.to_thread(daemon.wait_for, "node initialised", len(nodes), 300)
        await services.settled(world, services.SERVICES, len(nodes))
        messages = ("load balancer ensured", "node initialised")
        ended = max(line["ts"] for each in messages for line in daemon.lines(each)) / 1000
        figures = await measured.figures(daemon, ended - measured.began)
        daemon.stop()
    return figures


async def _machines(world: World, mode: str) -> tuple[dict[str, float], dict[str, float]]:
    """Machines come and go beside them."""
    await machine_pool.behave(world, transition_s=machine_pool.BOOT_S)
    log, flags = "machines.log", (*MACHINE_FLAGS, f"--journal={mode}")
    async with (
        machine_pool.pool(world, LOOK_S) as pool,
        world.leader(log, *flags) as daemon,
    ):
        measured = _Measured(world, daemon)
        created = await measured.figures(daemon, (await pool.run(MACHINES))["wall_s"])
        measured = _Measured(world, daemon)
        deleted = await measured.figures(daemon, (await pool.remove())["wall_s"])
        daemon.stop()
    return created, deleted


class _Measured:
    """Requests and CPU of a daemon from now; without a daemon, from its start.

    Attributes:
        began: the time now.
    """

    def __init__(self, world: World, daemon: proc.Daemon | None = None) -> None:
        self._world = world
        self._offset = world.audit.stat().st_size
        self._cpu_s = proc.usage(daemon.pid).cpu_s if daemon is not None else 0.0
        self.began = time.time()

    async def figures(self, daemon: proc.Daemon, wall_s: float) -> dict[str, float]:
        """Return them after a rest."""
        await asyncio.sleep(REST_S)
        used = proc.usage(daemon.pid)
        requests = [each for each in self._world.audited(self._offset) if each[0] != "watch"]
        writes = [each for each in requests if each[0] in rollouts.WRITES]
        recorded = [
            name
            for _, resource, name in writes
            if resource == "configmaps" and name != CONFIG_MAP_NAME
        ]
        return {
            "wall_s": round(wall_s, 2),
            "cpu_s": round(used.cpu_s - self._cpu_s, 2),
            "peak_rss_mib": round(used.peak_mib, 1),
            "api_requests": len(requests),
            "api_writes": len(writes),
            "events": sum(1 for _, resource, _ in writes if resource == "events"),
            JOURNAL: len(recorded),
        }
