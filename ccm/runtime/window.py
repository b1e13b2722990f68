"""How often something happened lately. Pure: whoever asks says what time it is."""

from __future__ import annotations

from collections import deque


class SlidingCounter:
    """Counts what happened in the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._moments: deque[float] = deque()

    def note(self, now: float) -> None:
        """It happened once more."""
        self._moments.append(now)

    def count(self, now: float) -> int:
        """How often it happened."""
        while self._moments and self._moments[0] <= now - self._span_s:
            self._moments.popleft()
        return len(self._moments)
