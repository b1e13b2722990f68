"""What Python itself has to say goes through the log, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.waiting import DEADLINE_S

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
