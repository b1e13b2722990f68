"""Processes under measurement: CPU, memory and their JSON logs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources that a process has used so far."""

    cpu_s: float
    rss_mib: float
    peak_mib: float


def usage(pid: int) -> Usage:
    """CPU seconds, resident size now and at its highest (MiB)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        rss_mib=_kib(status, "VmRSS") / 1024,
        peak_mib=_kib(status, "VmHWM") / 1024,
    )


def _kib(status: str, name: str) -> int:
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError("the process under measurement has ended")


class Daemon:
    """The daemon as a child process with a JSON log."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self._file = log.open("wb")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self._file, stderr=self._file, env=dict(env)
        )
        self.pid = self._process.pid

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Log lines with this message."""
        found = []
        for line in self.log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("msg") == message:
                    found.append(entry)
        return found

    def wait_for(self, message: str, count: int = 1, timeout_s: float = 60) -> None:
        """Block until the log has that many such lines."""
        deadline = time.monotonic() + timeout_s
        # Only counted: parsing a long log again and again would take the daemon's CPU.
        mark = f'"msg":{json.dumps(message)}'.encode()
        while self.log.read_bytes().count(mark) < count:
            if time.monotonic() > deadline or self._process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{message!r} x {count} not logged in {timeout_s} s:\n{tail}")
            time.sleep(0.1)

    def stop(self) -> dict[str, Any]:
        """Send SIGTERM; return the figures that the process prints when it stops."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._file.close()
        return self.lines("stopped")[-1]


@contextlib.contextmanager
def daemon(
    log: Path,
    *flags: str,
    in_cluster: Path | None = None,
    ticks: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Daemon]:
    """Run the daemon.

    Args:
        log: file for its output.
        flags: of its command line.
        in_cluster: a folder that it reads as its service account.
        ticks: a file into which it writes when its event loop stood still, see `ticking`.
        env: more for its environment.
    """
    runner = [sys.executable, "-m", "ccm"]
    if in_cluster is not None:
        runner = [sys.executable, "-m", "tests.benchmarks.incluster", str(in_cluster)]
    if ticks is not None:
        runner = [sys.executable, "-m", "tests.benchmarks.ticking", str(ticks)]
    running = Daemon([*runner, "--logging-format=json", *flags], log, {**os.environ, **(env or {})})
    try:
        yield running
    finally:
        running._process.kill()
        running._process.wait()
