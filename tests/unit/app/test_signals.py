"""A stop signal at awkward moments; the daemon is a child process without an API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ccm.app import stopping
from tests import forkserver
from tests.unit.app import moody
from tests.waiting import DEADLINE_S, eventually_blocking

_HELD_BACK = (
    "--feature-gates=LoggingAlphaOptions=true",
    "--log-json-split-stream=true",
    "--log-json-info-buffer-size=1Mi",
)
_STANDBY = "cannot acquire or renew lease"
_LEADING = "list or watch failed"


class Daemon:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def lines(self, message: str) -> list[dict[str, Any]]:
        whole = [line for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [line for line in map(json.loads, whole) if message in line["msg"]]

    def says(self, message: str) -> None:
        eventually_blocking(lambda: self.lines(message), self.log.read_text)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        return self.process.wait(DEADLINE_S)


@contextmanager
def running(tmp_path: Path, mood: str, *flags: str) -> Iterator[Daemon]:
    log = tmp_path / "log"
    argv = ["--cloud-provider=paper", "--master=http://127.0.0.1:1", "--logging-format=json"]
    argv.append("--secure-port=0")
    with log.open("wb") as output:
        process = forkserver.Popen(
            [sys.executable, "-m", moody.__name__, mood, *argv, *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield Daemon(process, log)
    finally:
        process.kill()
        process.wait()
    assert "never awaited" not in log.read_text()
    assert "destroyed but" not in log.read_text()


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in stopping.SIGNALS]

    with stopping.at_once():
        assert signal.getsignal(signal.SIGTERM) not in before

    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_while_the_provider_is_imported_ends_the_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(tmp_path, "is imported slowly") as daemon:
        daemon.says("importing")
        daemon.signal(number)

        assert daemon.ended() == 0
    assert "Traceback" not in daemon.log.read_text()


@pytest.mark.parametrize("number", stopping.SIGNALS)
@pytest.mark.parametrize(
    ("mood", "moment", "flag"),
    [
        pytest.param("never opens", "opening", "true", id="opening"),
        pytest.param("refuses", "provider cannot be opened", "true", id="between-attempts"),
        pytest.param("well", _STANDBY, "true", id="acquiring"),
        pytest.param("well", _LEADING, "false", id="leading-without-election"),
    ],
)
def test_a_signal_stops_in_good_order(
    tmp_path: Path, mood: str, moment: str, flag: str, number: signal.Signals
) -> None:
    with running(tmp_path, mood, f"--leader-elect={flag}") as daemon:
        daemon.says(moment)
        daemon.signal(number)

        assert daemon.ended() == 0
        assert len(daemon.lines("stopped")) == 1
        assert not [line for line in daemon.lines("") if line.get("level") == "error"]


def test_a_provider_that_fails_to_close_is_told_about(tmp_path: Path) -> None:
    with running(tmp_path, "fails to close") as daemon:
        daemon.says(_STANDBY)
        daemon.signal()

        assert daemon.ended() == 0
        (told,) = daemon.lines("the daemon failed")
        assert "the cloud is gone" in json.dumps(told)
        assert len(daemon.lines("stopped")) == 1


def test_a_second_signal_ends_what_hangs(tmp_path: Path) -> None:
    """Lines that are held back do not keep it, and those before it are written."""
    flags = (*_HELD_BACK, "--log-flush-frequency=100ms")
    with running(tmp_path, "never closes", *flags) as daemon:
        daemon.says(_STANDBY)
        daemon.signal()
        daemon.says("stopping")
        time.sleep(0.3)
        assert daemon.process.poll() is None
        daemon.signal()

        assert daemon.ended() == 1


def test_lines_that_are_held_back_are_written_at_the_end(tmp_path: Path) -> None:
    flags = (*_HELD_BACK, "--log-flush-frequency=0")
    with running(tmp_path, "never opens", *flags) as daemon:
        daemon.says("opening")  # the provider's own words, past the log
        assert daemon.lines("starting") == []
        daemon.signal()

        assert daemon.ended() == 0
        daemon.says("stopped")
