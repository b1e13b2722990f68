"""A clock for tests with real sockets, threads or files: it moves by hand, and by naps.

Tests without any run in virtual time instead (`ccm.testing.clock`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ccm.base import clock


class HandClock:
    """Time as the test wants it; a nap moves it on at once and is remembered."""

    def __init__(self) -> None:
        self.naps: list[float] = []
        self.elapsed = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds


@pytest.fixture
def hand() -> Iterator[HandClock]:
    """The project's clocks, and all that sleep, follow the hand."""
    hand = HandClock()
    yielding = asyncio.sleep

    async def nap(seconds: float, result: object = None) -> object:
        if seconds > 0:
            hand.naps.append(seconds)
            hand.advance(seconds)
        return await yielding(0, result)

    with (
        clock.replaced(hand.now, hand.monotonic),
        pytest.MonkeyPatch.context() as patches,
    ):
        patches.setattr(asyncio, "sleep", nap)
        yield hand
