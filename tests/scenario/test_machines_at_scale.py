"""Many machines at once on a real kube-apiserver, and a cloud that takes only so many orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.benchmarks import machines
from tests.benchmarks.world import open_world

MANY = 500
ORDERS = 50.0
"""That the cloud takes in a second."""

BOOT_S = 20.0
LEAST_S = MANY / ORDERS + BOOT_S
"""No daemon can be faster."""

SLACK, ALIKE = 1.3, 0.1

pytestmark = [pytest.mark.soak, pytest.mark.envtest, pytest.mark.timeout(600)]


async def run(folder: Path, count: int, workers: int, **settings: float) -> dict[str, Any]:
    """The figures of one run, on servers of its own."""
    servers.require_assets()
    folder.mkdir()
    async with open_world(folder, latency="20ms") as world:
        found = await machines.many(world, count, workers=workers, **settings)
    print(found)
    return found


async def test_five_hundred_machines_whatever_the_workers(tmp_path: Path) -> None:
    """A worker that waits for the cloud holds up nobody, so few do as well as many."""
    walls = [
        (await run(tmp_path / str(workers), MANY, workers, boot_s=BOOT_S, orders=ORDERS))["wall_s"]
        for workers in (5, 50)
    ]

    assert max(walls) <= SLACK * LEAST_S
    assert max(walls) - min(walls) <= ALIKE * max(walls)


async def test_two_hundred_machines(tmp_path: Path) -> None:
    found = await run(tmp_path / "w", 200, 50, boot_s=2.0, orders=0.0)

    assert found["cloud_calls"]["total"] <= 2.5 * 200
