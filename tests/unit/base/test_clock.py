"""The system clock follows the event loop, and sleeping always yields."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, timedelta

import pytest

from ccm.base.clock import SYSTEM


def test_now_is_aware_and_in_utc() -> None:
    assert SYSTEM.now().tzinfo is UTC


def test_outside_a_loop_the_machine_gives_the_time() -> None:
    before = time.monotonic()

    assert before <= SYSTEM.monotonic() <= time.monotonic()


async def test_inside_a_loop_the_loop_gives_the_time() -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(asyncio.SelectorEventLoop, "time", lambda _: 12345.5)

        told = SYSTEM.monotonic()

    assert told == 12345.5


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
