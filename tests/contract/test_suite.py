"""The contract broken: each defect of a provider is noticed by the cases made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.contract import broken

pytestmark = pytest.mark.xdist_group("defects")  # their one run is not worth repeating

FILE = Path(broken.__file__)
PLACES = {
    (f"Test{name}", case): f"{FILE}::Test{name}::{case}"
    for name, defect in broken.defects.DEFECTS.items()
    for case in defect.noticed
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """(class, case) -> `failed` or `passed`; one run of pytest for all of them."""
    report = tmp_path_factory.mktemp("suite") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *PLACES.values()],
        cwd=FILE.parents[2],
        env=environment,
        timeout=180,
        check=False,
        capture_output=True,
    )
    return {
        (str(case.get("classname")).rpartition(".")[2], str(case.get("name"))): (
            "failed" if case.find("failure") is not None else "passed"
        )
        for case in ElementTree.parse(report).iter("testcase")
    }


@pytest.mark.parametrize(("defect", "case"), PLACES)
def test_defect_is_noticed(verdicts: dict[tuple[str, str], str], defect: str, case: str) -> None:
    """The case fails, and fails as a case: an error of a fixture does not count."""
    assert verdicts[defect, case] == "failed"
