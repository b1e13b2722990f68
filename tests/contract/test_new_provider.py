"""The package that `kube-ccm new-provider` writes keeps the contract unchanged.

The tests of `providers/README.md` cover the whole package, with load balancers and routes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ccm.cli import new_provider
from ccm.testing.contract_balancers import BalancerCases
from ccm.testing.contract_machines import MachineContract, MachineFaultCases
from ccm.testing.contract_routes import RouteCases
from tests.architecture.sources import ROOT


@pytest.mark.parametrize(
    ("part", "cases"),
    [
        ({"load_balancer": True}, [BalancerCases]),
        ({"routes": True}, [RouteCases]),
        ({"machines": "kubermatic"}, [MachineFaultCases, MachineContract]),
    ],
    ids=str,
)
def test_a_generated_provider_with_an_optional_part_passes_the_contract(
    part: dict[str, Any], cases: list[type], tmp_path: Path
) -> None:
    folder = tmp_path / "ccm-nimbus"
    new_provider.write("nimbus", folder, **part)

    names = [name for kind in cases for name in vars(kind) if name.startswith("test_")]
    chosen = ["-p", "no:cacheprovider", "-k", " or ".join([*names, "replaces_no_other_label"])]
    words = [sys.executable, "-m", "pytest", "-q", *chosen]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed, ended.stdout
    assert int(passed[1]) >= len(names), ended.stdout


@pytest.mark.slow
def test_a_generated_provider_of_kubermatic_is_typed_and_formatted(tmp_path: Path) -> None:
    """The tests of `providers/README.md` check a package with the other options."""
    folder = tmp_path / "ccm-nimbus"
    new_provider.write("nimbus", folder, machines="kubermatic")

    # With the project's settings, so that the cache of `make lint` is used.
    paths = {**os.environ, "MYPYPATH": f"{folder}:{folder / 'tests'}"}
    files = map(str, sorted(folder.rglob("*.py")))
    for words, where in (
        (["ruff", "check", "."], folder),
        (["ruff", "format", "--check", "."], folder),
        (["mypy", *files], ROOT),
    ):
        command = [sys.executable, "-m", *words]
        ended = subprocess.run(
            command, cwd=where, env=paths, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout
