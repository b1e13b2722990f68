"""The machine gives the time unless somebody replaces it, and sleeping always yields."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from ccm.base import clock
from ccm.base.clock import SYSTEM


def test_now_is_aware_and_in_utc() -> None:
    assert clock.now().tzinfo is UTC


def test_the_machine_gives_the_time() -> None:
    before = time.monotonic()

    assert before <= clock.monotonic() <= time.monotonic()


def test_whoever_owns_time_replaces_both_clocks_for_a_while() -> None:
    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: 12345.5):
        told = clock.now().year, clock.monotonic()

    assert told == (2030, 12345.5)
    assert clock.monotonic() <= time.monotonic()


@pytest.mark.parametrize("seconds", [0.0, -3.0])
async def test_sleeping_no_time_lets_others_run(seconds: float) -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)

    await SYSTEM.sleep(seconds)

    assert ran.is_set()


async def test_sleeping_lasts_as_long_as_asked() -> None:
    before = SYSTEM.monotonic()

    await SYSTEM.sleep(0.02)

    assert timedelta(seconds=SYSTEM.monotonic() - before) >= timedelta(milliseconds=19)
