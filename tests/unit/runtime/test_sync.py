"""Waiting for the cache: as long as it takes, and not in silence."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from ccm.runtime.sync import REMIND_S, until_synced
from ccm.testing.clock import elapsed_s

pytestmark = pytest.mark.virtual_time


class Slow:
    """A cache that is complete after some time."""

    def __init__(self, complete_after_s: float) -> None:
        self._left_s = complete_after_s

    async def wait_synced(self, timeout_s: float) -> None:
        waited = min(timeout_s, self._left_s)
        await asyncio.sleep(waited)
        self._left_s -= waited
        if self._left_s > 0:
            raise TimeoutError("the cache of things is not complete yet")


@pytest.mark.parametrize(("takes_s", "reminders"), [(0, 0), (REMIND_S, 0), (2.5 * REMIND_S, 2)])
async def test_it_waits_and_says_what_for(takes_s: float, reminders: int) -> None:
    with capture_logs() as lines:
        await until_synced(Slow(takes_s), who="test")

    assert elapsed_s() == takes_s
    assert [line["error"] for line in lines] == [
        "the cache of things is not complete yet"
    ] * reminders
