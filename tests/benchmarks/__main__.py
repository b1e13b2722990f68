"""`python -m tests.benchmarks [scenario ...]`: run, print JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import (
    decoding,
    growth,
    journal_cost,
    journal_store,
    machine_pool,
    neighbours,
    rollouts,
    scenarios,
    services,
)
from tests.benchmarks.world import World, open_world

SCENARIOS: dict[str, Callable[[World], Awaitable[dict[str, Any]]]] = {
    "init": scenarios.init,
    "init-default": scenarios.init_default,
    "services": services.services,
    "machines": machine_pool.fifty,
    "rollout": rollouts.rollout,
    "rollout-default": rollouts.rollout_default,
    "many-rollouts": rollouts.many_rollouts,
    "kubermatic-rollout": rollouts.kubermatic_rollout,
    "memory": scenarios.memory,
    "stall": scenarios.stall,
}
ALONE: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
    "growth": growth.growth,
    "neighbours": neighbours.neighbours,
    "journal": journal_cost.journal,
    "journal-store": journal_store.journal_store,
    "decode": decoding.measure,
}
"""Need no world, or one for each turn."""


async def _run(name: str) -> dict[str, Any]:
    if name in ALONE:
        return await ALONE[name]()
    with tempfile.TemporaryDirectory(prefix="ccm-bench-") as folder:
        async with open_world(Path(folder)) as world:
            return await SCENARIOS[name](world)


def main() -> None:
    """Run the scenarios that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "scenario", nargs="*", choices=[*SCENARIOS, *ALONE, []], help="default: all"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the figures of growth into an SVG file"
    )
    options = parser.parse_args()
    chosen = options.scenario or [*SCENARIOS, *ALONE]
    figures: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in chosen:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        figures[name] = asyncio.run(_run(name))
    print(json.dumps(figures, indent=2))
    if options.plot and "growth" in figures:
        options.plot.write_text(growth.draw(figures["growth"]))


if __name__ == "__main__":
    main()
