"""Delays grow to a cap, jitter only stretches, and a quiet time starts anew."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ccm.base.backoff import Exponential, Streak, jittered

RNG = random.Random(7)
POLICY = Exponential(base_s=0.005, factor=2.0, cap_s=1000.0)


def test_delays_double_up_to_the_cap() -> None:
    delays = [POLICY.delay(failures, RNG) for failures in (0, 1, 2, 10, 17, 18, 1000, 10**9)]

    assert delays == [0.005, 0.01, 0.02, 5.12, 655.36, 1000.0, 1000.0, 1000.0]


@given(st.floats(0.001, 1e6), st.floats(-1.0, 3.0), st.integers())
def test_jitter_stretches_and_never_shortens(delay: float, fraction: float, seed: int) -> None:
    stretched = jittered(delay, fraction, random.Random(seed))

    assert delay <= stretched <= delay * (1 + max(0.0, fraction))


def test_jitter_comes_after_the_cap() -> None:
    policy = Exponential(base_s=1.0, cap_s=4.0, jitter=0.5)

    delays = [policy.delay(20, RNG) for _ in range(200)]

    assert min(delays) >= 4.0
    assert max(delays) <= 6.0
    assert len(set(delays)) > 100


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
