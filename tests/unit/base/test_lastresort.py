"""A process ends by its deadline, unless that is called off."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import time
from ccm.base.lastresort import LastResort

last_resort = LastResort()
last_resort.arm(0.1, 7)
{then}
time.sleep({hangs_s})
"""


@pytest.mark.parametrize(
    ("then", "hangs_s", "code"),
    [
        pytest.param("", 20, 7, id="armed"),
        pytest.param("last_resort.arm(20, 8)", 10, 7, id="an-earlier-end-stays"),
        pytest.param(
            "last_resort.call_off(); last_resort.arm(20, 8); last_resort.arm(0.2, 9)",
            10,
            9,
            id="an-earlier-end-replaces",
        ),
        pytest.param("last_resort.call_off(); last_resort.call_off()", 0.3, 0, id="called-off"),
    ],
)
def test_a_process_that_hangs_is_ended(then: str, hangs_s: float, code: int) -> None:
    program = _PROGRAM.format(then=then, hangs_s=hangs_s)

    done = subprocess.run([sys.executable, "-c", program], timeout=15, check=False)

    assert done.returncode == code
