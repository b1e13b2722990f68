"""Clocks, back-off, outages and recent values."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.base.backoff import Exponential, Streak, jittered
from ccm.base.log import Outage, logger
from ccm.base.recent import Recent
from tests.handclock import HandClock

RNG = random.Random(7)
POLICY = Exponential(base_s=0.005, factor=2.0, cap_s=1000.0)


def test_delays_double_up_to_the_cap() -> None:
    delays = [POLICY.delay(failures, RNG) for failures in (0, 1, 2, 10, 17, 18, 1000, 10**9)]

    assert delays == [0.005, 0.01, 0.02, 5.12, 655.36, 1000.0, 1000.0, 1000.0]


@given(st.floats(0.001, 1e6), st.floats(-1.0, 3.0), st.integers())
def test_jitter_stretches_and_never_shortens(delay: float, fraction: float, seed: int) -> None:
    stretched = jittered(delay, fraction, random.Random(seed))

    assert delay <= stretched <= delay * (1 + max(0.0, fraction))


def test_a_streak_grows_until_it_is_reset() -> None:
    streak = Streak(policy=Exponential(base_s=1.0, cap_s=30.0))
    grown = [streak.next(now_s) for now_s in (0.0, 1.0, 3.0)]

    streak.reset()

    assert grown == [1.0, 2.0, 4.0]
    assert streak.next(100.0) == 1.0


def test_a_quiet_time_starts_a_streak_anew() -> None:
    streak = Streak(policy=Exponential(base_s=1.0, cap_s=30.0), reset_after_s=120.0)
    streak.next(0.0)
    streak.next(1.0)

    at_the_border = streak.next(121.0)
    past_it = streak.next(241.5)

    assert (at_the_border, past_it) == (4.0, 1.0)


def test_whoever_owns_time_replaces_both_clocks_for_a_while() -> None:
    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: 12345.5):
        told = clock.now().year, clock.monotonic()

    assert told == (2030, 12345.5)
    assert clock.monotonic() <= time.monotonic()


def test_or_replaces_them_in_this_thread_alone() -> None:
    told: list[float] = []
    other = threading.Thread(target=lambda: told.append(clock.monotonic()))

    with clock.replaced(lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: -1.0, here=True):
        assert clock.monotonic() == -1.0
        other.start()
        other.join()

    assert told[0] >= 0


def test_a_trouble_is_said_when_it_begins_and_when_it_is_over(hand: HandClock) -> None:
    outage = Outage(logger("test"), begins="lost", ends="found")
    with capture_logs() as lines:
        outage.is_over()
        outage.goes_on(error="one")
        began = outage.since
        hand.advance(2.5)
        outage.goes_on(error="two")
        assert outage
        assert (outage.since, outage.last) == (began, (0.0, 0.0))
        outage.is_over()
        outage.is_over()

    assert not outage
    assert began is not None
    assert outage.last == (began, began + 2.5)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "lost"),
        ("info", "found"),
    ]
    assert lines[-1]["after_s"] == 2.5


def test_a_trouble_that_lasts_is_a_warning_every_few_minutes(hand: HandClock) -> None:
    outage = Outage(logger("test"), begins="lost", ends="found")
    with capture_logs() as lines:
        for minute in range(12):
            outage.goes_on(minute=minute)
            hand.advance(60.0)

    warned = [line["minute"] for line in lines if line["log_level"] == "warning"]
    assert warned == [0, 5, 10]


def test_what_was_noted_longest_ago_makes_room() -> None:
    dropped: list[int] = []
    recent: Recent[str, int] = Recent(2, dropped=dropped.append)

    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.note(key, value)

    assert (recent.of("a"), recent.of("b"), recent.of("c")) == (3, None, 4)
    assert dropped == [2]
    assert len(recent) == 2


def test_nothing_is_left_to_drop() -> None:
    recent: Recent[str, int] = Recent()
    recent.note("a", 1)

    assert recent.drop_oldest()
    assert not recent.drop_oldest()
