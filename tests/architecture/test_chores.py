"""The script behind the make targets: what it says, and what decides that `.venv` is stale."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.sources import ROOT

SCRIPT = ROOT / ".dev" / "run.py"


@pytest.fixture
def chores() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chores", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(*words: str, python: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_task_it_lists_them() -> None:
    answer = ask()

    assert answer.returncode == 0
    assert "  demo " in answer.stdout


def test_an_unknown_task_is_an_error() -> None:
    assert ask("dance").returncode == 2


def test_it_needs_the_standard_library_only() -> None:
    answer = ask("help", python=("-I", "-S"))

    assert answer.returncode == 0, answer.stderr


def test_uv_comes_from_the_lock_with_its_hashes(chores: ModuleType) -> None:
    first, *hashes = chores.locked("uv").splitlines()

    assert first.startswith("uv==")
    assert len(hashes) > 5
    assert all(line.strip().startswith("--hash=sha256:") for line in hashes)


def test_a_package_that_is_not_locked_is_refused(chores: ModuleType) -> None:
    with pytest.raises(chores.Failed, match="does not name nonsense"):
        chores.locked("nonsense")


def test_another_lock_makes_the_environment_stale(
    chores: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = chores.recipe()
    changed = tmp_path / "requirements.lock"
    changed.write_text(chores.LOCK.read_text() + "# changed\n")

    monkeypatch.setattr(chores, "LOCK", changed)

    assert chores.recipe() != before


def test_a_failed_step_is_named(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chores, "prepare", lambda: None)
    monkeypatch.setattr(chores, "checks", lambda: (("style", ["false"]), ("types", ["true"])))

    status = chores.main(["lint"])

    assert status == 1
    assert capfd.readouterr().err == "== failed: style\n"


def test_a_missing_part_of_python_is_told_before_anything_is_made(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setattr(chores, "prepare", chores.make_environment)
    monkeypatch.setattr(chores, "step", lambda name, command: pytest.fail(name))

    status = chores.main(["env"])

    assert status == 1
    assert "apt install python3-venv" in capsys.readouterr().err


def test_uv_hears_what_pip_is_told(chores: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"PIP_INDEX_URL": "https://mirror.example.com/simple", "PIP_FIND_LINKS": "/a /b"}
    monkeypatch.setattr(chores, "ENVIRONMENT", told | {"UV_INDEX": "https://own.example.com"})

    heard = chores.environment([str(chores.UV), "pip", "sync"])

    assert heard["UV_DEFAULT_INDEX"] == "https://mirror.example.com/simple"
    assert heard["UV_FIND_LINKS"] == "/a,/b"
    assert heard["UV_INDEX"] == "https://own.example.com"
    assert "UV_DEFAULT_INDEX" not in chores.environment(["python", "-m", "pytest"])


def test_without_an_index_one_line_says_that_it_is_needed_once(
    chores: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(chores, "prepare", chores.make_environment)
    monkeypatch.setattr(chores, "step", lambda *_: None)
    monkeypatch.setattr(chores, "passes", lambda *_: False)
    monkeypatch.setattr(chores, "VENV", tmp_path)

    status = chores.main(["env"])

    assert status == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "The package index is needed once: pypi.org, or what PIP_INDEX_URL names" in line
