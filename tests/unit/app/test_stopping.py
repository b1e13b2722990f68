"""Signals before there is anything to stop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ccm.app import stopping

_DRIVER = """
import sys, time
from ccm.app import main
from ccm.cloud import registry

def load(name):
    print("loading", flush=True)
    time.sleep(60)

registry.load = load
main.leave(main.main(["--cloud-provider=slow", "--master=http://127.0.0.1:1"]))
"""


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_while_the_provider_is_imported_ends_the_process(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"loading\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()

    assert process.returncode == 0
    assert b"Traceback" not in said


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in stopping.SIGNALS]

    with stopping.at_once():
        assert signal.getsignal(signal.SIGTERM) not in before
    after = [signal.getsignal(number) for number in stopping.SIGNALS]

    assert after == before
