"""The machine gives the time unless somebody replaces it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ccm.base import clock


def test_the_machine_gives_the_time() -> None:
    before = time.monotonic()

    assert before <= clock.monotonic() <= time.monotonic()
    assert clock.now().tzinfo is UTC


def test_whoever_owns_time_replaces_both_clocks_for_a_while() -> None:
    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: 12345.5):
        told = clock.now().year, clock.monotonic()

    assert told == (2030, 12345.5)
    assert clock.monotonic() <= time.monotonic()
