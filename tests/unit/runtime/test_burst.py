"""Bursts: one act for many changes, in virtual time."""

from __future__ import annotations

import pytest

from ccm.base.tasks import cancel_and_join, spawn
from ccm.runtime.burst import Burst
from ccm.testing.clock import FakeClock, settle


async def test_an_act_follows_the_pause_and_never_comes_too_late() -> None:
    clock, acts = FakeClock(), []
    burst = Burst(lambda: acts.append(clock.elapsed_s), quiet_s=1, longest_s=10, clock=clock)
    task = spawn(burst.run(), name="burst")
    try:
        await settle()
        await clock.advance(5)
        assert acts == []

        burst.note()
        await clock.advance(0.6)
        burst.note()
        await clock.advance(5)
        assert acts == [pytest.approx(6.6)]

        for _ in range(30):
            burst.note()
            await clock.advance(0.5)
        await clock.advance(5)
        assert acts[1:] == [pytest.approx(20.6), pytest.approx(26.1)]
    finally:
        await cancel_and_join(task)
