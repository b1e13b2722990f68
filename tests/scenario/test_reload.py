"""The daemon's own configuration file changes while it runs."""

from __future__ import annotations

import yaml

from ccm.app.options import config
from tests.scenario.harness import Stage


async def test_verbosity_follows_the_configuration_file(stage: Stage) -> None:
    file = stage.folder / "config.yaml"
    head = {"apiVersion": config.GROUP_VERSION, "kind": config.KIND}
    file.write_text(yaml.safe_dump(head))
    daemon = await stage.start_leading(flags={"config": str(file)})

    file.write_text(yaml.safe_dump({**head, "Flags": {"v": 4}}))
    await daemon.says("changed file is in use", detail="changed: v")
    await stage.node("a")
    await stage.cluster.initialised("a")

    assert [line for line in daemon.lines() if line.get("v") == 4]
    assert await daemon.stop() == 0
