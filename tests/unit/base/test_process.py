"""What belongs to the whole process: its interpreter, its watchdog, its metrics."""

from __future__ import annotations

import json
import site
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ccm.base import interpreter, metrics
from tests.waiting import DEADLINE_S


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


_PROGRAM = """
import ctypes, time
from ccm.base.lease_guard import Watchdog

last_resort = Watchdog()
last_resort.arm("stop", {seconds})
{then}
{hangs}
"""

WAITS = "time.sleep({:g})".format
GRIPS = "ctypes.PyDLL(None).sleep({:g})".format
"""Waits in C, without letting any other thread of Python run."""


@pytest.mark.parametrize(
    ("seconds", "then", "hangs", "code"),
    [
        pytest.param(0.1, "", WAITS(20), 1, id="armed"),
        pytest.param(0.1, "", GRIPS(20), 1, id="no-thread-of-python-runs"),
        pytest.param(-1, "", WAITS(20), 1, id="too-late-already"),
        pytest.param(0.1, "last_resort.arm('lease', 20)", WAITS(10), 1, id="the-earlier-stays"),
        pytest.param(20, "last_resort.arm('lease', 0.1)", WAITS(10), 1, id="the-earlier-comes"),
        pytest.param(1, "last_resort.arm('stop', 20)", WAITS(1.5), 0, id="put-off"),
        pytest.param(
            0.2,
            "last_resort.arm('lease', 0.1); last_resort.call_off('lease')",
            WAITS(10),
            1,
            id="one-of-two-called-off",
        ),
        pytest.param(
            1,
            "last_resort.arm('lease', 1); last_resort.call_off(); last_resort.call_off()",
            WAITS(1.5),
            0,
            id="all-called-off",
        ),
    ],
)
def test_a_process_that_hangs_is_ended(seconds: float, then: str, hangs: str, code: int) -> None:
    program = _PROGRAM.format(seconds=seconds, then=then, hangs=hangs)

    done = subprocess.run(
        [sys.executable, "-c", program],
        timeout=DEADLINE_S,
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == code
    assert done.stdout == ""
    # Where it hung, for whoever reads the log.
    assert done.stderr.startswith("Timeout (") == bool(code)
    assert ('File "<string>", line' in done.stderr) == bool(code)


PROGRAM = """
import sys, threading, warnings
from ccm.base import log, redact

redact.know("hunTer2x9")
log.setup(fmt="json", stream=sys.stdout.buffer)
log.capture_python_errors()


def fail():
    raise ValueError("hunTer2x9 in a thread")


class Odd:
    def __del__(self):
        raise ValueError("hunTer2x9 in __del__")


warnings.warn("hunTer2x9 is old\\nI1231 forged")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
Odd()
"""


def test_warnings_and_errors_that_nobody_awaits_are_lines_without_secrets() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["logger"] for line in lines] == ["py.warnings", "python", "python"]
    assert done.stderr == ""
    assert "hunTer2x9" not in done.stdout


def fresh_name() -> str:
    return f"test_{uuid.uuid4().hex}"


def lines(name: str) -> list[str]:
    text = metrics.exposition().decode()
    return [line for line in text.splitlines() if line.startswith(name)]


def test_a_histogram_has_no_created_series_and_ends_in_infinity() -> None:
    name = fresh_name()
    histogram = metrics.histogram(name, "help", ["verb"], buckets=(0.1, 1.0))

    histogram.labels(verb="get").observe(0.1)

    assert lines(name) == [
        f'{name}_bucket{{le="0.1",verb="get"}} 1.0',
        f'{name}_bucket{{le="1.0",verb="get"}} 1.0',
        f'{name}_bucket{{le="+Inf",verb="get"}} 1.0',
        f'{name}_count{{verb="get"}} 1.0',
        f'{name}_sum{{verb="get"}} 0.1',
    ]


def test_a_counter_has_its_suffix_once_and_no_created_series() -> None:
    name = fresh_name()

    metrics.counter(f"{name}_total", "help").inc()

    assert lines(name) == [f"{name}_total 1.0"]


def test_a_counter_may_do_without_its_suffix() -> None:
    name = fresh_name()

    metrics.plain_counter(name, "help", ["result"]).labels("good").inc()

    text = metrics.exposition().decode()
    assert lines(name) == [f'{name}{{result="good"}} 1.0']
    assert f"# TYPE {name} counter\n" in text


def test_exponential_borders_are_multiplied_step_by_step() -> None:
    borders = metrics.exponential_buckets(0.001, 2, 15)

    assert len(borders) == 15
    assert borders[:3] == (0.001, 0.002, 0.004)
    assert borders[-1] == 16.384
    assert metrics.exponential_buckets(1e-8, 10, 3)[2] == 1e-8 * 10 * 10
