"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time as the test wants it; sleeping moves it on at once and is remembered."""

    def __init__(self) -> None:
        self.elapsed = 1000.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed += seconds
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds
