"""Applies faults to copies of the tree, one at a time in each, and runs their tests there.

A fault counts as caught only if a test fails: tests that do not run at all prove nothing. So
all tests have to pass without any fault first, and those that a fault makes too slow have to
pass without it once more.
"""

from __future__ import annotations

import enum
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.mutants.rows import Mutant

ROOT = Path(__file__).resolve().parents[2]

LIMIT_S = 20.0
"""How long one test may take."""

_LEFT_OUT = (".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")
_PYTEST = (
    *("-m", "pytest", "-q", "--tb=short", f"--timeout={LIMIT_S:g}"),
    *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"),
)
_TIMED_OUT = "from pytest-timeout"
_LINES_SHOWN = 40


class Outcome(enum.Enum):
    """What became of a fault."""

    CAUGHT = "caught"
    TOO_SLOW = "caught, by taking too long"
    SURVIVED = "SURVIVED"
    UNTRIED = "NOT TRIED"
    """Its tests did not run, or fail without it too."""

    @property
    def is_good(self) -> bool:
        """Whether a test caught it."""
        return self in (Outcome.CAUGHT, Outcome.TOO_SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one fault, and what pytest said."""

    mutant: Mutant
    outcome: Outcome
    said: str
    took_s: float


class Copy:
    """A copy of the tree, whose `ccm` and `providers` are those that its tests import.

    Raises:
        RuntimeError: others would be imported.
    """

    def __init__(self, tree: Path, place: Path) -> None:
        shutil.copytree(tree, place, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self._place = place
        self._log = place.with_suffix(".log")
        self._tried = 0
        # What is installed may be the tree itself; child processes look here first too.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self._environ = {
            **kept,
            "PYTHONPATH": str(place),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # loading those unused takes longer than a test
        }
        self._prove_imports()

    def run(self, tests: Sequence[str], *options: str) -> tuple[int, str]:
        """Exit status and output of pytest; a negative status: it was ended by force."""
        limit_s = LIMIT_S * (len(tests) + 2)
        return self._python(*_PYTEST, *options, *tests, limit_s=limit_s)

    def attempt(self, mutant: Mutant) -> Verdict:
        """Try one fault."""
        started = time.monotonic()
        with self._changed(mutant):
            status, said = self.run(mutant.tests, "-x")
        late = status < 0 or (status == 1 and _TIMED_OUT in said)
        if late:
            again, words = self.run(mutant.tests)
            outcome = Outcome.UNTRIED if again else Outcome.TOO_SLOW
            said += words
        else:
            outcome = {0: Outcome.SURVIVED, 1: Outcome.CAUGHT}.get(status, Outcome.UNTRIED)
        return Verdict(mutant=mutant, outcome=outcome, said=said, took_s=time.monotonic() - started)

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        file = self._place / mutant.file
        kept = self._place.with_suffix(".kept")
        shutil.copy2(file, kept)
        file.write_text(mutant.applied(file.read_text()))
        # Python tells compiled code by size and whole seconds, which another fault may share.
        self._tried += 1
        os.utime(file, (self._tried, self._tried))
        try:
            yield
        finally:
            kept.replace(file)

    def _prove_imports(self) -> None:
        found = "import ccm, providers; print(*ccm.__path__, *providers.__path__)"
        _, said = self._python("-c", found, limit_s=LIMIT_S)
        if said.split() != [str(self._place / name) for name in ("ccm", "providers")]:
            raise RuntimeError(f"tests would not import the copy in {self._place}: {said}")

    def _python(self, *words: str, limit_s: float) -> tuple[int, str]:
        with self._log.open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self._place,
                env=self._environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
            log.seek(0)
            return status, log.read()


def run_all(mutants: Sequence[Mutant], *, tree: Path = ROOT, workers: int | None = None) -> int:
    """Try faults and say what became of each; 0 if all were caught, else 1."""
    started = time.monotonic()
    count = min(workers or os.cpu_count() or 1, len(mutants))
    with TemporaryDirectory(prefix="ccm-mutants-") as folder, ThreadPoolExecutor(count) as pool:
        copies = [Copy(tree, Path(folder).resolve() / str(number)) for number in range(count)]
        if not _are_green(mutants, copies, pool):
            return 1
        idle: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            idle.put(copy)

        def attempt(mutant: Mutant) -> Verdict:
            copy = idle.get()
            try:
                return copy.attempt(mutant)
            finally:
                idle.put(copy)

        outcomes: list[Outcome] = []
        for verdict in pool.map(attempt, mutants):
            outcomes.append(verdict.outcome)
            _report(verdict, f"{len(outcomes)}/{len(mutants)}")
    counts = ", ".join(
        f"{outcomes.count(outcome)} {outcome.value}" for outcome in Outcome if outcome in outcomes
    )
    print(f"{len(outcomes)} faults: {counts}; {time.monotonic() - started:.0f} s", flush=True)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _are_green(mutants: Sequence[Mutant], copies: Sequence[Copy], pool: ThreadPoolExecutor) -> bool:
    """Whether all tests pass without any fault; a share of them in each copy."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(tests)} tests without any fault ...", flush=True)
    share = -(-len(tests) // len(copies))
    shares = [tests[start : start + share] for start in range(0, len(tests), share)]
    green = True
    for status, said in pool.map(Copy.run, copies, shares):
        if status:
            green = False
            print(f"they do not pass (status {status}):\n{_tail(said)}", flush=True)
    return green


def _report(verdict: Verdict, number: str) -> None:
    mutant = verdict.mutant
    print(f"{number:>8} {verdict.took_s:5.1f} s  {mutant.id}: {verdict.outcome.value}", flush=True)
    if not verdict.outcome.is_good:
        print(f"  {mutant.fault}\n  {mutant.file}", *mutant.tests, sep="\n  ", flush=True)
    if verdict.outcome is Outcome.UNTRIED:
        print(_tail(verdict.said), flush=True)


def _tail(said: str) -> str:
    return "\n".join(said.splitlines()[-_LINES_SHOWN:])
