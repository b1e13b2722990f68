"""The commands of the guide, as they stand there."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from providers.stackit import reference
from tests import forkserver
from tests.sandbox.command import started


def typed() -> Sequence[Sequence[str]]:
    """The words of each command."""
    guide = (reference.FOLDER / "README.md").read_text().partition("## Without an account")[2]
    blocks = "".join(re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)).replace("\\\n", "")
    return [shlex.split(line.rstrip(" &")) for line in blocks.strip().splitlines()]


def environment(home: Path) -> dict[str, str]:
    found = {**os.environ, "TMPDIR": str(home)}
    found.pop("KUBEBUILDER_ASSETS", None)
    return found


@contextlib.contextmanager
def fake(home: Path, *words: str) -> Iterator[None]:
    """The fake as a program, on a port of its own."""
    every = [sys.executable, *words]
    every[every.index("--port") + 1] = "0"
    child = forkserver.Popen(every, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert "environment" in child.stdout.readline()
        yield
    finally:
        child.terminate()
        child.communicate(timeout=10)


def test_the_first_command(tmp_path: Path) -> None:
    """Nothing of somebody's real account reaches the daemon."""
    real = {"STACKIT_SERVICE_ACCOUNT_KEY_PATH": "/nowhere", "STACKIT_NO_AUTH": "perhaps"}

    said = carried_out(tmp_path, typed()[0], {**environment(tmp_path), **real})

    assert said.startswith("done: 3 machines run, 5 nodes initialised, 2 Services served")


@pytest.mark.soak
def test_the_other_commands(tmp_path: Path) -> None:
    """In the end nothing that machines cost is left."""
    _, (_, *program), (_, variable), sandbox = typed()
    name, _, text = variable.partition("=")

    with fake(tmp_path, *program):
        said = carried_out(tmp_path, sandbox, {**environment(tmp_path), name: text})

    assert said.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")


def carried_out(home: Path, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """The last line of a sandbox that ended well."""
    assert words[:2] == ["kube-ccm", "sandbox"]
    with started(home, environ, *words[2:]) as sandbox:
        sandbox.read_to_the_end()
    assert sandbox.process.returncode == 0, sandbox.lines
    assert ", 0 warnings in " in sandbox.lines[-1]
    assert not any("is not gone" in line for line in sandbox.lines)
    return sandbox.lines[-1]
