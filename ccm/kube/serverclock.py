"""What time it is at the API server, told from its answers: our own clock may be wrong, or set.

Every answer bears the server's time to the second. Between two of them time goes on by a clock
that nobody sets.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ccm.base import clock

EVERY_S = 1.0
"""A later answer than that is read again; the times in them have no smaller step."""


class ServerClock:
    """The server's clock; our own, until the server has said anything."""

    def __init__(self) -> None:
        self._told: tuple[datetime, float] | None = None

    def note(self, date: str | None) -> None:
        """The header `Date` of an answer that has just come; one that says nothing is left."""
        now = clock.monotonic()
        if not date or (self._told is not None and now - self._told[1] < EVERY_S):
            return
        try:
            told = parsedate_to_datetime(date)
        except ValueError:
            return
        self._told = (told if told.tzinfo else told.replace(tzinfo=UTC), now)

    def now(self) -> datetime:
        """The time at the server."""
        if self._told is None:
            return clock.now()
        told, at = self._told
        return told + timedelta(seconds=clock.monotonic() - at)
