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
    spec = importlib.util.spec_from_file_location("chores", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_needs_the_standard_library_only_and_lists_its_tasks(chores: ModuleType) -> None:
    command = [sys.executable, "-I", "-S", str(SCRIPT), "help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (answer.returncode, "  demo " in answer.stdout) == (0, True), answer.stderr
    assert chores.main(["dance"]) == 2


def test_uv_comes_from_the_lock_with_its_hashes(chores: ModuleType) -> None:
    first, *hashes = chores.locked("uv").splitlines()

    assert first.startswith("uv==")
    assert len(hashes) > 5
    assert all(line.strip().startswith("--hash=sha256:") for line in hashes)
    with pytest.raises(chores.Failed, match="nonsense"):
        chores.locked("nonsense")


def test_checks_run_beside_the_tests_and_each_failure_is_named(
    chores: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    untidy = ["sh", "-c", "echo untidy; echo very >&2; exit 1"]
    monkeypatch.setattr(chores, "prepare", lambda: None)
    monkeypatch.setattr(chores, "checks", lambda: (("style", untidy), ("types", ["true"])))
    assert chores.main(["lint"]) == 1
    assert capfd.readouterr().err.endswith("== failed: style\n")

    monkeypatch.setattr(chores, "passes", lambda name, command: print("tests") is None)
    assert chores.main(["test"]) == 1
    said, complaint = capfd.readouterr()
    assert said == "tests\n== style\nuntidy\nvery\n== types\n"
    assert complaint == "== failed: style\n"


PIP = ("-m", "pip", "download", "--no-cache-dir", "--retries", "1", "--dest", "{folder}")
UV = ("-m", "uv", "pip", "install", "--no-cache", "--target", "{folder}")


@pytest.mark.parametrize(
    ("command", "variable"), [(PIP, "UV_DEFAULT_INDEX"), (UV, "PIP_INDEX_URL")], ids=["pip", "uv"]
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
    assert "the package index does not answer" in line


def test_all_that_pip_is_told_uv_is_told_too_but_for_what_it_knows(chores: ModuleType) -> None:
    told = chores.for_both({"PIP_CERT": "/ca.pem", "UV_INDEX": "https://a", "PIP_PROXY": ""})

    assert told["SSL_CERT_FILE"] == "/ca.pem"
    assert told["PIP_EXTRA_INDEX_URL"] == "https://a"
    assert "ALL_PROXY" not in told
    assert chores.for_both({"UV_INDEX_URL": NOWHERE})["PIP_INDEX_URL"] == NOWHERE
    assert chores.for_both({"PIP_FIND_LINKS": "/a /b"})["UV_FIND_LINKS"] == "/a,/b"
    assert chores.for_both({"UV_FIND_LINKS": "/a,/b"})["PIP_FIND_LINKS"] == "/a /b"
    both = {"PIP_INDEX_URL": "https://a", "UV_DEFAULT_INDEX": "https://b"}
    assert chores.for_both(both) == both
