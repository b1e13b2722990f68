"""Processes of our own modules, in folders and environments that somebody else has filled."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

import pytest

from ccm.base import interpreter


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder with modules that are never to be loaded."""
    for name in ("json", "cryptography"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('loaded what it should not')")
    return tmp_path


@pytest.mark.parametrize("is_users", [False, True], ids=["usual", "in the user's home"])
def test_neither_folder_nor_environment_says_what_runs(
    traps: Path, monkeypatch: pytest.MonkeyPatch, is_users: bool
) -> None:
    if is_users:
        here = str(Path(interpreter.__file__).parent)
        monkeypatch.setattr(site, "getusersitepackages", lambda: here)
    words = ("mint", "2026-01-01T00:00:00+00:00", "60", "localhost")
    command = interpreter.command("ccm.serving.minting", *words)

    done = subprocess.run(
        command,
        cwd=traps,
        env={"PYTHONPATH": str(traps)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.startswith("-----BEGIN CERTIFICATE"), done.stderr
    assert ("-I" in command) is not is_users


def test_options_of_ours_are_the_childs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_xoptions", {"dev": True, "int_max_str_digits": "700"})

    command = interpreter.command("this", "that")

    assert command[1:] == ["-I", "-Xdev", "-Xint_max_str_digits=700", "-m", "this", "that"]
