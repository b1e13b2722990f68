"""`kubectl ccm`: the installed commands as kubectl finds and calls them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.kubectl.tool import Kubectl

pytestmark = pytest.mark.envtest

COMMANDS = Path(sys.executable).parent


@pytest.fixture
def kubectl(
    program: Path, builtin_kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Kubectl:
    """kubectl on a PATH with nothing of ours but what an installation brings."""
    monkeypatch.setenv("PATH", f"{COMMANDS}{os.pathsep}{os.defpath}")
    return Kubectl(program, builtin_kubeconfig, tmp_path / "home")


def test_the_doctor_looks_at_the_cluster_of_kubectl(
    kubectl: Kubectl, builtin_kubeconfig: Path
) -> None:
    status, told = kubectl.run("ccm", "doctor", "--cloud-provider=sim")

    assert status == 1, "there is no cloud to look at"
    assert f"ok    kubeconfig: {builtin_kubeconfig}" in told
    assert "ok    server: " in told


@pytest.mark.parametrize(
    ("typed", "offered", "directive"),
    [
        (["doc"], ["doctor"], ":4"),
        (["providers", ""], ["hcloud", "sim", "stackit"], ":4"),
        (["doctor", "--output=js"], ["json"], ":4"),
        (["doctor", "--cluster-ci"], ["--cluster-cidr="], ":6"),
        (["doctor", "--kubeconfig="], [], ":0"),
    ],
)
def test_kubectls_own_completion_asks_it(
    kubectl: Kubectl, typed: list[str], offered: list[str], directive: str
) -> None:
    told = kubectl("__complete", "ccm", *typed).splitlines()

    *lines, last, _ = [line for line in told if not line.startswith("[Debug] ")]
    assert [line.partition("\t")[0] for line in lines] == offered
    assert last == directive
