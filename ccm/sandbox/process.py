"""Child processes that log to a file and never outlive this process.

A child uses `subprocess.Popen` and polling instead of asyncio's processes. One event loop can then
start the child and another can stop it, as servers shared by many tests need. Output goes to a
file, so that no full pipe can block the child.

A restarted server needs its old port. Servers therefore get ports below 32768: Linux may use higher
ports for outgoing connections while a server is down. A server listens only some time after its
port was picked. Each process therefore picks ports in sequence from a random start, so that it does
not pick a port again before the server listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.02
_KILL_DEADLINE_S = 30.0
_TAIL_BYTES = 4000

LOOPBACK = "127.0.0.1"
_PORTS = range(18000, 32000)
_ATTEMPTS = 200


@functools.cache  # at the first use, so that each forked process has its own sequence
def _steps() -> Iterator[int]:
    return itertools.count(random.SystemRandom().randrange(len(_PORTS)))


def pick_port() -> int:
    """Return a loopback TCP port on which nothing listens.

    Raises:
        OSError: no free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = _PORTS[next(_steps()) % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return port
    raise OSError(f"no free loopback port between {_PORTS[0]} and {_PORTS[-1]}")


class Child:
    """A child process with its log file; started at once.

    Args:
        argv: the program (absolute path) and its arguments.
        log: file to which standard output and error are appended.
        env: the whole environment of the child; None = that of this process.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = Path(argv[0]).name
        self.log = log
        with log.open("ab") as sink:
            # Its own session, so that Ctrl-C in the terminal signals only us; we then
            # stop our children in the right order.
            self._process = subprocess.Popen(  # noqa: S603 - argv is built by our own code
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 - one resolved C call
            )

    @property
    def pid(self) -> int:
        """Process ID, also after the process has ended."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    def log_tail(self) -> str:
        """Return the last 4000 bytes of the log."""
        with self.log.open("rb") as source:
            source.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return source.read().decode(errors="replace")

    async def stop(self, *, grace_s: float) -> int:
        """Send SIGTERM, then SIGKILL after `grace_s` seconds; return the exit status."""
        self._signal(signal.SIGTERM)
        await self._wait_for_exit(within_s=grace_s)
        return await self.kill()

    async def kill(self) -> int:
        """Send SIGKILL, wait for the exit and return the exit status.

        Raises:
            TimeoutError: the process still runs 30 s later.
        """
        self._signal(signal.SIGKILL)
        code = await self._wait_for_exit(within_s=_KILL_DEADLINE_S)
        if code is None:
            raise TimeoutError(f"{self.name} (process {self.pid}) cannot be killed")
        return code

    async def _wait_for_exit(self, *, within_s: float) -> int | None:
        """Return the exit status; None if the process still runs after `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while True:
            code = self.exit_code
            if code is not None or time.monotonic() > deadline:
                return code
            await asyncio.sleep(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)


def _dies_with(parent: int) -> Callable[[], None] | None:
    """Return a function that makes a forked child die with its parent; None except on Linux.

    All lookups happen here, before the fork: the child of a process with threads must not import or
    allocate much.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
