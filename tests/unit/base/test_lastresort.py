"""A process ends by its deadline, unless that is called off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import DEADLINE_S

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
