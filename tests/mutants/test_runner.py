"""What the runner says of faults that are caught, and of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import rows, runner
from tests.mutants.rows import Mutant
from tests.mutants.runner import Copy, Outcome

CODE = "def double(number):\n    return 2 * number\n"
TEST = "import ccm\n\ndef test_two():\n    assert ccm.double(2) == 4\n"
SLOW = "Failed: Timeout (>20.0s) from pytest-timeout."


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project; its packages are called like ours, which are installed."""
    files = {"ccm/__init__.py": CODE, "providers/__init__.py": "", "test_it.py": TEST}
    for name, content in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(content)
    return tmp_path / "tree"


def fault(id_: str, after: str) -> Mutant:
    return Mutant(
        id=id_,
        room="sums",
        fault="Sums are wrong.",
        file="ccm/__init__.py",
        before="2 * number",
        after=after,
        tests=("test_it.py::test_two",),
    )


def script(monkeypatch: pytest.MonkeyPatch, *runs: tuple[int, str]) -> None:
    """Let pytest do this, one run after the other, and imports be right."""
    left = list(runs)
    monkeypatch.setattr(Copy, "_prove_imports", lambda _: None)
    monkeypatch.setattr(Copy, "_python", lambda *_, **__: left.pop(0))


def test_a_fault_is_caught_and_a_harmless_change_survives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutants = [fault("wrong", "3 * number"), fault("harmless", "number * 2")]

    status = runner.run_all(mutants, tree=tree, workers=1)

    said = capsys.readouterr().out
    assert status == 1
    assert "wrong: caught\n" in said
    assert "harmless: SURVIVED\n  Sums are wrong.\n  ccm/__init__.py\n  test_it.py::" in said
    assert "2 faults: 1 caught, 1 SURVIVED" in said


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ([(0, "")], Outcome.SURVIVED),
        ([(1, "E  assert 6 == 4")], Outcome.CAUGHT),
        ([(2, "ImportError")], Outcome.UNTRIED),
        ([(4, "not found")], Outcome.UNTRIED),
        ([(5, "no tests ran")], Outcome.UNTRIED),
        ([(1, SLOW), (0, "")], Outcome.TOO_SLOW),
        ([(1, SLOW), (1, SLOW)], Outcome.UNTRIED),
        ([(-9, ""), (0, "")], Outcome.TOO_SLOW),
    ],
    ids=[
        *("all pass", "one fails", "nothing can be imported", "no such test", "none is chosen"),
        *("too slow with it alone", "too slow without it too", "ended by force"),
    ],
)
def test_what_becomes_of_a_fault(
    runs: list[tuple[int, str]],
    outcome: Outcome,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script(monkeypatch, *runs)
    copy = Copy(tree, tmp_path / "copy")

    assert copy.attempt(fault("any", "3 * number")).outcome is outcome

    assert (tmp_path / "copy" / "ccm" / "__init__.py").read_text() == CODE


def test_nothing_is_tried_while_tests_fail_anyway(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(monkeypatch, (1, "E  assert 5 == 4"))

    assert runner.run_all([fault("any", "3 * number")], tree=tree) == 1

    assert "they do not pass (status 1):\nE  assert 5 == 4" in capsys.readouterr().out


def test_a_copy_that_would_not_be_imported_is_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copy, "_python", lambda *_, **__: (0, "/elsewhere/ccm"))

    with pytest.raises(RuntimeError, match="would not import the copy"):
        Copy(tree, tmp_path / "copy")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_fault_is_caught() -> None:
    assert runner.run_all(rows.load()) == 0
