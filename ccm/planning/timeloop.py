"""An event loop in which waiting takes no time, unless it is for the world.

While the loop is in a hurry, and nothing holds it, its time stands still but for what it would
sleep: it moves to the next timer, and computing takes none of it, however slow the machine. What
waits for an answer from outside holds it: meanwhile time passes as the machine's does, so that
deadlines and rate limits mean what they say.
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
    """Ahead of the machine's time by `ahead_s` seconds; shown by `ccm.base.clock` while it runs."""

    only_here = True

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._hurries = False
        self._stands_at: float | None = None
        super().__init__(_Selector(self))
        self._began = clock.now(), self.time()

    @property
    def may_jump(self) -> bool:
        """Whether it is in a hurry and nothing holds it."""
        return self._hurries and not self.held

    def time(self) -> float:
        """The machine's monotonic time, and as much as was skipped."""
        real = super().time() if self._stands_at is None else self._stands_at
        return real + self.ahead_s

    def now(self) -> datetime:
        """The time on the wall, and as much as was skipped."""
        wall, since = self._began
        return wall + timedelta(seconds=self.time() - since)

    def run_forever(self) -> None:
        """Run, with the project's clocks showing this loop's time."""
        self._began = clock.now(), self.time()
        super().run_forever()

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Skip what only waits."""
        self._hurries = True
        self._stand()
        try:
            yield
        finally:
            self._hurries = False
            self._stand()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Wait for the world."""
        self.hold(1)
        try:
            yield
        finally:
            self.hold(-1)

    def hold(self, more: int) -> None:
        """Count what waits for the world."""
        super().hold(more)
        self._stand()

    def _stand(self) -> None:
        """Let time stand still, or go on from where it stands."""
        real = super().time()
        if self.may_jump and self._stands_at is None:
            self._stands_at = real
        elif not self.may_jump and self._stands_at is not None:
            self.ahead_s -= real - self._stands_at
            self._stands_at = None


class _Selector(selectors.DefaultSelector):
    """Lets the loop's time pass where another would sleep."""

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
    """Skip what only waits, if the running loop can."""
    loop = asyncio.get_running_loop()
    return loop.hurrying() if isinstance(loop, HurryingLoop) else contextlib.nullcontext()


def held() -> AbstractContextManager[None]:
    """Wait for the world, if the running loop would not."""
    loop = asyncio.get_running_loop()
    return loop.holding() if isinstance(loop, HurryingLoop) else contextlib.nullcontext()
