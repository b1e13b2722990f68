"""Passes: at once, then a period after the end of the one before, whatever it raised."""

from __future__ import annotations

from structlog.testing import capture_logs

from ccm.base.tasks import cancel_and_join, spawn
from ccm.runtime.periodic import run_every
from ccm.testing.clock import FakeClock


async def test_the_period_begins_when_a_pass_ends() -> None:
    clock = FakeClock()
    began: list[float] = []

    async def work() -> None:
        began.append(clock.elapsed_s)
        await clock.sleep(3)

    task = spawn(run_every(10, work, name="test", clock=clock), name="passes")
    await clock.advance(40)
    await cancel_and_join(task)

    assert began == [0, 13, 26, 39]


async def test_an_error_is_logged_and_the_next_pass_comes() -> None:
    clock = FakeClock()
    passes = 0

    async def work() -> None:
        nonlocal passes
        passes += 1
        raise KeyError("a defect")

    with capture_logs() as lines:
        task = spawn(run_every(10, work, name="test", clock=clock), name="passes")
        await clock.advance(15)
        assert not task.done()
        await cancel_and_join(task)

    assert passes == 2
    assert [line["event"] for line in lines] == ["pass failed unexpectedly"] * 2
    assert lines[0]["log_level"] == "error"


async def test_cancelling_ends_a_pass_under_way() -> None:
    clock = FakeClock()

    async def work() -> None:
        await clock.sleep(1000)

    task = spawn(run_every(10, work, name="test", clock=clock), name="passes")
    await clock.advance(1)
    await cancel_and_join(task)

    assert task.cancelled()
