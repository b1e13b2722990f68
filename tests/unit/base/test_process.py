"""Parts of the whole process: its interpreter, its watchdog, its metrics."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from ccm.base import interpreter, metrics
from tests.waiting import DEADLINE_S


def test_child_interpreter_is_isolated_and_inherits_x_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
            "last_resort.arm('lease', 0.1); last_resort.cancel('lease')",
            WAITS(10),
            1,
            id="one-of-two-called-off",
        ),
        pytest.param(
            1,
            "last_resort.arm('lease', 1); last_resort.cancel(); last_resort.cancel()",
            WAITS(1.5),
            0,
            id="all-called-off",
        ),
    ],
)
def test_watchdog_ends_a_hanging_process_at_its_earliest_deadline(
    seconds: float, then: str, hangs: str, code: int
) -> None:
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
    # The log shows where the process hung.
    assert done.stderr.startswith("Timeout (") == bool(code)
    assert ('File "<string>", line' in done.stderr) == bool(code)


PROGRAM = """
import sys, threading, warnings
from ccm.base import log, redact

redact.register("hunTer2x9")
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


def test_warnings_and_unhandled_errors_are_logged_without_secrets() -> None:
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


def test_metrics_have_their_suffixes_and_no_created_series() -> None:
    name = f"test_{uuid.uuid4().hex}"
    metrics.histogram(f"{name}_h", "help", ["verb"], buckets=(0.1,)).labels(verb="get").observe(0.1)
    metrics.counter(f"{name}_c_total", "help").inc()
    metrics.plain_counter(f"{name}_p", "help", ["result"]).labels("good").inc()

    text = metrics.exposition().decode()
    assert [line for line in text.splitlines() if line.startswith(name)] == [
        f'{name}_h_bucket{{le="0.1",verb="get"}} 1.0',
        f'{name}_h_bucket{{le="+Inf",verb="get"}} 1.0',
        f'{name}_h_count{{verb="get"}} 1.0',
        f'{name}_h_sum{{verb="get"}} 0.1',
        f"{name}_c_total 1.0",
        f'{name}_p{{result="good"}} 1.0',
    ]


@pytest.mark.parametrize(("declare", "kind"), [("gauge", "gauge"), ("plain_counter", "counter")])
def test_renamed_metric_is_exposed_under_its_deprecated_name_too(declare: str, kind: str) -> None:
    name = f"test_{uuid.uuid4().hex}"
    metric = getattr(metrics, declare)(f"{name}_new", "help", ["result"])
    metrics.FormerName(metric, f"{name}_old")
    metric.labels("good").inc(2)

    text = metrics.exposition().decode()
    assert [line for line in text.splitlines() if f"{name}_old" in line] == [
        f"# HELP {name}_old DEPRECATED: use {name}_new",
        f"# TYPE {name}_old {kind}",
        f'{name}_old{{result="good"}} 2.0',
    ]
