"""Storage that outlives the daemon is the leader's alone."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scenario.harness import Environment


async def test_storage_goes_from_leader_to_leader(env: Environment, tmp_path: Path) -> None:
    """Open after the Lease is won, closed before it is given back; a standby leaves it alone."""
    root, file = tmp_path / "store", tmp_path / "persistence.yaml"
    file.write_text(f"instances: [{{file: {{root: {root}}}}}]\n")
    flags = {"persistence-config": str(file)}
    leader = await env.start_leading(flags=flags)
    await leader.says("controllers started")
    standby = await env.start(flags=flags)
    space = await env.cluster.get("/api/v1/namespaces/kube-system")
    marker = json.loads((root / ".ccm-instance.json").read_text())
    assert space is not None
    assert marker["clusterUID"] == space["metadata"]["uid"]

    assert await leader.stop() == 0
    await standby.says("controllers started")

    said = [line["msg"] for line in leader.lines()]
    order = [
        "became leader",
        "persistence is open",
        "controllers started",
        "persistence is closed",
        "lease given back",
    ]
    assert sorted(order, key=said.index) == order
    assert not standby.lines("persistence is closed")
    assert await standby.stop() == 0
