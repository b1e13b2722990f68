"""A provider of somebody else's that has nothing to say, or fails in its own way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ccm.model import names
from tests.scenario import harness
from tests.scenario.harness import Stage

PROVIDER = '''
"""A cloud whose answers are the words in a file."""

from pathlib import Path

from ccm import cloud


class Instances:
    def __init__(self, file):
        self._file = file

    def _word(self):
        return self._file.read_text().strip()

    async def instance_exists(self, node):
        return True

    async def instance_shutdown(self, node):
        return False

    async def instance_metadata(self, node):
        if self._word() == "nothing":
            return None
        if self._word() == "defect":
            return {}["whoops"]
        return cloud.InstanceMetadata(
            provider_id=f"mute://{node.name}",
            instance_type="m1",
            addresses=[cloud.address("InternalIP", "10.9.8.7")],
            zone="z",
            region="r",
        )


@cloud.provider(sdk="1.0")
async def open_cloud(context):
    file = Path(context.config.decode().strip())
    if file.read_text().strip() == "shut":
        raise RuntimeError("the door is shut")
    yield cloud.Cloud(name="mute", instances=Instances(file))
'''


def install(folder: Path) -> dict[str, str]:
    """Put the provider where a daemon finds it; the environment that daemon needs."""
    site = folder / "site"
    info = site / "ccm_mute-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "ccm_mute.py").write_text(PROVIDER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ccm-mute\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ccm.providers]\nmute = ccm_mute:open_cloud\n")
    return {"PYTHONPATH": str(site)}


def say(stage: Stage, word: str) -> None:
    """What the provider answers from now on."""
    (stage.folder / "answer").write_text(word)
    stage.cloud_config.write_text(str(stage.folder / "answer"))


FLAGS = {"cloud-provider": "mute"}


async def test_a_provider_that_knows_nothing_yet(stage: Stage) -> None:
    """No answer is no failure: the node stays tainted, without a Warning, and comes back."""
    say(stage, "nothing")
    await stage.cluster.register("alpha")
    daemon = await stage.start_leading(flags=FLAGS, env=install(stage.folder))
    await daemon.says("cloud has nothing to say about the node yet", node="alpha")
    await asyncio.sleep(1.0)
    assert await stage.cluster.has_taint("alpha", names.TAINT_UNINITIALIZED)
    assert stage.wire.requests(harness.NODE_WRITE) == []
    assert await stage.cluster.events("alpha") == []

    say(stage, "all")
    await stage.cluster.initialised("alpha")

    # And once more in the periodic pass: what the node has stays.
    say(stage, "nothing")
    written = len(stage.wire.requests(harness.NODE_WRITE))
    await asyncio.sleep(2.5)
    assert len(stage.wire.requests(harness.NODE_WRITE)) == written
    await stage.cluster.initialised("alpha")


async def test_a_provider_with_a_defect(stage: Stage) -> None:
    """An exception nobody foresaw keeps the node as it is, with its cause in an event."""
    say(stage, "defect")
    await stage.cluster.register("alpha")
    daemon = await stage.start_leading(flags=FLAGS, env=install(stage.folder))
    line = await daemon.says("node could not be initialised", node="alpha")
    assert "whoops" in line["err"]

    say(stage, "all")
    await stage.cluster.initialised("alpha")
    (event,) = await harness.wait_for(
        lambda: stage.cluster.events("alpha", names.REASON_INITIALIZATION_FAILED), "the event"
    )
    assert "whoops" in event["message"]


async def test_a_provider_that_cannot_be_opened_yet(stage: Stage) -> None:
    """Opening is tried again, said once, before the Lease is asked for."""
    say(stage, "shut")
    await stage.cluster.register("alpha")
    daemon = await stage.start(flags=FLAGS, env=install(stage.folder))
    await daemon.says("provider cannot be opened, retrying")
    await asyncio.sleep(1.5)
    assert await stage.cluster.lease() == {}

    say(stage, "all")
    await stage.cluster.initialised("alpha")

    assert len(daemon.lines("provider cannot be opened, retrying")) == 1
    assert len(daemon.lines("provider opened at last")) == 1
