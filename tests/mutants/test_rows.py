"""Each fault can be applied, and names tests that run every time."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.mutants import rows
from tests.mutants.rows import Misfit, Mutant
from tests.mutants.runner import ROOT

LEAST = 80
ROOMS = {"node", "nodelifecycle", "service", "route", "kube", "wire", "cloud", "serving"}
NOT_EVERY_TIME = ("soak", "envtest", "skip", "given(")
"""Words in decorators of tests that may be left out, or whose examples are drawn by chance."""

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
    assert [fault for mutant in MUTANTS for fault in misfits(mutant)] == []


def test_every_fault_has_tests_that_always_run() -> None:
    assert [fault for mutant in MUTANTS for fault in wrong_tests(mutant)] == []


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

    with pytest.raises(Misfit, match=r"room\.toml"):
        rows.load(tmp_path)


def test_faults_are_chosen_by_id_room_and_pattern() -> None:
    one, node, some = MUTANTS[0], rows.chosen(MUTANTS, ["node"]), rows.chosen(MUTANTS, ["node-*"])

    assert rows.chosen(MUTANTS, []) == list(MUTANTS)
    assert rows.chosen(MUTANTS, [one.id, one.id]) == [one]
    assert {mutant.room for mutant in node} == {"node"}
    assert node == some
    with pytest.raises(Misfit, match="names no fault"):
        rows.chosen(MUTANTS, ["no-such-room"])


def misfits(mutant: Mutant) -> Iterator[str]:
    """What keeps a fault from being applied."""
    try:
        compile(mutant.applied((ROOT / mutant.file).read_text()), mutant.file, "exec")
    except (Misfit, OSError) as error:
        yield f"{error}; it is in {homes(mutant.before) or 'no file'} now"
    except SyntaxError as error:
        yield f"{mutant.id}: {mutant.file} does not compile: {error}"
    if mutant.before == mutant.after or not mutant.file.startswith(("ccm/", "providers/")):
        yield f"{mutant.id}: changes nothing of the product"


def homes(text: str) -> list[str]:
    """Where code that was moved can be found."""
    files = sorted(file for top in ("ccm", "providers") for file in (ROOT / top).rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in files if text in file.read_text()]


def wrong_tests(mutant: Mutant) -> Iterator[str]:
    """What is wrong with the tests that a fault names."""
    if not mutant.tests:
        yield f"{mutant.id}: names no test"
    for test in mutant.tests:
        file, _, rest = test.partition("::")
        name = rest.partition("[")[0].rpartition("::")[2]
        marks = functions(file).get(name)
        if marks is None:
            yield f"{mutant.id}: there is no {name!r} in {file}"
        elif any(word in marks for word in NOT_EVERY_TIME):
            yield f"{mutant.id}: {test} does not run, or prove the same, every time"


@functools.cache
def functions(file: str) -> Mapping[str, str]:
    """The functions of a test file, with what is written about when they run."""
    if not (ROOT / file).is_file():
        return {}
    tree = ast.parse((ROOT / file).read_text())
    whole = [ast.unparse(node) for node in tree.body if is_mark_of_all(node)]
    return {
        node.name: " ".join([*whole, *map(ast.unparse, node.decorator_list)])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def is_mark_of_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets)
