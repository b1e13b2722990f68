"""kubectl in a sandbox, and `kubectl ccm`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.sandbox import cluster
from tests.kubectl.tool import Kubectl
from tests.waiting import DEADLINE_S

OVERLAY = str(Path(cluster.__file__).with_name("overlay"))
DEFINITION = yaml.safe_load((Path(__file__).parents[1] / "machines.yaml").read_text())
MACHINE: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Machine",
    "metadata": {"name": "m1"},
    "spec": {"class": "small", "disks": [{}]},
}


@pytest.mark.envtest
@pytest.mark.timeout(120)
def test_a_second_apply_of_the_overlay_changes_nothing(kubectl: Kubectl) -> None:
    made = kubectl("apply", "-k", OVERLAY).splitlines()
    again = kubectl("apply", "-k", OVERLAY).splitlines()

    assert len(made) == 14
    assert [line for line in made if not line.endswith(" created")] == []
    # kubectl always replaces the selector of a budget, and calls that a change.
    changed = [line for line in again if not line.endswith(" unchanged")]
    assert changed == ["poddisruptionbudget.policy/cloud-controller-manager configured"]
    budget = kubectl("get", "pdb", "-n", "kube-system")
    assert re.search(r"cloud-controller-manager +N/A +1 +0 +\d+s", budget)
    assert "ClusterRole/system:cloud-controller-manager" in kubectl("get", "clusterrolebindings")
    assert kubectl("delete", "-k", OVERLAY).count(" deleted") == 14


def _machines(kubectl: Kubectl) -> list[str]:
    """What it prints on the way of a custom object, the parts that are alike everywhere."""
    said = [kubectl("apply", "-f", "-", stdin=DEFINITION)]
    kubectl(
        "wait",
        "--for=condition=Established",
        "crd/machines.example.com",
        f"--timeout={DEADLINE_S:g}s",
    )
    said.append(kubectl("apply", "-f", "-", stdin=MACHINE))
    said.append(kubectl("apply", "-f", "-", stdin=MACHINE))
    wrong = {**MACHINE, "spec": {"class": "small", "replicas": -1}}
    status, output = kubectl.run("apply", "-f", "-", stdin=wrong)
    said.append(f"{status} {'spec.replicas: Invalid value' in output}")
    status, output = kubectl.run("apply", "-f", "-", stdin={**MACHINE, "spec": {"odd": 1}})
    said.append(f"{status} {'unknown field' in output and 'spec.odd' in output}")
    said.append(kubectl("scale", "machine/m1", "--replicas=3"))
    said.append(kubectl("get", "mc", "m1", "-o", "jsonpath={.spec}{.metadata.generation}"))
    phase = '{"status":{"phase":"Running"}}'
    said.append(kubectl("patch", "mc", "m1", "--type=merge", "--subresource=status", "-p", phase))
    said.append(kubectl("get", "machines"))
    said.append(kubectl("delete", "crd", "machines.example.com"))
    status, _ = kubectl.run("get", "machines")
    return [*said, str(status)]


@pytest.mark.envtest
@pytest.mark.timeout(120)
def test_machines_are_shown_alike_by_both_servers(kubectl: Kubectl, real_kubectl: Kubectl) -> None:
    ours = _machines(kubectl)

    assert "m1     small   Running   10\n" in ours[8]
    assert ours == _machines(real_kubectl)


@pytest.mark.envtest
@pytest.mark.timeout(120)
def test_kubectl_output_does_not_contain_the_token(program: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token")
    command = [sys.executable, "-m", "ccm.testing.apiserver"]
    command += ["--token-file", str(tmp_path / "token"), "--tls"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        kubectl = Kubectl(program, Path(ready["kubeconfig"]), tmp_path / "home")

        shown = kubectl("cluster-info")
        loud = kubectl("get", "nodes", "-v=8")
        process.terminate()

    assert ready["url"] in shown
    assert "secret-token" not in shown + loud


COMMANDS = Path(sys.executable).parent


@pytest.fixture
def kubectl(
    program: Path, builtin_kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kubectl:
    """kubectl on a PATH with nothing of ours but what an installation brings."""
    monkeypatch.setenv("PATH", f"{COMMANDS}{os.pathsep}{os.defpath}")
    return Kubectl(program, builtin_kubeconfig, tmp_path / "home")


@pytest.mark.envtest
def test_the_doctor_uses_the_cluster_of_kubectl(kubectl: Kubectl, builtin_kubeconfig: Path) -> None:
    status, told = kubectl.run("ccm", "doctor", "--cloud-provider=sim")

    assert status == 3, "there is no cloud to look at"
    assert f"ok    kubeconfig: {builtin_kubeconfig}" in told
    assert "ok    server: " in told


@pytest.mark.envtest
@pytest.mark.parametrize(
    ("typed", "offered", "directive"),
    [
        (["doc"], ["doctor"], ":4"),
        (["providers", ""], ["hcloud", "openstack", "sim", "stackit"], ":4"),
        (["doctor", "--output=js"], ["json"], ":4"),
        (["doctor", "--cluster-ci"], ["--cluster-cidr="], ":6"),
        (["doctor", "--kubeconfig="], [], ":0"),
    ],
)
def test_kubectl_completion_offers_commands_and_flags_of_the_plugin(
    kubectl: Kubectl, typed: list[str], offered: list[str], directive: str
) -> None:
    told = kubectl("__complete", "ccm", *typed).splitlines()

    *lines, last, _ = [line for line in told if not line.startswith("[Debug] ")]
    assert [line.partition("\t")[0] for line in lines] == offered
    assert last == directive
