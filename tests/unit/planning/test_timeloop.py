"""Clock of a forecast: every wait ends, whatever the rounding of the clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from ccm.base import clock
from ccm.planning import timeloop
from ccm.planning.timeloop import FastForwardLoop, skipping_waits

MAX_ROUNDS = 10_000


@pytest.mark.parametrize("start_s", [1000.0, 32_757.0, 1e6])
def test_a_wait_for_the_rest_of_a_period_ends(start_s: float) -> None:
    """After rounding, the rest can be shorter than the distance to the next value of the clock."""

    async def wait(seconds: float) -> int:
        rounds, began = 0, clock.monotonic()
        while (left_s := seconds - (clock.monotonic() - began)) > 0 and rounds < MAX_ROUNDS:
            await asyncio.sleep(left_s)
            rounds += 1
        return rounds

    async def waits() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FastForwardLoop)
        with skipping_waits():
            rounds = []
            for part in range(100):
                loop.ahead_s += start_s + part / 97 - loop.time()
                rounds.append(await wait(90 + part / 89))
            return rounds

    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        assert max(runner.run(waits())) <= 3


def test_waits_end_on_a_machine_that_runs_for_years(monkeypatch: pytest.MonkeyPatch) -> None:
    real, select, selections = time.monotonic, timeloop._Selector.select, 0

    def counted(selector: timeloop._Selector, timeout: float | None = None) -> object:
        nonlocal selections
        selections += 1
        if selections == MAX_ROUNDS:
            raise RuntimeError("a timer that is due does not fire")
        return select(selector, timeout)

    async def wait() -> float:
        began = clock.monotonic()
        with skipping_waits():
            for _ in range(3):
                await asyncio.sleep(100 / 3)
        return clock.monotonic() - began

    monkeypatch.setattr(time, "monotonic", lambda: real() + 1e8)
    monkeypatch.setattr(timeloop._Selector, "select", counted)
    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        assert runner.run(wait()) == pytest.approx(100, abs=1)
