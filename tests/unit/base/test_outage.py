"""A trouble that lasts is said twice: when it begins and when it is over."""

from __future__ import annotations

from structlog.testing import capture_logs

from ccm.base.log import logger
from ccm.base.outage import Outage
from tests.handclock import HandClock


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
