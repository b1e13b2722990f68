"""Event loop that skips waiting, except for answers from outside.

While the loop hurries and no hold is set, its clock moves only by skipped waits: it jumps to the
next timer, and computing takes no time, however slow the machine. A wait for an external answer
sets a hold. Meanwhile the clock follows real time, so that deadlines and rate limits apply.
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


class HurryingLoop(SkippingLoop):
    """Event loop `ahead_s` seconds ahead of real time; `ccm.base.clock` follows it."""

    only_here = True

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._hurries = False
        self._stands_at: float | None = None
        super().__init__(_Selector(self))
        self._began = clock.now(), self.time()

    @property
    def may_jump(self) -> bool:
        """Whether the loop hurries and no hold is set."""
        return self._hurries and not self.held

    def time(self) -> float:
        """Return the machine's monotonic time plus the skipped seconds."""
        real = super().time() if self._stands_at is None else self._stands_at
        return real + self.ahead_s

    def now(self) -> datetime:
        """Return the wall-clock time plus the skipped seconds."""
        wall, since = self._began
        return wall + timedelta(seconds=self.time() - since)

    def run_forever(self) -> None:
        """Run the loop, with the project's clocks on its time."""
        self._began = clock.now(), self.time()
        super().run_forever()

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Skip waits while the block runs."""
        self._hurries = True
        self._stand()
        try:
            yield
        finally:
            self._hurries = False
            self._stand()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Follow real time while the block runs."""
        self.hold(1)
        try:
            yield
        finally:
            self.hold(-1)

    def hold(self, more: int) -> None:
        """Add `more` to the number of holds."""
        super().hold(more)
        self._stand()

    def _stand(self) -> None:
        """Freeze the clock, or let it continue from the frozen time."""
        real = super().time()
        if self.may_jump and self._stands_at is None:
            self._stands_at = real
        elif not self.may_jump and self._stands_at is not None:
            self.ahead_s -= real - self._stands_at
            self._stands_at = None


class _Selector(selectors.DefaultSelector):
    """Selector that advances the loop's clock instead of sleeping."""

    def __init__(self, loop: HurryingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or not self._loop.may_jump:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._loop.ahead_s += timeout
        return ready


def hurrying() -> AbstractContextManager[None]:
    """Skip waits if the running loop can."""
    loop = asyncio.get_running_loop()
    return loop.hurrying() if isinstance(loop, HurryingLoop) else contextlib.nullcontext()


def held() -> AbstractContextManager[None]:
    """Follow real time if the running loop can skip waits."""
    loop = asyncio.get_running_loop()
    return loop.holding() if isinstance(loop, HurryingLoop) else contextlib.nullcontext()
