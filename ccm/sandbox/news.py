"""What happened in a sandbox, a line each, for whoever tells it on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

RECENT = 200
"""Happenings that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something worth a line: when, and what."""

    at: float
    text: str
    is_warning: bool = False


class News:
    """The last `RECENT` happenings."""

    def __init__(self) -> None:
        self.count = 0
        """How many there were so far."""
        self._recent: deque[Happening] = deque(maxlen=RECENT)

    def note(self, text: str, now: float, *, is_warning: bool = False) -> None:
        """Remember a happening."""
        self._recent.append(Happening(at=now, text=text, is_warning=is_warning))
        self.count += 1

    def since(self, count: int) -> Sequence[Happening]:
        """Those that came after the first so many, as far as they are remembered."""
        fresh = min(self.count - count, len(self._recent))
        return list(self._recent)[len(self._recent) - fresh :] if fresh > 0 else []
