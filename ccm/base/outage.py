"""A trouble that lasts is said when it begins and when it ends, not at every attempt."""

from __future__ import annotations

from typing import Any

from ccm.base.log import Logger


class Outage:
    """Whether a trouble lasts, and the lines about it.

    Args:
        log: where the lines go.
        begins: the line at the start, a warning; repeated as `debug` while it lasts.
        ends: the line at the end, an `info`.
    """

    def __init__(self, log: Logger, *, begins: str, ends: str) -> None:
        self._log = log
        self._begins = begins
        self._ends = ends
        self._lasts = False

    def __bool__(self) -> bool:
        """Whether it lasts."""
        return self._lasts

    def goes_on(self, **facts: Any) -> None:
        """There is trouble, just begun or not."""
        level = self._log.debug if self._lasts else self._log.warning
        self._lasts = True
        level(self._begins, **facts)

    def is_over(self, **facts: Any) -> None:
        """There is none, or none any more."""
        if self._lasts:
            self._lasts = False
            self._log.info(self._ends, **facts)
