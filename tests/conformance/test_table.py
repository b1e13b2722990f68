"""Every row has a test, and every marker names an existing row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance import table
from tests.conformance.conftest import PROOFS

NAME = re.compile(r"[a-z]+(-[a-z0-9]+)*-\d\d")


def test_every_row_has_a_test(pytestconfig: pytest.Config) -> None:
    if pytestconfig.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("not all tests were collected")

    assert sorted(table.load().keys() - pytestconfig.stash[PROOFS].keys()) == []


def test_every_marker_names_a_row(pytestconfig: pytest.Config) -> None:
    assert sorted(pytestconfig.stash[PROOFS].keys() - table.load().keys()) == []


def test_row_ids_match_the_pattern() -> None:
    assert [name for name in table.load() if not NAME.fullmatch(name)] == []


def test_deviation_texts_start_with_their_prefix() -> None:
    said = {name: row.deviation for name, row in table.load().items() if row.deviation}

    assert said
    assert [name for name, text in said.items() if not text.startswith("Deviation: ")] == []


def test_duplicate_row_id_is_rejected(tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text('[x-01]\nsituation = "s"\nexpected = "e"\n')

    with pytest.raises(ValueError, match="x-01 is there twice"):
        table.load(tmp_path)
