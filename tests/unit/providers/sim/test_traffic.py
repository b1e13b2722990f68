"""Rate limit and call log of the simulated cloud."""

from __future__ import annotations

import pytest

from providers.sim import traffic
from tests.handclock import HandClock


def test_a_rate_limit_refuses_what_exceeds_it_and_says_how_long(hand: HandClock) -> None:
    limit = traffic.RateLimit(2.0)

    waits = [limit.take() for _ in range(3)]
    hand.advance(waits[-1])

    assert waits == [0.0, 0.0, pytest.approx(0.5)]
    assert limit.take() == 0.0


@pytest.mark.parametrize(("rate", "waits"), [(0.1, [0.0, 10.0]), (0.0, [0.0, 0.0])])
@pytest.mark.usefixtures("hand")
def test_a_slow_rate_lets_one_call_pass_and_no_rate_all(rate: float, waits: list[float]) -> None:
    limit = traffic.RateLimit(rate)

    assert [limit.take(), limit.take()] == pytest.approx(waits)


def test_a_cleared_log_goes_on_counting_sequence_numbers() -> None:
    log = traffic.CallLog()
    log.open("get_instance", "/x")

    log.clear()
    entry = log.open("get_instance", "/y")

    assert (entry.sequence, dict(log.counts), list(log.entries)) == (
        2,
        {"get_instance": 1},
        [entry],
    )
