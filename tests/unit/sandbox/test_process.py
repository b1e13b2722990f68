"""Children log to a file, end when asked, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ccm.sandbox import process
from tests.waiting import DEADLINE_S, eventually, eventually_blocking

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "


def python(code: str, log: Path) -> process.Child:
    return process.Child([sys.executable, "-c", code], log=log)


async def ended(child: process.Child) -> process.Child:
    await eventually(lambda: child.exit_code is not None)
    return child


async def up(code: str, log: Path) -> process.Child:
    child = python(code, log)
    await eventually(lambda: "up" in log.read_text())
    return child


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_both_outputs_go_to_the_log_and_are_appended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("first", "second"):
        await ended(python(f"import sys; print('{word}'); sys.exit('{word} error')", log))
    assert log.read_text().split("\n") == ["first", "first error", "second", "second error", ""]


async def test_the_log_tail_is_short(tmp_path: Path) -> None:
    child = await ended(python("print('x' * 100_000 + 'end')", tmp_path / "log"))
    assert len(child.log_tail()) == 4000
    assert child.log_tail().endswith("xend\n")


async def test_stop_asks_first(tmp_path: Path) -> None:
    child = await up("import time; print('up', flush=True); time.sleep(60)", tmp_path / "log")
    assert child.exit_code is None
    assert await child.stop(grace_s=DEADLINE_S) == child.exit_code == -signal.SIGTERM


async def test_stop_kills_who_does_not_listen(tmp_path: Path) -> None:
    child = await up(STUBBORN + "time.sleep(60)", tmp_path / "log")
    assert await child.stop(grace_s=0.1) == -signal.SIGKILL


async def test_the_exit_code_of_its_own_end_is_kept(tmp_path: Path) -> None:
    child = await ended(python("raise SystemExit(3)", tmp_path / "log"))
    assert [await child.stop(grace_s=1), await child.kill()] == [3, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys, time; from pathlib import Path; from ccm.sandbox import process\n"
        f"child = process.Child([sys.executable, '-c', {STUBBORN + 'time.sleep(60)'!r}], "
        f"log=Path({str(log)!r}))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        os.kill(parent.pid, signal.SIGKILL)
    eventually_blocking(lambda: not is_alive(child), lambda: f"process {child} still runs")


def test_a_program_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process.Child([str(tmp_path / "nothing")], log=tmp_path / "log")
