"""The package that `kube-ccm new-provider` writes keeps the contract unchanged.

The tests of `providers/README.md` cover the whole package, with load balancers and routes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ccm.cli import new_provider
from ccm.testing.contract_balancers import BalancerCases
from ccm.testing.contract_routes import RouteCases


@pytest.mark.parametrize(
    ("part", "cases"), [("load_balancer", BalancerCases), ("routes", RouteCases)]
)
def test_a_generated_provider_with_an_optional_part_passes_the_contract(
    part: str, cases: type, tmp_path: Path
) -> None:
    folder = tmp_path / "ccm-nimbus"
    new_provider.write("nimbus", folder, **{part: True})

    names = [name for name in vars(cases) if name.startswith("test_")]
    chosen = ["-p", "no:cacheprovider", "-k", " or ".join(names)]
    words = [sys.executable, "-m", "pytest", "-q", *chosen]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed, ended.stdout
    assert int(passed[1]) >= len(names), ended.stdout
