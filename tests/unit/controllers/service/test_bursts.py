"""Bursts: one act for many changes, in virtual time."""

from __future__ import annotations

import pytest

from ccm.controllers.service.bursts import LONGEST_REST_S, LONGEST_WAVE_S, Bursts
from ccm.testing.clock import advance, elapsed_s

pytestmark = pytest.mark.virtual_time


def collecting() -> tuple[Bursts, list[float]]:
    acts: list[float] = []
    return Bursts(lambda: acts.append(elapsed_s()), quiet_s=1, longest_s=10), acts


async def test_an_act_follows_the_pause_and_never_comes_too_late() -> None:
    changes, acts = collecting()
    await advance(5)
    assert acts == []

    changes.note()
    await advance(0.6)
    changes.note()
    await advance(5)
    assert acts == [pytest.approx(6.6)]

    for _ in range(30):
        changes.note()
        await advance(0.5)
    await advance(5)
    assert acts[1:] == [pytest.approx(20.6), pytest.approx(26.1)]


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.05, 1), (2, 20), (30, LONGEST_REST_S)])
async def test_a_dear_pass_is_followed_by_a_rest_in_proportion(
    took_s: float, rest_s: float
) -> None:
    changes, acts = collecting()
    changes.passes()
    await advance(took_s)
    changes.passed(took_s)

    changes.note()
    await advance(100)

    assert acts == [pytest.approx(took_s + rest_s)]


async def test_a_pass_that_hangs_holds_up_the_next_for_a_minute_only() -> None:
    changes, acts = collecting()
    changes.passes()

    changes.note()
    await advance(1000)

    assert acts == [LONGEST_REST_S]


async def test_a_node_that_goes_away_waits_for_neither_rest_nor_wave() -> None:
    changes, acts = collecting()
    changes.passes()
    changes.wave(goes_on=True)
    changes.note()
    await advance(5)

    for _ in range(10):
        changes.note(leaves=True)
        changes.wave(goes_on=True)
        await advance(1)

    assert acts == [15]


async def test_a_wave_of_initialisation_is_one_burst() -> None:
    changes, acts = collecting()
    for number in range(100):
        changes.wave(goes_on=number < 99)
        changes.note()
        await advance(3)

    assert acts == [pytest.approx(99 * 3)]


async def test_a_node_that_is_never_initialised_holds_up_others_for_a_moment_only() -> None:
    changes, acts = collecting()
    changes.wave(goes_on=True)
    changes.note()
    await advance(100)
    assert acts == [10]

    changes.note()
    await advance(100)
    assert acts == [10, 101]


async def test_a_wave_without_end_is_cut() -> None:
    changes, acts = collecting()
    for _ in range(700):
        changes.wave(goes_on=True)
        changes.note()
        await advance(1)

    assert acts == [LONGEST_WAVE_S]
