"""Virtual time: an event loop that jumps to its next timer as soon as nothing else can run.

A program full of waits, including `asyncio.timeout`, then finishes without waiting in real time.
`ccm.base.clock` shows the loop's time while the loop runs. Time does not move while a callback is
ready, so all work of one moment completes before the next. Virtual time stands still while
`run_in_executor` or `ccm.cloud.blocking` runs a function in a thread, but not while a task waits
for a socket or process. A test with real input and output must use the real loop.

With pytest-asyncio, a hook in a provider's `conftest.py` selects the loop:

    def pytest_asyncio_loop_factories(item):
        real = item.get_closest_marker("sockets")
        return {"loop": asyncio.new_event_loop if real else VirtualTimeLoop}

Without pytest-asyncio, use `asyncio.Runner(loop_factory=VirtualTimeLoop)`.
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
"""Wall-clock time of a new virtual loop."""

START_S = 1000.0
"""Monotonic time of a new loop, in seconds. Not zero, so that zero can stand for "never"."""

_SETTLE_LIMIT = 100_000
"""Number of loop iterations with ready callbacks after which `settle` raises RuntimeError."""

_JUMP_LIMIT = 200_000
"""Number of jumps to timers after which the loop raises RuntimeError, because a periodic timer
probably runs without end.
"""

_RESOLUTION_S = 2e-9
"""Minimum delay of a timer. asyncio fires timers up to 1 ns early: a periodic timer with a shorter
interval would fire without end at one virtual time.
"""


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with its own time, which `ccm.base.clock` returns while the loop runs.

    Attributes:
        external_operations: number of external operations in progress, such as functions in
            threads. While it is not zero, no time is skipped.
        is_thread_local: whether other threads keep the real time.
    """

    external_operations = 0
    is_thread_local = False

    def now(self) -> datetime:
        """Return the wall-clock time of the loop."""
        raise NotImplementedError

    def add_external_operations(self, count: int) -> None:
        """Add `count` to the number of external operations; negative when operations end."""
        self.external_operations += count

    def run_forever(self) -> None:
        """Run the loop; meanwhile `ccm.base.clock` returns the loop's time."""
        with clock.replaced(self.now, self.time, this_thread_only=self.is_thread_local):
            super().run_forever()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        """Run a function in a thread; virtual time stops until the function returns."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self.add_external_operations(1)
        future.add_done_callback(lambda _: self.add_external_operations(-1))
        return future


class VirtualTimeLoop(SkippingLoop):
    """An event loop whose time moves only while all of its tasks wait."""

    def __init__(self) -> None:
        self.virtual_s = START_S
        self.start = START
        self.timer_deadlines: list[float] = []
        """Heap of timer deadlines. Deadlines of cancelled timers stay in it."""
        self.settle_waiters: list[asyncio.Future[None]] = []
        """Futures that complete when no callback is ready."""
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Return the virtual seconds; the first value is `START_S`."""
        return self.virtual_s

    def now(self) -> datetime:
        """Return the virtual wall-clock time."""
        return self.start + timedelta(seconds=self.virtual_s - START_S)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer and record its exact deadline."""
        if when > self.virtual_s:
            least = max(_RESOLUTION_S, 2 * math.ulp(self.virtual_s))
            when = max(when, self.virtual_s + least)
            heapq.heappush(self.timer_deadlines, when)
        return super().call_at(when, callback, *args, context=context)


class _Jumping(selectors.DefaultSelector):
    """A selector that advances virtual time instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._jumps = 0
        self._spins = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.settle_waiters and (ready := self._settle(timeout)) is not None:
            return ready
        if timeout is None or (timeout > 0 and self._loop.external_operations):
            # Only another thread can wake the loop, so wait in real time. If none does, the
            # test's own deadline ends the test.
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self._jump(timeout)
        return ready

    def _settle(self, timeout: float | None) -> list[Any] | None:
        """Complete the `settle` waits of an idle loop; return the selector's ready events.

        None: callbacks are still ready, so the waits continue.
        """
        waits = self._loop.settle_waiters
        if timeout is not None and timeout <= 0:
            self._spins += 1
            if self._spins <= _SETTLE_LIMIT:
                return None
            error = RuntimeError("the event loop does not settle; find the task that spins")
            for wait in (pending for pending in waits if not pending.done()):
                wait.set_exception(error)
        else:
            ready = super().select(0)
            if ready:
                return ready
            for wait in (pending for pending in waits if not pending.done()):
                wait.set_result(None)
        waits.clear()
        self._spins = 0
        return super().select(0)

    def _jump(self, timeout: float) -> None:
        self._jumps += 1
        if self._jumps > _JUMP_LIMIT:
            self._jumps = 0  # the cleanup of the test still needs timers
            raise RuntimeError(
                f"the event loop jumped to {_JUMP_LIMIT} timers; the test may wait for an event "
                "that never comes while a periodic timer runs"
            )
        # Use the timer's recorded deadline: rounding makes "now plus timeout" miss it.
        reached = self._loop.virtual_s + timeout
        slack, moments = 4 * math.ulp(reached), self._loop.timer_deadlines
        while moments and moments[0] < reached - slack:
            heapq.heappop(moments)  # fired or cancelled
        if moments and moments[0] <= reached + slack:
            reached = heapq.heappop(moments)
        if reached + 1e-9 == reached:
            # asyncio's 1 ns resolution is lost in so large a number, and it fires only timers
            # that lie strictly before now: step to the next float.
            reached = math.nextafter(reached, math.inf)
        self._loop.virtual_s = max(self._loop.virtual_s, reached)


def elapsed_s() -> float:
    """Return the virtual seconds since the running loop was created."""
    return round(_loop().virtual_s - START_S, 6)


async def advance(seconds: float) -> None:
    """Advance virtual time by `seconds`; return when all resulting work has settled."""
    target = _loop().virtual_s + seconds
    await settle()
    while _loop().virtual_s < target:  # noqa: ASYNC110 - it waits for time, not for a condition
        await asyncio.sleep(target - _loop().virtual_s)
    await settle()


def jump(seconds: float) -> None:
    """Advance virtual time at once, without running timers in between.

    Tasks see this as if the machine had been suspended.
    """
    _loop().virtual_s += seconds


async def settle() -> None:
    """Return when no other callback of the event loop is ready to run.

    Raises:
        RuntimeError: tasks keep the loop busy without end.
    """
    wait = _loop().create_future()
    _loop().settle_waiters.append(wait)
    await wait


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("the event loop runs in real time; use a `VirtualTimeLoop`")
    return loop
