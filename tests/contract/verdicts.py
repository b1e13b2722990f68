"""Runs test cases in a separate pytest and returns the outcome of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def verdicts_of(places: Iterable[str], folder: Path) -> dict[tuple[str, str], str]:
    """(class, case) -> `failed` or `passed`; one run of pytest for all of them."""
    report = folder / "report.xml"
    options = [
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",  # a second to import, and no case draws anything
        f"--junitxml={report}",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *places],
        cwd=ROOT,
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
