"""Every row is proved by a test, and every test that names a row names a real one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conformance import collector, table

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[a-z]+(-[a-z0-9]+)*-\d\d")


@pytest.fixture(scope="module")
def proofs() -> Mapping[str, Sequence[str]]:
    """Row -> tests, of everything that could be collected, whatever runs now."""
    asked = [*("-m", "pytest", "tests", "--collect-only", "-q", "-p", collector.__name__)]
    asked += ["--continue-on-collection-errors", "-p", "no:cacheprovider"]
    answer = subprocess.run(
        [sys.executable, *asked], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = [line for line in answer.stdout.splitlines() if line.startswith(collector.MARK)]
    assert told, answer.stdout + answer.stderr
    found: dict[str, list[str]] = {}
    for row, test in json.loads(told[0].removeprefix(collector.MARK)):
        found.setdefault(row, []).append(test)
    return found


def test_every_row_has_a_test(proofs: Mapping[str, Sequence[str]]) -> None:
    assert sorted(table.load().keys() - proofs.keys()) == []


def test_every_marker_names_a_row(proofs: Mapping[str, Sequence[str]]) -> None:
    strangers = {row: tests for row, tests in proofs.items() if row not in table.load()}

    assert strangers == {}


def test_ids_look_alike() -> None:
    assert [name for name in table.load() if not NAME.fullmatch(name)] == []


def test_a_deviation_says_so_first() -> None:
    said = {name: row.deviation for name, row in table.load().items() if row.deviation}

    assert said
    assert [name for name, text in said.items() if not text.startswith("Deviation: ")] == []


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text('[x-01]\nsituation = "s"\nexpected = "e"\n')

    with pytest.raises(ValueError, match="x-01 is there twice"):
        table.load(tmp_path)
