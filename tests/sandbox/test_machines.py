"""Machines in a sandbox get VMs and nodes; kubectl shows, scales and rolls them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from ccm.sandbox import machineapis
from tests import servers
from tests.kubectl.tool import Kubectl
from tests.sandbox.command import hints, leftovers, started, typed
from tests.waiting import eventually_blocking

OURS = re.compile(r"export|explain machine|machinedeployment[s /]")
REPLICAS = ("REPLICAS", "AVAILABLE-REPLICAS")


@pytest.mark.envtest
def test_machines_get_vms_and_nodes_scale_and_roll(
    home: Path, environment: Mapping[str, str]
) -> None:
    program = servers.require_assets() / "kubectl"
    words = ("--nodes", "1", "--services", "1", "--machines", "3")
    path = f"{program.parent}:{environment['PATH']}"
    with started(home, {**environment, "PATH": path}, *words) as sandbox:
        config = sandbox.read_until("export KUBECONFIG=").partition("=")[2]
        kubectl = Kubectl(program, Path(config), home / "of-kubectl")
        sandbox.read_until("converged: 3 machines run, 4 nodes initialised, 4 routes, 1 Services")
        printed = hints(sandbox)
        lines = [line for line in printed if OURS.search(line)]
        doctor = [line for line in lines if "export" in line] + printed[-3:]
        examined = typed(doctor, home, {**environment, "PATH": path})
        shown = kubectl("get", "machines", "-o", "wide")
        said = typed(lines, home, {**environment, "PATH": path})
        rolled = kubectl("get", "machines", "-o", "jsonpath={.items[*].spec.class.name}")

        bounds = sandbox.read_until_seen("MachineDeployment workers: ")
        sandbox.read_until_seen("4 machines (at most 5), 4 of 4 new, 4 available (at least 3)")
        sandbox.read_until_seen("4/4 machines, 5/5 nodes initialised, 5/5 routes, 1/1 Services, ")

        warned = kubectl(
            "get",
            "events",
            "--all-namespaces",
            "--field-selector=type=Warning",
            "-o",
            "jsonpath={.items[*].reason}",
        )
        sandbox.end(signal.SIGINT)

    assert "ok    machines: 3 " in examined
    head, *rows = (line.split() for line in shown.splitlines())
    assert head[:2] == ["NAME", "STATUS"]
    assert len(rows) == 3
    for name, phase, _, node, provider_id, *_ in rows:
        assert re.fullmatch(r"workers-\w+-\w+", name)
        assert (phase, node) == ("Running", name)
        assert provider_id.startswith("sim://")
    first = min(row[0] for row in rows)
    assert f"default/{first} has VM sim://" in said
    assert said.count(", and the daemon has nothing to do") == 2
    assert "machinedeployment.machine.sapcloud.io/workers scaled" in said
    assert (
        '"workers" is rolled out\ndefault/workers has 4 of 4 machines, and the daemon has nothing'
        in said
    )
    assert rolled.split() == [machineapis.OTHER_CLASS] * 4
    assert "(at most " in bounds
    assert sandbox.lines[-1].startswith("done: 3 machines run, 4 nodes initialised, ")
    # The roll may delete the VM of the added machine just as its node joins. Nothing else warns.
    assert set(warned.split()) <= {"InitializationFailed"}
    assert warned or " 0 warnings in " in sandbox.lines[-1], sandbox.lines
    assert set(leftovers(home)) <= {str(home / "of-kubectl")}


@pytest.mark.envtest
@pytest.mark.row("kubermatic-sandbox-01", "kubermatic-sandbox-02", "kubermatic-approver-01")
def test_machines_of_kubermatic_get_vms_and_nodes_scale_roll_and_are_replaced(
    home: Path, environment: Mapping[str, str]
) -> None:
    program = servers.require_assets() / "kubectl"
    words = ("--nodes", "1", "--services", "1", "--machines", "3", "--machine-api", "kubermatic")
    path = f"{program.parent}:{environment['PATH']}"
    with started(home, {**environment, "PATH": path}, *words) as sandbox:
        config = sandbox.read_until("export KUBECONFIG=").partition("=")[2]
        kubectl = Kubectl(program, Path(config), home / "of-kubectl")
        sandbox.read_until("converged: 3 machines run, 4 nodes initialised, 4 routes, 1 Services")
        lines = [line for line in hints(sandbox) if OURS.search(line)]
        shown = kubectl("get", "md,ms,ma", "-n", "kube-system")
        query = "jsonpath={range .items[?(@.status.certificate)]}{.spec.username} {end}"
        signed = ("get", "csr", "-o", query)
        eventually_blocking(
            lambda: len(kubectl(*signed).split()) == 3, lambda: kubectl("get", "csr")
        )
        users = kubectl(*signed).split()
        said = typed(lines, home, {**environment, "PATH": path})

        sandbox.read_until_seen("4 machines (at most 5), 4 of 4 new, 4 available (at least 3)")
        sandbox.read_until_seen("4/4 machines, 5/5 nodes initialised, 5/5 routes, 1/1 Services, ")
        machines_of = ("get", "ma", "-n", "kube-system", "-o")
        size = "{.items[*].spec.providerSpec.value.cloudProviderSpec.machineType}"
        rolled = kubectl(*machines_of, f"jsonpath={size}")
        first, *_ = kubectl(*machines_of, "jsonpath={.items[*].metadata.name}").split()
        kubectl("delete", "ma", first, "-n", "kube-system", "--wait=false")
        sandbox.read_until_seen(f"Machine {first}: deleted")
        sandbox.read_until_seen("4/4 machines, 5/5 nodes initialised, 5/5 routes, 1/1 Services, ")
        sandbox.end(signal.SIGINT)

    deployments, sets, found = (block.splitlines() for block in shown.strip().split("\n\n"))
    assert deployments[0].split() == ["NAME", *REPLICAS, "PROVIDER", "OS", "KUBELET", "AGE"]
    name, *columns, _ = deployments[1].split()
    assert name == "machinedeployment.cluster.k8s.io/workers"
    assert columns == ["3", "3", "sim", "ubuntu", "1.36.3"]
    assert sets[1].split()[1:6] == ["3", "3", "sim", "ubuntu", "workers"]
    assert found[0].split() == ["NAME", "PROVIDER", "OS", "NODE", "KUBELET", "ADDRESS", "AGE"]
    for row in found[1:]:
        key, provider, _, node, *_ = row.split()
        assert (key, provider) == (f"machine.cluster.k8s.io/{node}", "sim")
        assert f"system:node:{node}" in users
    assert "machinedeployment.cluster.k8s.io/workers scaled" in said
    assert '"workers" is rolled out' in said
    assert set(rolled.split()) == {"large"}
    assert sandbox.lines[-1].startswith("done: 3 machines run, 4 nodes initialised, ")
    assert set(leftovers(home)) <= {str(home / "of-kubectl")}
