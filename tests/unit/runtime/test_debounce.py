"""Bursts: one act for many changes, in virtual time."""

from __future__ import annotations

import pytest

from ccm.runtime.debounce import Debouncer
from ccm.testing.clock import advance, elapsed_s

pytestmark = pytest.mark.virtual_time


async def test_an_act_follows_the_pause_and_never_comes_too_late() -> None:
    acts: list[float] = []
    changes = Debouncer(lambda: acts.append(elapsed_s()), quiet_s=1, longest_s=10)
    await advance(5)
    assert acts == []

    changes.note()
    await advance(0.6)
    changes.note()
    await advance(5)
    assert acts == [pytest.approx(6.6)]

    for _ in range(30):
        changes.note()
        await advance(0.5)
    await advance(5)
    assert acts[1:] == [pytest.approx(20.6), pytest.approx(26.1)]
