"""`kube-ccm sandbox` with this provider and the fake as a program, as the guide has it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from providers.hcloud import reference
from tests import forkserver
from tests.sandbox.command import started


@pytest.fixture(scope="module")
def typed() -> Sequence[str]:
    """The two commands of the guide."""
    guide = (reference.FOLDER / "README.md").read_text()
    (found,) = re.findall(r"```sh\n(python -m providers.hcloud.testing .*?)```", guide, re.DOTALL)
    return [one.rstrip(" &") for one in found.replace("\\\n", "").strip().splitlines()]


@pytest.fixture
def home(tmp_path: Path, typed: Sequence[str]) -> Iterator[Path]:
    """A folder with what the fake writes; it runs on a port of its own."""
    _, *words = shlex.split(typed[0])
    words[words.index("--port") + 1] = "0"
    child = forkserver.Popen(
        [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert "endpoint" in child.stdout.readline()
        yield tmp_path
    finally:
        child.terminate()
        child.communicate(timeout=10)


def test_the_commands_of_the_guide(home: Path, typed: Sequence[str]) -> None:
    """Machines, nodes and Services; in the end nothing that machines cost is left."""
    environment = {**os.environ, "TMPDIR": str(home)}
    environment.pop("KUBEBUILDER_ASSETS", None)
    _, _, *words = shlex.split(typed[1])

    with started(home, environment, *words) as sandbox:
        sandbox.read_to_the_end()

    assert sandbox.process.returncode == 0, sandbox.lines
    told = sandbox.lines[-1]
    assert told.startswith("done: 2 machines run, 1 nodes initialised, 2 Services served")
    assert ", 0 warnings in " in told
    assert not any("is not gone" in line for line in sandbox.lines)
