"""Each guard of a deletion is where its row says, and (in `make soak`) tests fail without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutator import ROOT, Copy, mutated

TEXT = (Path(__file__).parent / "rows.txt").read_text().splitlines()
ROWS = [tuple(line.split(" | ")) for line in TEXT if line and not line.startswith("#")]


def test_every_row_names_existing_code_and_tests() -> None:
    """Code that moved, or that the operator does not change, is an error."""
    for place, tests, _ in ROWS:
        mutated(place)
        assert [name for name in tests.split() if not (ROOT / name).exists()] == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("mutants"))


@pytest.mark.soak
def test_all_tests_pass_without_a_mutation(copy: Copy) -> None:
    assert copy.passes(sorted({name for _, tests, _ in ROWS for name in tests.split()}))


@pytest.mark.soak
@pytest.mark.parametrize(("place", "tests", "kept"), ROWS, ids=[place for place, _, _ in ROWS])
def test_removal_of_a_guard_makes_tests_fail(place: str, tests: str, kept: str, copy: Copy) -> None:
    assert not copy.survives(place, tests.split()), kept
