"""The server's time is told by its answers, and goes on between them whatever our clock says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from ccm.base import clock
from ccm.kube.transport import ServerClock
from ccm.testing.clock import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

DATE, TOLD = "Mon, 23 Nov 2026 10:00:00 GMT", datetime(2026, 11, 23, 10, tzinfo=UTC)


def jump_of_the_wall(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_time_goes_on_from_the_last_answer_though_our_clock_jumps(seconds: float) -> None:
    told = ServerClock()
    told.note(DATE)
    jump_of_the_wall(seconds)
    await asyncio.sleep(90)

    assert told.now() == TOLD + timedelta(seconds=90)


async def test_before_any_answer_our_own_clock_counts() -> None:
    told = ServerClock()
    assert told.now() == clock.now()
    for useless in (None, "", "soon", "Mon, 99 Nov 2026 10:00:00 GMT"):
        told.note(useless)

    assert told.now() == clock.now()


async def test_a_later_answer_corrects_it_and_one_at_once_is_not_read() -> None:
    told = ServerClock()
    told.note(DATE)
    told.note("Mon, 23 Nov 2026 12:00:00 GMT")
    assert told.now() == TOLD

    await asyncio.sleep(1)
    told.note("Mon, 23 Nov 2026 12:00:00 GMT")
    assert told.now() == TOLD + timedelta(hours=2)
