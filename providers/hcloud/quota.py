"""The rate limit, as the headers of each answer tell it.

A token has so many requests an hour (3600), which come back one by one. As long as many are left
nothing waits; below `RESERVE` of them requests are made as fast as they come back, so that what is
left is there for the vendor's other tools in the same project, and for a burst of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ccm.base.clock import monotonic
from ccm.base.parsing import parse_digits

HOUR_S = 3600.0

RESERVE = 0.1
"""Part of the limit below which requests wait."""


class HeaderQuota:
    """What keeps the requests of one token to the rate limit."""

    def __init__(self) -> None:
        self._limit = 0
        self._remaining = 0
        self._next_at = 0.0
        self._line = asyncio.Lock()

    async def acquire(self) -> None:
        """Wait where few requests are left."""
        if not self._limit or self._remaining > self._limit * RESERVE:
            self._remaining -= 1  # until the answer says how many there really are
            return
        async with self._line:
            wait_s = self._next_at - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._next_at = monotonic() + HOUR_S / self._limit

    def hear(self, status: int, headers: Mapping[str, str]) -> None:
        """Take note of `RateLimit-Limit` and `RateLimit-Remaining`, if they are there."""
        limit, remaining = (
            parse_digits(headers.get(f"RateLimit-{name}", "")) for name in ("Limit", "Remaining")
        )
        if limit is None or remaining is None:
            return
        if limit > 0:
            self._limit = limit
            self._remaining = remaining
        if status == 429 and self._limit:
            self._remaining = 0
            self._next_at = max(self._next_at, monotonic() + HOUR_S / self._limit)
