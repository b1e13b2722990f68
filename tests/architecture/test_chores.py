"""The script behind the make targets: what it says, and what decides that `.venv` is stale."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.sources import ROOT

SCRIPT = ROOT / ".dev" / "run.py"
NOWHERE = "http://127.0.0.1:9/simple"
"""Nobody listens on the port of `discard`."""


@pytest.fixture
def chores() -> ModuleType:
    return imported(SCRIPT)


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("chores", path)
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


def test_what_is_checked_beside_the_tests_is_told_after_them(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    untidy = ["sh", "-c", "echo untidy; echo very >&2; exit 1"]
    monkeypatch.setattr(chores, "prepare", lambda: None)
    monkeypatch.setattr(chores, "checks", lambda: (("style", untidy), ("types", ["true"])))
    monkeypatch.setattr(chores, "passes", lambda name, command: print("tests") is None)

    status = chores.main(["test"])

    assert status == 1
    said, complaint = capfd.readouterr()
    assert said == "tests\n== style\nuntidy\nvery\n== types\n"
    assert complaint == "== failed: style\n"


def test_a_missing_part_of_python_is_told_before_anything_is_made(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    monkeypatch.setattr(chores, "prepare", chores.make_environment)
    monkeypatch.setattr(chores, "step", lambda name, command: pytest.fail(name))

    status = chores.main(["env"])

    assert status == 1
    assert "apt install python3-venv" in capsys.readouterr().err


PIP = ("-m", "pip", "download", "--no-cache-dir", "--retries", "1", "--dest", "{folder}")
UV = ("-m", "uv", "pip", "install", "--no-cache", "--target", "{folder}")


@pytest.mark.parametrize(
    ("command", "variable"),
    [(PIP, "UV_DEFAULT_INDEX"), (PIP, "UV_INDEX_URL"), (UV, "PIP_INDEX_URL")],
    ids=["pip", "pip, by the older name", "uv"],
)
def test_each_installer_asks_the_index_that_either_is_told_of(
    chores: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str],
    variable: str,
) -> None:
    """And where that does not answer, one line says what the first run needs."""
    words = [word.format(folder=tmp_path) for word in command]
    given = {**os.environ, variable: NOWHERE, "UV_HTTP_RETRIES": "0"}
    monkeypatch.setattr(chores, "ENVIRONMENT", chores.for_both(given))

    with pytest.raises(chores.Failed) as failed:
        chores.fetch("fetching", [sys.executable, *words, "no-such-package"])

    (line,) = str(failed.value).splitlines()
    assert "the package index does not answer. The first run needs it, this once" in line


def test_what_is_wrong_otherwise_is_told_whole(
    chores: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(chores.Failed, match=r"^failed: fetching$"):
        chores.fetch("fetching", [sys.executable, "-c", "raise SystemExit('bad hash')"])

    assert capfd.readouterr().err == "bad hash\n"


def test_all_that_pip_is_told_uv_is_told_too_but_for_what_it_knows(chores: ModuleType) -> None:
    told = chores.for_both({"PIP_CERT": "/ca.pem", "UV_INDEX": "https://a", "PIP_PROXY": ""})

    assert told["SSL_CERT_FILE"] == "/ca.pem"
    assert told["PIP_EXTRA_INDEX_URL"] == "https://a"
    assert "ALL_PROXY" not in told
    assert chores.for_both({"PIP_FIND_LINKS": "/a /b"})["UV_FIND_LINKS"] == "/a,/b"
    assert chores.for_both({"UV_FIND_LINKS": "/a,/b"})["PIP_FIND_LINKS"] == "/a /b"
    both = {"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://b"}
    assert chores.for_both(both) == both
