"""Machines that are left alone for a while, unless what they failed on is another. Pure."""

from __future__ import annotations


class Pauses:
    """By the key of a machine: until when, and what ends the pause before that.

    Times are those of any clock that only goes forward, in seconds.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, object]] = {}

    def begin(self, key: str, until: float, about: object) -> None:
        """Leave a machine alone until then, or until `about` is not equal any more."""
        self._pauses[key] = until, about

    def end(self, key: str) -> None:
        """It is left alone no longer."""
        self._pauses.pop(key, None)

    def end_all(self) -> list[str]:
        """None is; the keys of those that were."""
        keys = list(self._pauses)
        self._pauses.clear()
        return keys

    def left_s(self, key: str, now: float, about: object) -> float:
        """For how long it is still left alone; 0 when there is nothing to wait for."""
        until, former = self._pauses.get(key, (now, about))
        return max(0.0, until - now) if former == about else 0.0
