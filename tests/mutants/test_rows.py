"""Each guard of a deletion is where its row says, and (in `make soak`) tests miss it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutator import ROOT, Copy, NoSuchPlace, mutated

TEXT = (Path(__file__).parent / "rows.txt").read_text().splitlines()
ROWS = [tuple(line.split(" | ")) for line in TEXT if line and not line.startswith("#")]
SOURCE = """
LIMIT = 5

class Store:
    async def drop(self, name, found):
        if name in found and name != "":
            return [one for one in found if one < LIMIT]
        await self.api.delete(name, uid=found)
        self.told(name)
"""


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("ccm:LIMIT value=0", "LIMIT = 0"),
        ("ccm:Store.drop condition#1=False", "if False:"),
        ("ccm:Store.drop condition#2=True", "for one in found if True]"),
        ("ccm:Store.drop operand#1", "if name != '':"),
        ("ccm:Store.drop bound#1", "if one <= LIMIT]"),
        ("ccm:Store.drop return=None", "def drop(self, name, found):\n        return None"),
        ("ccm:Store.drop keyword:uid", "await self.api.delete(name)\n"),
        ("ccm:Store.drop call:told", "uid=found)\n        None"),
    ],
)
def test_one_place_is_changed(place: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "ccm.py").write_text(SOURCE)

    assert text in mutated(place, tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        "other:LIMIT value=0",
        "ccm:Store.drops return=None",
        "ccm:Store.drop condition#3=True",
        "ccm:Store.drop keyword:version",
    ],
)
def test_a_place_that_moved_is_an_error(place: str, tmp_path: Path) -> None:
    (tmp_path / "ccm.py").write_text(SOURCE)

    with pytest.raises(NoSuchPlace):
        mutated(place, tmp_path)


def test_every_row_names_code_and_tests() -> None:
    for place, tests, _ in ROWS:
        mutated(place)
        assert [name for name in tests.split() if not (ROOT / name).exists()] == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("mutants"))


@pytest.mark.soak
def test_without_a_change_all_tests_pass(copy: Copy) -> None:
    assert copy.passes(sorted({name for _, tests, _ in ROWS for name in tests.split()}))


@pytest.mark.soak
@pytest.mark.parametrize(("place", "tests", "kept"), ROWS, ids=[place for place, _, _ in ROWS])
def test_a_guard_is_missed(place: str, tests: str, kept: str, copy: Copy) -> None:
    assert not copy.survives(place, tests.split()), kept
