"""Virtual time: an event loop that jumps to its next timer as soon as nothing else can run.

A program full of waits then runs to its end without waiting, `asyncio.timeout` included,
and `ccm.base.clock` tells the loop's time while it runs. Time never moves while anything
is ready, so what happens at one moment is complete before the next. Work in the loop's
threads holds time; sockets and processes do not: a test with real input and output keeps
the real loop.

With pytest-asyncio a project's `conftest.py` offers the loop by its hook
`pytest_asyncio_loop_factories`; anything else may use
`asyncio.Runner(loop_factory=VirtualTimeLoop)`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import TypeVar, TypeVarTuple, Unpack

from ccm.base import clock

T = TypeVar("T")
Args = TypeVarTuple("Args")

START = datetime(2026, 1, 1, tzinfo=UTC)
"""What a virtual clock on the wall shows when its loop is made."""

START_S = 1000.0
"""A loop's time when it is made; not zero, so that zero may stand for 'never'."""

_SETTLE_LIMIT = 100_000
_JUMP_LIMIT = 200_000


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when all of its tasks wait."""

    def __init__(self) -> None:
        self.virtual_s = START_S
        self.start = START
        self.in_threads = 0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds, from `START_S` on."""
        return self.virtual_s

    def now(self) -> datetime:
        """Virtual time on the wall."""
        return self.start + timedelta(seconds=self.virtual_s - START_S)

    def run_forever(self) -> None:
        """Run, with the project's clocks showing this loop's time."""
        with clock.replaced(self.now, self.time):
            super().run_forever()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        """Run a function in a thread; time stands still until it has ended."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: object) -> None:
        self.in_threads -= 1


class _Jumping(selectors.DefaultSelector):
    """A selector that lets virtual time pass where another would wait."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._jumps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self._loop.in_threads):
            # Only another thread can wake the loop, so this waits for real; a test in which
            # none does is ended by its own deadline.
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump()
        return ready

    def _jump(self) -> None:
        self._jumps += 1
        if self._jumps > _JUMP_LIMIT:
            self._jumps = 0  # the tasks still have to be ended
            raise RuntimeError(
                f"{_JUMP_LIMIT} timers in one loop: does a test await what never comes, "
                "while something ticks?"
            )
        # The timer's own moment and not "now plus timeout", which rounding makes miss it.
        scheduled = self._loop._scheduled  # type: ignore[attr-defined]  # noqa: SLF001
        self._loop.virtual_s = max(self._loop.virtual_s, scheduled[0].when())


def elapsed_s() -> float:
    """Virtual seconds since the running loop was made."""
    return round(_loop().virtual_s - START_S, 6)


async def advance(seconds: float) -> None:
    """Let that much time pass; return when everything it set off has settled."""
    target = _loop().virtual_s + seconds
    await settle()
    while _loop().virtual_s < target:  # noqa: ASYNC110 - time itself is awaited, no condition
        await asyncio.sleep(target - _loop().virtual_s)
    await settle()


def jump(seconds: float) -> None:
    """Move time at once and wake nobody in between, as a suspended machine would."""
    _loop().virtual_s += seconds


async def settle() -> None:
    """Return when no other callback of the event loop is ready to run.

    Raises:
        RuntimeError: something keeps the loop busy for ever.
    """
    loop = asyncio.get_running_loop()
    for _ in range(_SETTLE_LIMIT):
        await asyncio.sleep(0)
        if not _busy(loop):
            return
    raise RuntimeError("the event loop does not come to rest: does a task spin?")


def _busy(loop: asyncio.AbstractEventLoop) -> bool:
    # The only view of it there is.
    return bool(loop._ready)  # type: ignore[attr-defined]  # noqa: SLF001


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("this loop runs in real time; a `VirtualTimeLoop` is needed")
    return loop


class FakeClock:
    """A `Clock` in virtual time: its own on a loop that runs in real time, else the loop's.

    Args:
        start: the first wall-clock time, timezone-aware.
        auto: jump to the next sleeper whenever the event loop has nothing else to run.
    """

    def __new__(cls, **_: object) -> FakeClock:
        """The clock that fits the running loop."""
        running = asyncio._get_running_loop()  # noqa: SLF001 - a plain test has none
        virtual = isinstance(running, VirtualTimeLoop)
        return super().__new__(_LoopClock if virtual else cls)

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
            asyncio.get_running_loop().call_soon(self._probe)

    def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        if _busy(loop):
            loop.call_soon(self._probe)
            return
        due = self._next_due()
        if due is None:
            self._probing = False
            return
        self._wake(due)
        loop.call_soon(self._probe)


class _LoopClock(FakeClock):
    """The running loop's time."""

    def now(self) -> datetime:
        return self._start + timedelta(seconds=elapsed_s())

    def monotonic(self) -> float:
        return _loop().virtual_s

    @property
    def elapsed_s(self) -> float:
        return elapsed_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def advance(self, seconds: float) -> None:
        await advance(seconds)

    def jump(self, seconds: float) -> None:
        jump(seconds)
