"""Virtual time: an event loop that jumps to its next timer as soon as nothing else can run.

A program full of waits then runs to its end without waiting, `asyncio.timeout` included,
and `ccm.base.clock` tells the loop's time while it runs. Time never moves while anything
is ready, so what happens at one moment is complete before the next. Work in the loop's
threads holds time; sockets and processes do not: a test with real input and output keeps
the real loop.

With pytest-asyncio a provider's `conftest.py` gives its tests the loop:

    def pytest_asyncio_loop_factories(item):
        real = item.get_closest_marker("sockets")
        return {"loop": asyncio.new_event_loop if real else VirtualTimeLoop}

Elsewhere there is `asyncio.Runner(loop_factory=VirtualTimeLoop)`.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple, Unpack

from ccm.base import clock

T = TypeVar("T")
Args = TypeVarTuple("Args")

START = datetime(2026, 1, 1, tzinfo=UTC)
"""What a virtual clock on the wall shows when its loop is made."""

START_S = 1000.0
"""A loop's time when it is made; not zero, so that zero may stand for 'never'."""

_SETTLE_LIMIT = 100_000
_JUMP_LIMIT = 200_000

_RESOLUTION_S = 2e-9
"""Least time until a timer fires. asyncio fires timers up to 1 ns early: one that its callback sets
again at once would never let time move."""


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own, which the project's clocks show while it runs.

    Attributes:
        held: what waits for the world: functions in threads, for one; no time is skipped then.
        only_here: other threads keep the machine's time.
    """

    held = 0
    only_here = False

    def now(self) -> datetime:
        """Return the time on the wall."""
        raise NotImplementedError

    def hold(self, more: int) -> None:
        """Count what waits for the world."""
        self.held += more

    def run_forever(self) -> None:
        """Run, with the project's clocks showing this loop's time."""
        with clock.replaced(self.now, self.time, here=self.only_here):
            super().run_forever()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        """Run a function in a thread, which holds the loop until it has ended."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self.hold(1)
        future.add_done_callback(lambda _: self.hold(-1))
        return future


class VirtualTimeLoop(SkippingLoop):
    """An event loop whose time passes only when all of its tasks wait."""

    def __init__(self) -> None:
        self.virtual_s = START_S
        self.start = START
        self.moments: list[float] = []
        """Moments of timers, a heap; those of cancelled timers are among them."""
        self.settling: list[asyncio.Future[None]] = []
        """Futures that are done when no callback is ready."""
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds, from `START_S` on."""
        return self.virtual_s

    def now(self) -> datetime:
        """Virtual time on the wall."""
        return self.start + timedelta(seconds=self.virtual_s - START_S)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, and remember its exact moment."""
        if when > self.virtual_s:
            least = max(_RESOLUTION_S, 2 * math.ulp(self.virtual_s))
            when = max(when, self.virtual_s + least)
            heapq.heappush(self.moments, when)
        return super().call_at(when, callback, *args, context=context)


class _Jumping(selectors.DefaultSelector):
    """A selector that lets virtual time pass where another would wait."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._jumps = 0
        self._spins = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.settling and (ready := self._settle(timeout)) is not None:
            return ready
        if timeout is None or (timeout > 0 and self._loop.held):
            # Only another thread can wake the loop, so this waits for real; a test in which
            # none does is ended by its own deadline.
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump(timeout)
        return ready

    def _settle(self, timeout: float | None) -> list[Any] | None:
        """End the waits for a loop at rest; None: it is not at rest."""
        waits = self._loop.settling
        if timeout is not None and timeout <= 0:
            self._spins += 1
            if self._spins <= _SETTLE_LIMIT:
                return None
            error = RuntimeError("the event loop does not come to rest: does a task spin?")
            for wait in (one for one in waits if not one.done()):
                wait.set_exception(error)
        else:
            ready = super().select(0)
            if ready:
                return ready
            for wait in (one for one in waits if not one.done()):
                wait.set_result(None)
        waits.clear()
        self._spins = 0
        return super().select(0)

    def _jump(self, timeout: float) -> None:
        self._jumps += 1
        if self._jumps > _JUMP_LIMIT:
            self._jumps = 0  # the tasks still have to be ended
            raise RuntimeError(
                f"{_JUMP_LIMIT} timers in one loop: does a test await what never comes, "
                "while something ticks?"
            )
        # The timer's own moment and not "now plus timeout", which rounding makes miss it.
        reached = self._loop.virtual_s + timeout
        slack, moments = 4 * math.ulp(reached), self._loop.moments
        while moments and moments[0] < reached - slack:
            heapq.heappop(moments)  # passed, or cancelled
        if moments and moments[0] <= reached + slack:
            reached = heapq.heappop(moments)
        if reached + 1e-9 == reached:
            # Beside such a number asyncio's resolution is lost, and it fires what lies before now.
            reached = math.nextafter(reached, math.inf)
        self._loop.virtual_s = max(self._loop.virtual_s, reached)


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
    wait = _loop().create_future()
    _loop().settling.append(wait)
    await wait


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("this loop runs in real time; a `VirtualTimeLoop` is needed")
    return loop
