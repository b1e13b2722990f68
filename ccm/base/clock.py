"""The clock every waiting component takes, so that tests own time.

`now` is wall-clock time for what is written down (lease times, events);
`monotonic` is for measuring and for deadlines; `sleep` is the only way to wait.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What a component may ask about time."""

    def now(self) -> datetime:
        """Wall-clock time, timezone-aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never runs backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds; zero or less yields to the event loop once."""
        ...


class SystemClock:
    """The machine's clock; waiting goes through the running event loop.

    `monotonic` reads the event loop's time where one runs, so that a test which
    replaces the loop's clock moves every deadline with it.
    """

    def now(self) -> datetime:
        """Wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """The running loop's time, or the machine's monotonic clock outside a loop."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait through the event loop."""
        await asyncio.sleep(max(0.0, seconds))


SYSTEM = SystemClock()
"""The one system clock; the default wherever a clock may be passed."""
