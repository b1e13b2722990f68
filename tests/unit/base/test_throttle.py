"""Limiters: exact waits, strict order, and nothing lost to a cancelled waiter."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import tasks
from ccm.base.throttle import TokenBucket, Unlimited, bucket
from ccm.testing.clock import advance, elapsed_s, jump, settle

pytestmark = pytest.mark.virtual_time


@given(
    count=st.integers(1, 25),
    qps=st.sampled_from([0.5, 3.0, 20.0, 10_000.0]),
    burst=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
async def test_whoever_stays_is_served_in_order_at_the_time_of_its_place(
    count: int, qps: float, burst: int, seed: int
) -> None:
    rng = random.Random(seed)
    leaving = {number for number in range(count) if rng.random() < 0.4}

    served = await line(count, qps, burst, leaving)

    staying = [number for number in range(count) if number not in leaving or number < burst]
    assert [number for number, _ in served] == staying
    expected = [max(0, place + 1 - burst) / qps for place in range(len(staying))]
    assert [moment for _, moment in served] == pytest.approx(expected, rel=1e-6, abs=1e-6)


async def line(count: int, qps: float, burst: int, leaving: set[int]) -> list[tuple[int, float]]:
    """Who was served and when, where some leave the line as soon as it stands."""
    limiter = TokenBucket(qps=qps, burst=burst)
    began = elapsed_s()
    served: list[tuple[int, float]] = []

    async def waiter(number: int) -> None:
        await limiter.acquire()
        served.append((number, elapsed_s() - began))

    waiting = [tasks.spawn(waiter(number), name=str(number)) for number in range(count)]
    await settle()
    for number in leaving:
        waiting[number].cancel()
    await advance((count + 1) / qps)
    await asyncio.wait(waiting)
    return served


async def test_trying_never_waits_and_never_jumps_the_line() -> None:
    limiter = TokenBucket(qps=1, burst=1)
    empty = [limiter.try_acquire(), limiter.try_acquire()]
    waiter = tasks.spawn(limiter.acquire(), name="waiter")
    await settle()
    jump(10)

    behind_a_waiter = limiter.try_acquire()
    await tasks.cancel_and_join(waiter)

    assert empty == [True, False]
    assert not behind_a_waiter
    assert limiter.try_acquire()


async def test_a_bucket_survives_a_clock_that_steps_back() -> None:
    limiter = TokenBucket(qps=1, burst=2)

    jump(-500)

    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(("qps", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bucket_that_could_never_serve_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenBucket(qps=qps, burst=burst)


async def test_a_negative_rate_means_no_limit() -> None:
    limiter = bucket(-1, 10)

    assert isinstance(limiter, Unlimited)
    assert [await limiter.acquire() for _ in range(500)] == [0.0] * 500


async def test_zero_takes_the_client_library_defaults() -> None:
    limiter = bucket(0, 0)

    waits = [await limiter.acquire() for _ in range(11)]

    assert waits[:10] == [0.0] * 10
    assert waits[10] == pytest.approx(0.2)
