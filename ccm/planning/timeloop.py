"""Event loop that skips waits, except for waits for external operations.

In a `skipping_waits` block the loop's clock almost stops while tasks run, and jumps to the next
timer when all tasks wait. During an external operation (`real_time`), such as a call to the cloud,
the clock follows real time, so that deadlines and rate limits apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from ccm.base import clock
from ccm.testing.clock import SkippingLoop

TICK_S = 1e-9
"""Seconds that each iteration of the event loop takes on the clock while waits are skipped."""


class FastForwardLoop(SkippingLoop):
    """Event loop `ahead_s` seconds ahead of real time; `ccm.base.clock` follows it."""

    is_thread_local = True

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._skips_waits = False
        self._frozen_at: float | None = None
        super().__init__(_Selector(self))
        self._began = clock.now(), self.time()

    @property
    def may_jump(self) -> bool:
        """Whether waits are skipped: in a `skipping_waits` block without external operations."""
        return self._skips_waits and not self.external_operations

    def time(self) -> float:
        """Return the loop's time.

        This is real monotonic time, frozen while waits are skipped, plus `ahead_s`.
        """
        real = super().time() if self._frozen_at is None else self._frozen_at
        return real + self.ahead_s

    def now(self) -> datetime:
        """Return the wall-clock time at the start of the loop, advanced like `time` since then."""
        wall, since = self._began
        return wall + timedelta(seconds=self.time() - since)

    def run_forever(self) -> None:
        """Run the loop; `ccm.base.clock` follows its time meanwhile."""
        self._began = clock.now(), self.time()
        super().run_forever()

    @contextlib.contextmanager
    def skipping_waits(self) -> Iterator[None]:
        """Skip waits while the block runs."""
        self._skips_waits = True
        self._update_clock()
        try:
            yield
        finally:
            self._skips_waits = False
            self._update_clock()

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """Follow real time while the block runs."""
        self.add_external_operations(1)
        try:
            yield
        finally:
            self.add_external_operations(-1)

    def add_external_operations(self, count: int) -> None:
        """Add `count` to the number of external operations; negative when operations end."""
        super().add_external_operations(count)
        self._update_clock()

    def _update_clock(self) -> None:
        """Freeze the clock if waits are skipped now; else let it continue from the frozen time."""
        real = super().time()
        if self.may_jump and self._frozen_at is None:
            self._frozen_at = real
        elif not self.may_jump and self._frozen_at is not None:
            self.ahead_s -= real - self._frozen_at
            self._frozen_at = None


class _Selector(selectors.DefaultSelector):
    """Selector that advances the loop's clock instead of sleeping."""

    def __init__(self, loop: FastForwardLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or not self._loop.may_jump:
            return super().select(timeout)
        # A wait can be shorter than the distance between two values of the clock, for example the
        # rest of a period after rounding. On a clock at rest it would be repeated without end.
        self._loop.ahead_s += TICK_S
        ready = super().select(0)
        if not ready:
            self._loop.ahead_s += max(timeout, 0)
        return ready


def skipping_waits() -> AbstractContextManager[None]:
    """Skip waits in a `with` block; without effect unless the running loop can skip waits."""
    loop = asyncio.get_running_loop()
    return loop.skipping_waits() if isinstance(loop, FastForwardLoop) else contextlib.nullcontext()


def real_time() -> AbstractContextManager[None]:
    """Follow real time in a `with` block; without effect unless the running loop can skip waits."""
    loop = asyncio.get_running_loop()
    return loop.real_time() if isinstance(loop, FastForwardLoop) else contextlib.nullcontext()
