"""Daemons that start at once: forked from a process that has imported everything.

`python -m tests.scenario.crash_nursery` reads orders, one line of JSON each, forks a daemon
for each, and answers with its process ID. A start then costs no second of importing, of
which hundreds of starts would be made up. The daemons are processes like all others:
nothing of them runs before the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from ccm.sandbox import process
from tests.scenario.harness import Daemon

_ROOT = Path(__file__).parents[2]


class Forked(process.Child):
    """A forked daemon. Its exit status is not known, only that it ended."""

    def __init__(self, name: str, pid: int, log: Path) -> None:
        self.name = name
        self.log = log
        self._pid = pid

    @property
    def pid(self) -> int:
        """Process ID, also after the end."""
        return self._pid

    @property
    def exit_code(self) -> int | None:
        """-1 after the end; None while it runs."""
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return -1
        return None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


class ForkedDaemon(Daemon):
    """The same with what it logged."""

    def __init__(self, name: str, child: Forked) -> None:
        self.name = name
        self._child = child


class Nursery:
    """Use as a context; at its end all its daemons end."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "always", "-m", "tests.scenario.crash_nursery"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Leaving closes the pipes; the nursery ends then, and its children with it.
        with self._process:
            pass

    def fork(self, name: str, argv: Sequence[str], log: Path) -> ForkedDaemon:
        """Start a daemon with these arguments; its output is appended to `log`."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(json.dumps({"argv": list(argv), "log": str(log)}) + "\n")
        orders.flush()
        return ForkedDaemon(name, Forked(name, int(answers.readline()), log))


def _serve(orders: IO[str], answers: IO[str]) -> None:
    # Children are not waited for: the system forgets them at their end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    dies_with_us = process._dies_with(os.getpid())
    for line in orders:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            if dies_with_us is not None:
                dies_with_us()
            _be_a_daemon(order)
        answers.write(f"{pid}\n")
        answers.flush()


def _be_a_daemon(order: Mapping[str, Any]) -> NoReturn:
    """What a fork does until its end; whatever happens, it must not go on as a nursery."""
    from ccm.app import main

    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        main.main(order["argv"])
    except BaseException:  # noqa: BLE001 - shown, and found by whoever reads the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    for name in ("ccm.app.main", "providers.sim"):
        importlib.import_module(name)
    _serve(sys.stdin, sys.stdout)
