"""The command: exit codes, stop signals at any moment, the limit of open files."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import daemon, main, options, shutdown
from ccm.app.provider import Misconfigured
from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox.realserver import write_kubeconfig
from tests import forkserver
from tests.unit.app import moody
from tests.waiting import DEADLINE_S, eventually_blocking

ARGV = ["--cloud-provider=sim", "--master=http://127.0.0.1:1"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the forced exit: it would end the test process."""
    monkeypatch.setattr(shutdown, "ABANDONED_LIMIT_S", 60.0)


def ends_with(error: BaseException) -> Callable[..., object]:
    async def run(*_: object) -> int:
        await asyncio.sleep(0)
        raise error

    return run


@pytest.mark.row("daemon-exit-03")
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a group"])
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ZeroDivisionError("by us"), 255, ("the daemon failed unexpectedly", "by us", "Traceback")),
        (Misconfigured("x is wrong"), 1, ("cloud-controller-manager: x is wrong\n",)),
    ],
    ids=["a defect", "what a person has to correct"],
)
def test_exit_code_and_message_depend_on_the_error(
    error: Exception,
    code: int,
    words: tuple[str, ...],
    together: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A defect is logged with its traceback, a configuration error as one message."""
    fault = ExceptionGroup("many", [error]) if together else error
    monkeypatch.setattr(daemon, "run", ends_with(fault))

    assert main.main(ARGV) == code

    said = capfd.readouterr().err
    assert all(word in said for word in words)
    assert code == 255 or said == words[0]


def test_deprecated_flag_is_logged_once_as_a_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "run", ends_with(Misconfigured("x is wrong")))

    main.main([*ARGV, "--own-nodes=a", "--own-nodes=b"])

    (warning,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("W"))
    assert "--own-nodes is deprecated: use --node-selector" in warning


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("kubeconfig", "{}", "current-context: is not set"),
        ("cloud-config", "url: nowhere", "url is 'nowhere'"),
        ("config", "{}", "apiVersion is missing"),
    ],
)
def test_unusable_file_ends_the_daemon_with_one_message(
    name: str, content: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", url="http://127.0.0.1:1", token="t")
    (tmp_path / name).write_text(content)
    files = {"kubeconfig": tmp_path / "kubeconfig", name: tmp_path / name}

    argv = [f"--{flag}={file}" for flag, file in files.items()]
    assert main.main(["--cloud-provider=sim", "--secure-port=0", *argv]) == 1

    said = capfd.readouterr().err
    assert said.count("\ncloud-controller-manager: ") + said.startswith("cloud-controller-m") == 1
    assert words in said
    assert "Traceback" not in said


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


@pytest.mark.parametrize("number", shutdown.SIGNALS)
def test_a_signal_during_an_import_ends_the_process(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "is imported slowly") as daemon:
        daemon.says("importing")
        daemon.signal(number)

        assert daemon.ended() == 0
    assert "Traceback" not in daemon.log.read_text()


@pytest.mark.parametrize("number", shutdown.SIGNALS)
@pytest.mark.parametrize(
    ("mood", "moment", "flag"),
    [
        pytest.param("never opens", "opening", "true", id="opening"),
        pytest.param("refuses", "provider cannot be opened", "true", id="between-attempts"),
        pytest.param("well", _STANDBY, "true", id="acquiring"),
        pytest.param("well", _LEADING, "false", id="leading-without-election"),
    ],
)
def test_stop_signal_shuts_down_cleanly(
    tmp_path: Path, mood: str, moment: str, flag: str, number: signal.Signals
) -> None:
    with running(tmp_path, mood, f"--leader-elect={flag}") as daemon:
        daemon.says(moment)
        daemon.signal(number)

        assert daemon.ended() == 0
        assert len(daemon.lines("stopped")) == 1
        assert not [line for line in daemon.lines("") if line.get("level") == "error"]


def test_provider_that_fails_to_close_is_logged(tmp_path: Path) -> None:
    with running(tmp_path, "fails to close") as daemon:
        daemon.says(_STANDBY)
        daemon.signal()

        assert daemon.ended() == 0
        (told,) = daemon.lines("the daemon failed")
        assert "the cloud is gone" in json.dumps(told)
        assert len(daemon.lines("stopped")) == 1


def test_second_signal_ends_a_hanging_shutdown(tmp_path: Path) -> None:
    """Buffered log lines do not delay the exit."""
    flags = (*_HELD_BACK, "--log-flush-frequency=100ms")
    with running(tmp_path, "never closes", *flags) as daemon:
        daemon.says(_STANDBY)
        daemon.signal()
        daemon.says("stopping")
        time.sleep(0.3)
        assert daemon.process.poll() is None
        daemon.signal()

        assert daemon.ended() == 1


def test_buffered_log_lines_are_flushed_on_exit(tmp_path: Path) -> None:
    flags = (*_HELD_BACK, "--log-flush-frequency=0")
    with running(tmp_path, "never opens", *flags) as daemon:
        daemon.says("opening")  # the provider's own words, past the log
        assert daemon.lines("starting") == []
        daemon.signal()

        assert daemon.ended() == 0
        daemon.says("stopped")


ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, main.MAX_OPEN_FILES),
        (1024, ENDLESS, main.MAX_OPEN_FILES),
        (4096, 4096, None),
        (1 << 20, 1 << 20, None),
        (ENDLESS, ENDLESS, None),
    ],
)
def test_open_file_limit_is_raised_to_the_hard_limit_or_the_maximum(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int | None
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))

    main.raise_open_file_limit()

    assert given == ([] if expected is None else [(expected, hard)])


class Failing(Mock):
    """A daemon whose work fails."""

    async def run(self) -> int:
        await asyncio.sleep(0)
        raise ValueError("a defect")


@pytest.mark.parametrize("calls", [0, 1])
async def test_error_is_logged_before_a_forced_exit_with_abandoned_calls(calls: int) -> None:
    """A hanging thread would prevent a later log line; the exit code reports the defect too."""
    failing = Failing(abandoned_calls=calls)
    served = spawn(asyncio.Event().wait(), name="served")
    with capture_logs() as lines, pytest.raises(ValueError, match="a defect"):
        await daemon._run_until_stopped(failing, served, options.parse([]))  # type: ignore[arg-type]
    await cancel_and_join(served)

    said = [line["exc_info"] for line in lines if line["log_level"] == "error"]
    assert [str(error) for error in said] == ["a defect"] * calls
    failing.finish.assert_called_once_with(shutdown.EXIT_DEFECT)
