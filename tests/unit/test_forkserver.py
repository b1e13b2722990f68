"""A forked program is what an executed one would have been."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forkserver
from tests.waiting import DEADLINE_S

Start = Callable[..., Any]

SIM = [sys.executable, "-m", "providers.sim"]


@pytest.fixture(params=[subprocess.Popen, forkserver.Popen])
def start(request: pytest.FixtureRequest) -> Start:
    popen: Start = request.param
    return popen


def test_it_gets_arguments_environment_directory_and_streams(start: Start, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "FLAVOUR": "vanilla"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "ccm", "--config=there.yaml"]

    with start(command, cwd=tmp_path, env=env, **streams) as child:
        said, complaint = child.communicate(timeout=DEADLINE_S)

    assert (child.returncode, said) == (1, "")
    assert complaint.startswith("cloud-controller-manager: --config=there.yaml")


@pytest.mark.parametrize(("way", "code"), [("terminate", 0), ("kill", -9)])
def test_it_ends_by_signals(start: Start, way: str, code: int) -> None:
    with start(SIM, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline().startswith(b'{"url"')
        assert child.poll() is None
        getattr(child, way)()

    assert child.returncode == code


def test_each_has_a_session_of_its_own_if_wanted(start: Start) -> None:
    with start(SIM, stdout=subprocess.PIPE, start_new_session=True) as child:
        child.stdout.readline()
        session = os.getsid(child.pid)
        child.kill()

    assert session == child.pid
