"""A trouble that lasts is logged when it begins, every few minutes, and when it ends."""

from __future__ import annotations

from typing import Any

from ccm.base import clock
from ccm.base.log import Logger

REPEAT_S = 300.0
"""Shortest time between two warnings about one trouble."""


class Outage:
    """Whether a trouble lasts, and the lines about it.

    Args:
        log: where the lines go.
        begins: the line at the start, a warning; repeated while it lasts, as a warning every
            `REPEAT_S`, else as `debug`.
        ends: the line at the end, an `info`; it says how long the trouble was.
    """

    def __init__(self, log: Logger, *, begins: str, ends: str) -> None:
        self._log = log
        self._begins = begins
        self._ends = ends
        self.since: float | None = None
        """Monotonic time when it began; None: all is well."""
        self._warned_at = 0.0
        self.last = (0.0, 0.0)
        """When the last one that is over began and ended; zeros: there was none."""

    def __bool__(self) -> bool:
        """Whether it lasts."""
        return self.since is not None

    def goes_on(self, **facts: Any) -> None:
        """There is trouble, just begun or not."""
        now = clock.monotonic()
        if self.since is not None and now < self._warned_at + REPEAT_S:
            self._log.debug(self._begins, **facts)
            return
        self.since = now if self.since is None else self.since
        self._warned_at = now
        self._log.warning(self._begins, **facts)

    def is_over(self, **facts: Any) -> None:
        """There is none, or none any more."""
        if self.since is not None:
            self.last = self.since, clock.monotonic()
            lasted_s = round(self.last[1] - self.last[0], 1)
            self.since = None
            self._log.info(self._ends, after_s=lasted_s, **facts)
