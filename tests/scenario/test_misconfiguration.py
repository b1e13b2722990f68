"""Invalid settings end the daemon at once, with one message."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ccm.sandbox import realserver
from tests import forkserver
from tests.faults import Match
from tests.scenario import harness
from tests.scenario.harness import Environment
from tests.waiting import DEADLINE_S

NOWHERE = "http://127.0.0.1:1"
PROGRAM = "cloud-controller-manager: "


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a daemon ended: its exit code, and its output besides log lines."""

    code: int
    stdout: str
    message: str

    @property
    def is_one_message(self) -> bool:
        """Whether it gave up in good order: one message, details indented below it."""
        first, *rest = self.message.splitlines() or [""]
        return (
            self.code == 1
            and self.stdout == ""
            and first.startswith(PROGRAM)
            and all(line.startswith("  ") for line in rest)
        )


async def run(arguments: Sequence[str], folder: Path) -> End:
    """Run a daemon that ends by itself."""
    done = await asyncio.to_thread(
        forkserver.run,
        [sys.executable, "-m", "ccm", *arguments],
        timeout=DEADLINE_S,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "always"},
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return End(code=done.returncode, stdout=done.stdout, message="\n".join(said))


def flags_of(folder: Path, config: str) -> dict[str, str]:
    """Flags that would do, with this cloud config, for an API server that is not there."""
    cloud = folder / "cloud.yaml"
    cloud.write_text(config)
    kubeconfig = folder / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=NOWHERE, token="t")
    return {**harness.FLAGS, "kubeconfig": str(kubeconfig), "cloud-config": str(cloud)}


GOOD = f"url: {NOWHERE}\ntoken: t\n"


@pytest.mark.row("daemon-exit-01")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cloud-provider": "smi"}, ("'smi'", "did you mean 'sim'", "Installed providers: ")),
        ({"cloud-provider": ""}, ("--cloud-provider is required", "sim")),
        ({"cloud-config": "gone.yaml"}, ("--cloud-config=gone.yaml", "No such file")),
        ({"cloud-config": "."}, ("--cloud-config=.", "Is a directory")),
        ({"kubeconfig": "gone"}, ("gone",)),
        ({"kubeconfig": "."}, ("Is a directory",)),
        ({"kubeconfig": "cloud.yaml"}, ("cloud.yaml",)),
        ({"node-monitor-periode": "5s"}, ("--node-monitor-periode",)),
        ({"node-monitor-period": "5"}, ("--node-monitor-period", "5")),
        ({"leader-elect-lease-duration": "1s"}, ("--leader-elect-lease-duration=1s",)),
    ],
    ids=lambda value: (
        " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
async def test_an_invalid_setting_ends_the_daemon_with_one_message(
    flags: dict[str, str], words: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit 1, and a message with the setting and its fault."""
    end = await run(harness.command_line({**flags_of(tmp_path, GOOD), **flags}), tmp_path)

    assert end.is_one_message, end
    assert [word for word in words if word not in end.message] == []


@pytest.mark.row("daemon-exit-01")
async def test_no_lease_is_taken_with_invalid_settings(env: Environment) -> None:
    """Nor is anything else written with an unknown provider or a bad cloud config."""
    proxy = await env.new_proxy()
    kubeconfig = env.folder / "kubeconfig"
    for flags, config in (
        ({"cloud-provider": "nimbus"}, GOOD),
        ({"cloud-config": "missing.yaml"}, GOOD),
        ({}, "url: 5\n"),
    ):
        given = {**flags_of(env.folder, config), **flags}
        realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=env.token)
        end = await run(harness.command_line(given), env.folder)
        assert end.is_one_message, end

    assert proxy.requests(Match(write=True)) == []
    assert await env.cluster.lease() == {}
