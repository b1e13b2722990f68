"""Real input and output at a time that the test moves: minutes pass between two requests.

For tests over sockets whose controllers wait. The loop's time runs as the machine's does,
and `advance` moves it forward, from one timer to the next, once all that each set off was
answered and the loop has come to rest.
"""

from __future__ import annotations

import asyncio
import selectors
from datetime import UTC, datetime, timedelta

from ccm.base import clock
from tests.faults import FaultProxy

_QUIET_S = 0.02


class ShiftedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop ahead of the machine's time by `shift_s` seconds."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self.selector = _Counting()
        super().__init__(self.selector)

    def time(self) -> float:
        """The machine's monotonic time, shifted."""
        return super().time() + self.shift_s

    def now(self) -> datetime:
        """The machine's time on the wall, shifted."""
        return datetime.now(UTC) + timedelta(seconds=self.shift_s)

    def run_forever(self) -> None:
        """Run, with the project's clocks showing this loop's time."""
        with clock.replaced(self.now, self.time):
            super().run_forever()

    def next_due(self) -> float:
        """When the next timer falls due."""
        timers = self._scheduled  # type: ignore[attr-defined]
        return min((timer.when() for timer in timers if not timer.cancelled()), default=1e99)


class _Counting(selectors.DefaultSelector):
    """A selector that counts its events."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        self.events += len(ready)
        return ready


async def advance(seconds: float) -> None:
    """Let that much time pass from when the loop is at rest, timer by timer."""
    loop = _loop()
    await quiet()
    target = loop.time() + seconds
    while (due := loop.next_due()) <= target:
        jump(max(0.0, due - loop.time()))
        await quiet()
    jump(max(0.0, target - loop.time()))
    await quiet()


def jump(seconds: float) -> None:
    """Let that much time have passed, whatever should have happened on the way."""
    _loop().shift_s += seconds


async def quiet() -> None:
    """Let everything that is due now happen: until no request is under way, and nothing comes."""
    loop, events = _loop(), -1
    while events != loop.selector.events or FaultProxy.has_requests():
        events = loop.selector.events
        await asyncio.sleep(_QUIET_S)


def _loop() -> ShiftedTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShiftedTimeLoop), "mark the test with `shifted_time`"
    return loop
