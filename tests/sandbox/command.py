"""`kube-ccm sandbox` as a process: its output, and its leftovers."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests import forkserver

DEADLINE_S = 150.0


@contextlib.contextmanager
def started(home: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[Sandbox]:
    sandbox = Sandbox(home, environment, arguments)
    try:
        yield sandbox
    finally:
        sandbox.process.kill()
        sandbox.process.communicate()


def guided(guide: Path) -> Sequence[Sequence[str]]:
    """The words of each command by which a provider's guide shows it without an account."""
    text = guide.read_text().partition("## Without an account")[2]
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", "")
    return [shlex.split(line.rstrip(" &")) for line in blocks.strip().splitlines()]


def plain(home: Path) -> dict[str, str]:
    """Our environment, for a sandbox with the API server that is built in."""
    found = {**os.environ, "TMPDIR": str(home)}
    found.pop("KUBEBUILDER_ASSETS", None)
    return found


@contextlib.contextmanager
def fake(home: Path, *words: str) -> Iterator[None]:
    """A fake of a cloud as a program, on a port of its own, until it is left."""
    every = [sys.executable, *words]
    every[every.index("--port") + 1] = "0"
    child = forkserver.Popen(every, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("{")
        yield
    finally:
        child.terminate()
        child.communicate(timeout=DEADLINE_S)


def carried_out(home: Path, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the last line of a sandbox that ended well.

    Warnings are for tests with the machine to themselves: beside others a call may time out.
    """
    assert words[:2] == ["kube-ccm", "sandbox"]
    with started(home, environ, *words[2:]) as sandbox:
        sandbox.read_to_the_end()
    assert sandbox.process.returncode == 0, sandbox.lines
    assert not any("still exists" in line for line in sandbox.lines)
    return sandbox.lines[-1]


class Sandbox:
    """The running command."""

    def __init__(
        self, home: Path, environment: Mapping[str, str], arguments: tuple[str, ...]
    ) -> None:
        self.lines: list[str] = []
        self.process = forkserver.Popen(
            [sys.executable, "-m", "ccm.cli", "sandbox", *arguments],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, start: str) -> str:
        """The next line that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start):
                return self.lines[-1]
        raise AssertionError(f"no line starts with {start!r}: {self.lines}")

    def read_until_seen(self, text: str) -> str:
        """The next line that contains it."""
        while text not in (line := self.read_until("")):
            pass
        return line

    def end(self, number: signal.Signals) -> float:
        """Send a signal and read to the end; the seconds it took."""
        before = time.monotonic()
        self.process.send_signal(number)
        self.read_to_the_end()
        return time.monotonic() - before

    def read_to_the_end(self) -> None:
        said, _ = self.process.communicate(timeout=DEADLINE_S)
        self.lines += said.splitlines()


def processes_of(home: Path) -> list[str]:
    """Command lines of living processes that inherited the sandbox's environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={home}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
    return found


def leftovers(home: Path) -> list[str]:
    return [str(path) for path in home.iterdir()] + processes_of(home)


def tokens_in(home: Path) -> set[str]:
    """Return the tokens of the sandbox's clients."""
    files = [*home.rglob("kubeconfig"), *home.rglob("cloud.yaml")]
    return {found for file in files for found in re.findall(r'token"?: "?(\w+)', file.read_text())}


def hints(sandbox: Sandbox) -> list[str]:
    """The lines for another terminal."""
    sandbox.read_until("Ctrl-C stops everything")
    sandbox.read_until("    --cloud-config=")
    first = next(n for n, line in enumerate(sandbox.lines) if line.startswith("Ctrl-C"))
    return [line for line in sandbox.lines[first:] if line.startswith("  ")]


def typed(lines: Sequence[str], home: Path, environment: Mapping[str, str]) -> str:
    """Run these lines in a shell and return the output. Any failure fails the test."""
    told = subprocess.run(
        ["bash", "-eu"],
        input="\n".join(lines),
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout
