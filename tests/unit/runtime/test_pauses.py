"""Pauses follow the class of the error and end when they should."""

from __future__ import annotations

import math
import random

from ccm.base.backoff import Exponential
from ccm.cloud.errors import InvalidArgument, RetryAfter, Unavailable
from ccm.runtime.pauses import Pauses
from ccm.runtime.retry import SLOW_S, again


def made() -> Pauses[str]:
    return Pauses(Exponential(base_s=1.0, cap_s=10.0), random.Random(1))


def test_pauses_grow_and_end() -> None:
    pauses = made()

    lengths = [pauses.begin("a", again(Unavailable("no")), 100.0) for _ in range(6)]

    assert lengths == [1, 2, 4, 8, 10, 10]
    assert pauses.lasts("a", 109.9)
    assert not pauses.lasts("a", 110.0)
    assert not pauses.lasts("b", 100.0)
    assert pauses.first_end(100.0) == 110.0
    assert pauses.first_end(110.0) == math.inf


def test_the_error_may_say_how_long() -> None:
    pauses = made()

    assert pauses.begin("a", again(RetryAfter("busy", seconds=42)), 0.0) == 42
    assert pauses.begin("b", again(InvalidArgument("no")), 0.0) == SLOW_S


def test_success_begins_anew() -> None:
    pauses = made()
    pauses.begin("a", again(Unavailable("no")), 0.0)

    pauses.forget("a")

    assert not pauses.lasts("a", 0.0)
    assert pauses.begin("a", again(Unavailable("no")), 0.0) == 1


def test_the_end_of_an_outage_ends_its_pauses_only() -> None:
    pauses = made()
    pauses.begin("a", again(Unavailable("no")), 0.0)
    pauses.begin("b", again(InvalidArgument("no")), 0.0)

    assert pauses.end_outages()

    assert not pauses.lasts("a", 0.0)
    assert pauses.lasts("b", 0.0)
    assert not pauses.end_outages()


def test_what_is_no_longer_to_be_done_is_forgotten() -> None:
    pauses = made()
    for key in ("a", "b"):
        pauses.begin(key, again(Unavailable("no")), 0.0)

    pauses.keep(["b"])

    assert not pauses.lasts("a", 0.0)
    assert pauses.lasts("b", 0.0)


def test_one_that_recovers_from_an_outage_ends_it_for_the_others() -> None:
    pauses = made()
    for key in ("a", "b"):
        pauses.begin(key, again(Unavailable("no")), 0.0)
    pauses.begin("c", again(InvalidArgument("wrong")), 0.0)

    pauses.recovered("a")

    assert not pauses.lasts("b", 0.5)
    assert pauses.lasts("c", 0.5)
    assert len(pauses) == 2


def test_one_that_recovers_from_something_else_ends_no_outage() -> None:
    pauses = made()
    pauses.begin("a", again(InvalidArgument("wrong")), 0.0)
    pauses.begin("b", again(Unavailable("no")), 0.0)

    pauses.recovered("a")

    assert pauses.lasts("b", 0.5)
