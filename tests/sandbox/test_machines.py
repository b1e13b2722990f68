"""Machines in a sandbox: they become VMs, and VMs nodes, and kubectl shows them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import servers
from tests.kubectl.tool import Kubectl
from tests.sandbox.command import hints, leftovers, started, typed


@pytest.mark.envtest
def test_machines_become_vms_and_nodes_and_go_again(
    home: Path, environment: Mapping[str, str]
) -> None:
    program = servers.require_assets() / "kubectl"
    words = ("--nodes", "1", "--services", "1", "--machines", "3")
    with started(home, environment, *words) as sandbox:
        config = sandbox.read_until("export KUBECONFIG=").partition("=")[2]
        kubectl = Kubectl(program, Path(config), home / "of-kubectl")
        sandbox.read_until("converged: 3 machines run, 4 nodes initialised, 4 routes, 1 Services")
        told = [line for line in hints(sandbox) if re.search("export|explain machine", line)]
        explained = typed(told, home, environment)

        shown = kubectl("get", "machines")
        wide = kubectl("get", "mc", "machine-0001", "-o", "wide")
        kubectl("delete", "machine", "machine-0002", "--wait=false")
        sandbox.read_until_seen("Machine machine-0002: deleted")
        sandbox.read_until_seen("2/2 machines, 3/3 nodes initialised, 3/3 routes, 1/1 Services, ")

        sandbox.end(signal.SIGINT)

    assert explained.startswith("default/machine-0001 runs as node machine-0001, and nothing is")
    head, *lines = shown.splitlines()
    assert head.split() == ["NAME", "STATUS", "AGE", "NODE"]
    assert [line.split()[:2] for line in lines] == [
        [f"machine-000{number}", "Running"] for number in (1, 2, 3)
    ]
    assert re.search(r"machine-0001 +Running +\S+ +machine-0001 +sim://\S+$", wide.strip()), wide
    assert sandbox.lines[-1].startswith("done: 3 machines run, 4 nodes initialised, ")
    assert " 0 warnings in " in sandbox.lines[-1], sandbox.lines
    assert set(leftovers(home)) <= {str(home / "of-kubectl")}
