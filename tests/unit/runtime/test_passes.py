"""Passes that overlap are measured as one, or the later one not at all."""

from __future__ import annotations

from ccm.runtime.passes import Passes
from ccm.testing.clock import FakeClock


async def measured(*, joins: bool) -> list[float]:
    """Two keys at 0 s, one more at 1 s; they are finished at 2, 3 and 4 s."""
    clock = FakeClock()
    seen: list[float] = []
    passes = Passes(seen.append, clock)
    passes.started(["a", "b"], joins=joins)
    await clock.advance(1)
    passes.started(["b", "c"], joins=joins)
    for key in ("a", "b", "c"):
        await clock.advance(1)
        passes.finished(key)
    return seen


async def test_a_pass_ends_with_its_last_key() -> None:
    assert await measured(joins=False) == [3]


async def test_a_later_pass_can_join() -> None:
    assert await measured(joins=True) == [4]


async def test_the_next_pass_is_measured_from_its_own_start() -> None:
    clock = FakeClock()
    seen: list[float] = []
    passes = Passes(seen.append, clock)
    passes.finished("nobody asked")
    for seconds in (2, 5):
        passes.started(["a"], joins=False)
        await clock.advance(seconds)
        passes.finished("a")
        passes.finished("a")
        await clock.advance(10)

    assert seen == [2, 5]
