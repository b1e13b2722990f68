"""When routes are compared, as arithmetic."""

from __future__ import annotations

import math

from ccm.controllers.route.schedule import Schedule, Times

TIMES = Times(interval_s=10.0, settle_s=0.5, safety_s=600.0)


def compared(now: float, times: Times = TIMES) -> Schedule:
    """A schedule whose last comparison began then."""
    schedule = Schedule(times)
    schedule.force(now)
    assert schedule.begin(now)
    return schedule


def test_reasons_only_bring_a_comparison_forward() -> None:
    schedule = compared(100.0)
    schedule.finished([300.0, 400.0, 50.0], safety_s=600.0)
    assert schedule.due == 300.0
    schedule.soon(350.0)
    assert schedule.due == 300.0
    schedule.retry(150.0, 20.0)
    assert schedule.due == 170.0


def test_what_comes_during_the_listing_is_part_of_it() -> None:
    schedule = compared(100.0)
    schedule.soon(101.0)
    schedule.listed()
    assert schedule.due == math.inf


def test_a_retry_keeps_some_distance_from_the_last_comparison() -> None:
    schedule = compared(100.0)
    schedule.retry(100.0, 1.0)
    assert schedule.due == 101.0
    schedule = compared(100.0)
    schedule.retry(90.0, 60.0)
    assert schedule.due == 150.0


def test_a_fixed_period_alone_counts() -> None:
    schedule = compared(100.0, Times(period_s=7.0))
    schedule.soon(101.0)
    schedule.retry(101.0, 1.0)
    assert schedule.due == math.inf
    schedule.finished([102.0], safety_s=1.0)
    assert schedule.due == 107.0
    failed = compared(100.0, Times(period_s=7.0))
    failed.listing_failed(101.0, 1.0)
    assert failed.due == 107.0
