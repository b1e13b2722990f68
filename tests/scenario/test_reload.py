"""The daemon's own configuration file changes while it runs."""

from __future__ import annotations

import yaml

from ccm.app.options import config
from tests.scenario.harness import Environment


async def test_verbosity_follows_the_configuration_file(env: Environment) -> None:
    file = env.folder / "config.yaml"
    head = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    file.write_text(yaml.safe_dump(head))
    daemon = await env.start_leading(flags={"config": str(file)})

    file.write_text(yaml.safe_dump({**head, "Flags": {"v": 4}}))
    await daemon.says("changed file is in use", detail="changed: v")
    await env.node("a")
    await env.cluster.initialised("a")

    assert [line for line in daemon.lines() if line.get("v") == 4]
    assert await daemon.stop() == 0
