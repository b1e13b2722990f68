"""`kube-ccm doctor` in the surroundings of a scenario."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ccm.base import clock
from ccm.cli import doctor
from tests.scenario.harness import Environment

CIDR = "10.244.0.0/16"


@dataclass(frozen=True, kw_only=True)
class Told:
    """Output of the command, and its exit status."""

    code: int
    lines: list[str]

    @property
    def troubles(self) -> list[str]:
        """The first line of each finding that is not ok."""
        return [line for line in self.lines if line.startswith(("warn", "fail"))]

    def advice(self, first: str) -> list[str]:
        """Return the advice below a finding."""
        rest = self.lines[self.lines.index(first) + 1 :]
        found = []
        for line in rest:
            if not line.startswith(" "):
                break
            if line.startswith("      next: "):
                found.append(line.removeprefix("      next: "))
        return found


async def examined(
    env: Environment, *words: str, by: timedelta = timedelta(0), environ: Mapping[str, str] = {}
) -> Told:
    """Run the command with the flags of a daemon; later words win."""
    said = io.StringIO()
    wanted = doctor.read(
        [
            f"--kubeconfig={env.server.kubeconfig_path}",
            "--cloud-provider=sim",
            f"--cloud-config={env.cloud_config}",
            f"--cluster-cidr={CIDR}",
            *words,
        ]
    )
    with clock.replaced(lambda: datetime.now(UTC) + by, time.monotonic):
        code = await doctor.examine_and_show(wanted, said, environ=environ)
    print(said.getvalue())
    return Told(code=code, lines=said.getvalue().splitlines())


async def finds(env: Environment, trouble: str, *words: str, **how: Any) -> Told:
    """Check the beginning of the first trouble, its advice, and the exit status."""
    told = await examined(env, *words, **how)
    (first,) = told.troubles[:1]
    assert first.startswith(trouble)
    assert told.advice(first) != []
    assert told.code == (3 if any(line.startswith("fail") for line in told.lines) else 0)
    return told


async def add_node(env: Environment, name: str = "n1", **spec: str) -> None:
    """A machine and its node, initialised unless the spec says otherwise."""
    machine = env.machine(name)
    given = {"providerID": f"sim://{machine.id}", "podCIDR": "10.244.1.0/24", **spec}
    given = {key: value for key, value in given.items() if value}
    cidrs = [given["podCIDR"]] if "podCIDR" in given else []
    await env.cluster.register(name, taints=[], podCIDRs=cidrs, **given)
