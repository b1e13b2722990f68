"""The machine gives the time unless somebody replaces it."""

from __future__ import annotations

import threading
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


def test_or_replaces_them_in_this_thread_alone() -> None:
    told: list[float] = []
    other = threading.Thread(target=lambda: told.append(clock.monotonic()))

    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: -1.0, here=True):
        assert clock.monotonic() == -1.0
        other.start()
        other.join()

    assert told[0] >= 0
