"""How long it takes until every key of a pass was looked at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ccm.base import clock


class PassTimer:
    """Measures one pass after the other; two that overlap are one.

    Args:
        observe: told the seconds when the last key of a pass is finished.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._open: set[str] = set()
        self._since = 0.0

    def started(self, keys: Iterable[str], *, joins: bool) -> None:
        """A pass over these keys begins.

        Args:
            keys: what will be looked at.
            joins: while an earlier pass is under way, wait for these keys too. For a pass that
                is repeated all the time False: the measurement of the first would never end.
        """
        if not self._open:
            self._since = clock.monotonic()
        elif not joins:
            return
        self._open.update(keys)

    def finished(self, key: str) -> None:
        """The key was looked at, with whatever outcome."""
        if key not in self._open:
            return
        self._open.discard(key)
        if not self._open:
            self._observe(clock.monotonic() - self._since)
