"""Files that change under load: new ones are tried first, broken ones change nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from ccm.sandbox import realserver
from tests.scenario.harness import Daemon, Stage

USED = "changed file is in use"
REFUSED = "changed file cannot be used, the old stays"
FAILED = ("reconcile failed", "cloud or API server unavailable", "pass failed")


async def load(stage: Stage, stop: asyncio.Event, prefix: str) -> list[str]:
    """New nodes again and again until told to stop; their names."""
    names: list[str] = []
    while not stop.is_set():
        names.append(f"{prefix}-{len(names)}")
        await stage.node(names[-1])
        await asyncio.sleep(0.05)
    return names


def failures(daemon: Daemon) -> list[str]:
    return [line["msg"] for line in daemon.lines() if line["msg"].startswith(FAILED)]


@pytest.mark.parametrize(
    ("token", "outcome"), [("good", USED), ("broken", REFUSED)], ids=["good", "broken"]
)
async def test_cloud_credentials_change_under_load(stage: Stage, token: str, outcome: str) -> None:
    """A new token is taken over, a wrong one is not, and no reconcile fails either way."""
    daemon = await stage.start_leading(flags={"v": "4"})
    stop = asyncio.Event()
    busy = asyncio.get_running_loop().create_task(load(stage, stop, token))
    await daemon.says("node initialised")

    wrong = {"token": "wrong"} if token == "broken" else {"timeout": "3s"}
    stage.configure_cloud(**wrong)
    await daemon.says(outcome, setting="cloud-config")
    await asyncio.sleep(0.5)
    stop.set()
    await stage.cluster.initialised(*await busy)

    assert failures(daemon) == []
    reason = "ConfigReloaded" if outcome == USED else "ConfigRejected"
    assert await daemon.stop() == 0
    assert [
        event["reason"]
        for event in await stage.cluster.events("cloud-controller-manager")
        if event["reason"].startswith("Config")
    ] == [reason]


async def test_a_cloud_config_that_is_no_yaml_changes_nothing(stage: Stage) -> None:
    daemon = await stage.start_leading()

    stage.cloud_config.write_text("url: [")
    line = await daemon.says(REFUSED)
    await stage.node("a")
    await stage.cluster.initialised("a")

    assert "not valid YAML" in line["err"]
    stage.configure_cloud(timeout="4s")
    await daemon.says(USED)
    await stage.node("b")
    await stage.cluster.initialised("b")
    assert await daemon.stop() == 0


@pytest.mark.both_servers
async def test_a_changed_kubeconfig_is_tried_first(stage: Stage) -> None:
    wire = await stage.new_wire()
    kubeconfig = stage.folder / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=wire.url, token=stage.token)
    daemon = await stage.start_leading(kubeconfig=kubeconfig)

    realserver.write_kubeconfig(kubeconfig, url=wire.url, token="wrong")
    await daemon.says(REFUSED, setting="kubeconfig")
    await stage.node("a")
    await stage.cluster.initialised("a")
    realserver.write_kubeconfig(kubeconfig, url=wire.url, token=stage.token)
    await daemon.says(USED, setting="kubeconfig")
    await stage.node("b")
    await stage.cluster.initialised("b")

    assert await daemon.stop() == 0


def write_config(path: Path, **flags: object) -> None:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "cloudcontrollermanager.config.k8s.io/v1alpha1",
                "kind": "CloudControllerManagerConfiguration",
                "Flags": flags,
            }
        )
    )


async def test_verbosity_follows_the_configuration_file(stage: Stage) -> None:
    file = stage.folder / "config.yaml"
    write_config(file, v=0)
    daemon = await stage.start_leading(flags={"config": str(file)})

    write_config(file, v=4)
    await daemon.says(USED, detail="changed: v")
    await stage.node("a")
    await stage.cluster.initialised("a")
    assert [line for line in daemon.lines() if line.get("v") == 4]
    write_config(file, v=-1)
    line = await daemon.says(REFUSED)

    assert "Flags.v" in line["err"]
    assert await daemon.stop() == 0
