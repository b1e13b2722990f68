"""Real input and output at a time that the test moves: minutes pass between two requests.

For tests over sockets whose controllers wait. The loop's time runs as the machine's does,
and `advance` moves it forward, from one timer to the next, leaving what each set off a
moment of real time to be answered.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from ccm.base import clock

_QUIET_S = 0.02


class ShiftedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop ahead of the machine's time by `shift_s` seconds."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        super().__init__()

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


async def advance(seconds: float) -> None:
    """Let that much time pass, timer by timer."""
    loop = _loop()
    target = loop.time() + seconds
    await quiet()
    while (due := loop.next_due()) <= target:
        jump(max(0.0, due - loop.time()))
        await quiet()
    jump(max(0.0, target - loop.time()))
    await quiet()


def jump(seconds: float) -> None:
    """Let that much time have passed, whatever should have happened on the way."""
    _loop().shift_s += seconds


async def quiet() -> None:
    """Let everything that is due now happen."""
    await asyncio.sleep(_QUIET_S)


def _loop() -> ShiftedTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShiftedTimeLoop), "mark the test with `shifted_time`"
    return loop
