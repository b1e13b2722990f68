"""Each fault can be applied, and names tests that run every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import rows
from tests.mutants.rows import InvalidMutant, Mutant
from tests.mutants.runner import ROOT

LEAST = 80
ROOMS = {"node", "nodelifecycle", "service", "route", "kube", "wire", "cloud", "serving"}
NOT_EVERY_TIME = ("soak", "envtest", "skip", "skipif")
"""Marks of tests that may be left out."""

MUTANTS = rows.load()


def test_there_are_many_in_every_room() -> None:
    found = Counter(mutant.room for mutant in MUTANTS)

    assert found.total() >= LEAST
    assert {room for room in ROOMS if found[room] < 5} == set()


def test_every_id_occurs_once() -> None:
    found = Counter(mutant.id for mutant in MUTANTS)

    assert [id_ for id_, times in found.items() if times > 1] == []


def test_every_fault_is_told_in_a_sentence() -> None:
    told = [mutant.fault for mutant in MUTANTS]

    assert [fault for fault in told if len(fault) > 100 or fault[-1:] != "."] == []


def test_every_fault_can_be_applied_and_still_compiles() -> None:
    assert [fault for mutant in MUTANTS for fault in application_faults(mutant)] == []


def test_every_fault_has_tests_that_always_run(request: pytest.FixtureRequest) -> None:
    if request.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("not all tests were collected")
    always = [item for item in request.session.items if runs_every_time(item)]
    # xdist adds the group to an item's own id, and not to its parent's.
    ids = {f"{item.parent.nodeid}::{item.name}" for item in always if item.parent}
    ids |= {id_.partition("[")[0] for id_ in ids}

    assert [mutant.id for mutant in MUTANTS if not mutant.tests] == []
    assert sorted({test for mutant in MUTANTS for test in mutant.tests} - ids) == []


def runs_every_time(item: pytest.Item) -> bool:
    """Whether a test is never left out, and draws no examples by chance."""
    is_by_chance = hasattr(getattr(item, "obj", None), "hypothesis")
    return not is_by_chance and not any(map(item.get_closest_marker, NOT_EVERY_TIME))


@pytest.mark.parametrize(
    "text",
    [
        "[a",
        "[a]\nfault = 'x'",
        "[a]\nfault='x'\nfile='x'\nbefore='x'\nafter=1\ntests=[]",
        "[a]\nfault='x'\nfile='x'\nbefore='x'\nafter='y'\ntests=[]\nwhy='x'",
    ],
    ids=["no TOML", "fields missing", "no text", "a strange field"],
)
def test_a_row_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "room.toml").write_text(text)

    with pytest.raises(InvalidMutant, match=r"room\.toml"):
        rows.load(tmp_path)


def test_faults_are_chosen_by_id_room_and_pattern() -> None:
    one, node, some = MUTANTS[0], rows.chosen(MUTANTS, ["node"]), rows.chosen(MUTANTS, ["node-*"])

    assert rows.chosen(MUTANTS, []) == list(MUTANTS)
    assert rows.chosen(MUTANTS, [one.id, one.id]) == [one]
    assert {mutant.room for mutant in node} == {"node"}
    assert node == some
    with pytest.raises(InvalidMutant, match="names no fault"):
        rows.chosen(MUTANTS, ["no-such-room"])


def application_faults(mutant: Mutant) -> Iterator[str]:
    """What keeps a fault from being applied."""
    try:
        compile(mutant.applied((ROOT / mutant.file).read_text()), mutant.file, "exec")
    except (InvalidMutant, OSError) as error:
        yield f"{error}; it is in {homes(mutant.before) or 'no file'} now"
    except SyntaxError as error:
        yield f"{mutant.id}: {mutant.file} does not compile: {error}"
    if mutant.before == mutant.after or not mutant.file.startswith(("ccm/", "providers/")):
        yield f"{mutant.id}: changes nothing of the product"


def homes(text: str) -> list[str]:
    """Where code that was moved can be found."""
    files = sorted(file for top in ("ccm", "providers") for file in (ROOT / top).rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in files if text in file.read_text()]
