"""Passes that overlap are measured as one, or the later one not at all."""

from __future__ import annotations

import pytest

from ccm.runtime.passtimer import PassTimer
from ccm.testing.clock import advance

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(("joins", "ends"), [(False, 3), (True, 4)])
async def test_a_pass_ends_with_its_last_key(joins: bool, ends: float) -> None:
    """Two keys at 0 s, one more at 1 s; they are finished at 2, 3 and 4 s."""
    seen: list[float] = []
    timer = PassTimer(seen.append)
    timer.started(["a", "b"], joins=joins)
    await advance(1)
    timer.started(["b", "c"], joins=joins)
    for key in ("a", "b", "c"):
        await advance(1)
        timer.finished(key)
    assert seen == [ends]


async def test_the_next_pass_is_measured_from_its_own_start() -> None:
    seen: list[float] = []
    timer = PassTimer(seen.append)
    timer.finished("nobody asked")
    for seconds in (2, 5):
        timer.started(["a"], joins=False)
        await advance(seconds)
        timer.finished("a")
        timer.finished("a")
        await advance(10)

    assert seen == [2, 5]
