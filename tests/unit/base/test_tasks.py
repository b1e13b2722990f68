"""Tasks, drain, fence, throttle and waits, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import clock, drain, lease_guard, tasks
from ccm.base.drain import Drain
from ccm.base.lease_guard import Lapsed, LeaseGuard
from ccm.base.throttle import TokenBucket, Unlimited, bucket
from ccm.testing.clock import advance, elapsed_s, settle

pytestmark = pytest.mark.virtual_time


async def fails() -> None:
    raise ValueError("broken")


GRACE_S = 20.0

Work = Callable[[], Coroutine[Any, Any, None]]


class Environment:
    """A drain, tasks that it governs, and a door that holds changes up."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.door = asyncio.Event()
        self.door_of_second = asyncio.Event()
        self.said: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self, work: Work) -> asyncio.Task[None]:
        async def governed() -> None:
            self.drain.govern()
            await work()

        task = tasks.spawn(governed(), name="work")
        self.tasks.append(task)
        await settle()
        return task

    async def stop(self) -> asyncio.Task[bool]:
        task = tasks.spawn(self.drain.drained(GRACE_S), name="stop")
        self.tasks.append(task)
        await settle()
        return task

    async def change(self, what: str, *, long: bool = False) -> None:
        async with drain.change(long=long):
            self.said.append(what)
            await self.door.wait()


def changes(*what: str, in_unit: bool = True) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def work(env: Environment) -> None:
        async with drain.unit() if in_unit else contextlib.nullcontext():
            for each in what:
                await env.change(each, long=each == "long")
            env.said.append("done")

    return work


ONE, LONE = changes("first"), changes("lone", in_unit=False)


async def run(work: Callable[[Environment], Coroutine[Any, Any, None]]) -> Environment:
    env = Environment()
    await env.start(lambda: work(env))
    return env


async def ended(env: Environment) -> None:
    await tasks.cancel_and_join(*env.tasks)


def governing(seconds: float | None) -> LeaseGuard:
    """The fence of this test; None: under a lease that nobody has taken yet."""
    made = LeaseGuard()
    if seconds is not None:
        made.extend(clock.monotonic() + seconds)
    made.govern()
    return made


async def work() -> str:
    """Something that never ends by itself; how it ended."""
    try:
        async with lease_guard.limit():
            await asyncio.sleep(1e6)
    except Lapsed:
        return "not begun"
    except TimeoutError:
        return "ended"
    return "done"


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

    waiters = [tasks.spawn(waiter(number), name=str(number)) for number in range(count)]
    await settle()
    for number in leaving:
        waiters[number].cancel()
    await advance((count + 1) / qps)
    await asyncio.wait(waiters)
    return served


@pytest.mark.parametrize(("qps", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bucket_that_could_never_serve_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenBucket(qps=qps, burst=burst)


async def test_a_negative_rate_means_no_limit() -> None:
    limiter = bucket(-1, 10)

    assert isinstance(limiter, Unlimited)
    assert [await limiter.acquire() for _ in range(500)] == [0.0] * 500
