"""A clock that tests own: time stands still until it is told to move.

Two ways to use it. With `advance` the test moves time by hand, and every sleeper that
falls due on the way is woken at exactly its moment, in order. With `auto=True` the clock
jumps to the next sleeper as soon as nothing else can run, so that a program full of
waits runs to its end without waiting. Automatic jumps know nothing of sockets, threads
or processes: do not mix them with real input and output.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a fake clock starts unless told otherwise."""

_SETTLE_LIMIT = 100_000
_ROUNDS_WITHOUT_VIEW = 50


class FakeClock:
    """A `Clock` in virtual time.

    Args:
        start: the first wall-clock time, timezone-aware.
        auto: jump to the next sleeper whenever the event loop has nothing else to run.
    """

    def __init__(self, *, start: datetime = START, auto: bool = False) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._auto = auto
        self._probing = False
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Wall-clock time: the start plus what has passed."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Seconds since the clock was made, plus a thousand so that zero means nothing."""
        return 1000.0 + self._elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Virtual seconds since the clock was made."""
        return self._elapsed_s

    @property
    def sleepers(self) -> int:
        """How many coroutines wait for this clock now."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time; zero or less yields to the event loop once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), future))
        if self._auto:
            self._probe_soon()
        await future

    async def advance(self, seconds: float) -> None:
        """Let that much time pass; return when everything it set off has settled."""
        target = self._elapsed_s + seconds
        await settle()
        while (due := self._next_due()) is not None and due <= target:
            self._wake(due)
            await settle()
        self._elapsed_s = target

    def jump(self, seconds: float) -> None:
        """Move time at once and wake nobody in between, as a suspended machine would."""
        self._elapsed_s += seconds

    def _next_due(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self, due: float) -> None:
        self._elapsed_s = max(self._elapsed_s, due)
        _, _, future = heapq.heappop(self._sleepers)
        future.set_result(None)

    def _probe_soon(self) -> None:
        if not self._probing:
            self._probing = True
            asyncio.get_running_loop().call_soon(self._probe, 0)

    def _probe(self, rounds: int) -> None:
        loop = asyncio.get_running_loop()
        if _busy(loop, rounds):
            loop.call_soon(self._probe, rounds + 1)
            return
        due = self._next_due()
        if due is None:
            self._probing = False
            return
        self._wake(due)
        loop.call_soon(self._probe, 0)


async def settle() -> None:
    """Return when no other callback of the event loop is ready to run.

    Raises:
        RuntimeError: something keeps the loop busy for ever.
    """
    loop = asyncio.get_running_loop()
    for rounds in range(_SETTLE_LIMIT):
        await asyncio.sleep(0)
        if not _busy(loop, rounds):
            return
    raise RuntimeError("the event loop does not come to rest: does a task spin?")


def _busy(loop: asyncio.AbstractEventLoop, rounds: int) -> bool:
    """Whether callbacks wait; a loop that does not show them gets a number of rounds."""
    ready = getattr(loop, "_ready", None)
    return rounds < _ROUNDS_WITHOUT_VIEW if ready is None else bool(ready)
