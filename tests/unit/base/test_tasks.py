"""Tasks, drain, lease guard, rate limiter and waits, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import clock, drain, lease_guard, tasks
from ccm.base.drain import Drain
from ccm.base.lease_guard import LeaseExpired, LeaseGuard
from ccm.base.throttle import Bucket, TokenBucket, Unlimited, client_go_limiter
from ccm.testing.clock import advance, elapsed_s, jump, settle

pytestmark = pytest.mark.virtual_time


class Environment:
    """A drain, its tasks, and an event that blocks their changes."""

    def __init__(self) -> None:
        self.drain = Drain()
        self.door = asyncio.Event()
        self.said: list[str] = []

    def start(self, work: Work) -> asyncio.Task[None]:
        async def governed() -> None:
            self.drain.activate()
            await work(self)

        return tasks.spawn(governed(), name="work")

    async def change(self, what: str, *, long: bool = False) -> None:
        async with drain.change(long=long):
            self.said.append(what)
            await self.door.wait()


Work = Callable[[Environment], Coroutine[Any, Any, None]]


def changes(*what: str, in_unit: bool = True) -> Work:
    async def work(env: Environment) -> None:
        async with drain.unit() if in_unit else contextlib.nullcontext():
            for each in what:
                await env.change(each, long=each == "long")
            env.said.append("done")

    return work


async def beside(env: Environment) -> None:
    async with drain.unit():
        tasks.spawn(env.change("left behind"), name="left-behind")


ONE, LONE = changes("first"), changes("lone", in_unit=False)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        pytest.param(ONE, ["first", "done"], id="a-unit-comes-to-its-end"),
        pytest.param(changes("a", "b"), ["a", "b", "done"], id="its-next-change-is-made"),
        pytest.param(changes("first", "long"), ["first"], id="but-none-that-takes-long"),
        pytest.param(LONE, ["lone", "done"], id="a-change-without-a-unit"),
        pytest.param(beside, ["left behind"], id="a-task-that-outlives-its-unit"),
    ],
)
async def test_drain_waits_for_changes_in_progress(work: Work, said: list[str]) -> None:
    env = Environment()
    begun = env.start(work)
    await settle()
    stopped = tasks.spawn(env.drain.drain(20.0), name="stop")
    await settle()
    assert not stopped.done()

    env.door.set()
    await settle()

    assert stopped.result() is True
    assert (env.said, env.drain.units_in_progress) == (said, 0)
    await tasks.cancel_and_join(begun)


async def test_drain_reports_a_change_beyond_its_timeout() -> None:
    env = Environment()
    begun = env.start(ONE)
    await settle()

    assert await env.drain.drain(20.0) is False

    assert (elapsed_s(), env.drain.units_in_progress) == (20.0, 1)
    await tasks.cancel_and_join(begun)
    assert env.drain.units_in_progress == 0


@pytest.mark.parametrize("work", [ONE, LONE, beside])
async def test_drained_process_starts_no_new_changes(work: Work) -> None:
    env = Environment()
    env.door.set()
    assert await env.drain.drain(20.0)
    begun = env.start(work)
    await settle()

    assert env.said == []
    await tasks.cancel_and_join(begun)


def governing(seconds: float | None) -> LeaseGuard:
    """Activate a lease guard; None: the lease was never acquired."""
    guard = LeaseGuard()
    if seconds is not None:
        guard.extend(clock.monotonic() + seconds)
    guard.activate()
    return guard


async def limited() -> str:
    """Run endless work under the lease guard; return how it ended."""
    try:
        async with lease_guard.limit():
            await asyncio.sleep(1e6)
    except LeaseExpired:
        return "not begun"
    except TimeoutError:
        return "ended"
    return "done"


@pytest.mark.parametrize("seconds", [None, 10])
async def test_lease_guard_refuses_work_without_a_valid_lease(seconds: float | None) -> None:
    """The guard also refuses before the event loop noticed the expiry, and in a thread."""
    governing(seconds)
    if seconds:
        jump(9.9)
        lease_guard.check_current_guard()
        jump(0.1)
    with pytest.raises(LeaseExpired):
        lease_guard.check_current_guard()
    with pytest.raises(LeaseExpired):
        await asyncio.to_thread(lease_guard.check_current_guard)
    assert await limited() == "not begun"


async def test_running_work_is_cancelled_when_its_own_lease_expires() -> None:
    guard = governing(10)
    begun = tasks.spawn(limited(), name="limited")
    for _ in range(3):
        await advance(9)
        guard.extend(clock.monotonic() + 10)

    async def another() -> None:
        governing(100)
        await advance(50)
        lease_guard.check_current_guard()

    await tasks.spawn(another(), name="another")
    assert await begun == "ended"
    with pytest.raises(LeaseExpired):
        lease_guard.check_current_guard()


async def test_work_under_two_leases_ends_with_either() -> None:
    outer, inner = governing(10), LeaseGuard()
    inner.extend(clock.monotonic() + 100)
    inner.activate(nested=True)
    begun = tasks.spawn(limited(), name="limited")
    await advance(9)
    lease_guard.check_current_guard()
    await advance(2)

    assert await begun == "ended"
    assert await limited() == "not begun"
    with pytest.raises(LeaseExpired):
        lease_guard.check_current_guard()
    outer.extend(clock.monotonic() + 10)
    lease_guard.check_current_guard()
    inner.expire()
    with pytest.raises(LeaseExpired):
        lease_guard.check_current_guard()


async def test_lost_lease_cancels_running_work_at_once() -> None:
    guard = governing(10)
    begun = tasks.spawn(limited(), name="limited")
    await advance(1)

    guard.expire()
    # A renewal that arrives in the same loop iteration comes too late.
    await asyncio.sleep(0)
    guard.extend(clock.monotonic())

    assert await begun == "ended"
    assert elapsed_s() == 1


async def test_run_bounded_keeps_its_limit_and_stops_at_the_first_failure() -> None:
    running, most, done = 0, 0, 0

    async def work(item: int) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running, done = running - 1, done + 1
        if item == 20:
            raise ValueError

    await tasks.run_bounded(iter(range(20)), work, limit=3, name="job")
    assert (done, most) == (20, 3)
    with pytest.raises(ExceptionGroup):
        await tasks.run_bounded(range(20, 1000), work, limit=2, name="job")
    assert done < 25


@pytest.mark.parametrize("jobs", [1, 3])
async def test_other_tasks_run_between_jobs_and_slices_that_never_wait(jobs: int) -> None:
    done, seen = 0, []

    async def work(_: int) -> None:
        nonlocal done
        done += 1

    async def watch() -> None:
        while done < 4 * tasks.SLICE:
            seen.append(done)
            await asyncio.sleep(0)

    other = asyncio.create_task(watch())
    await tasks.run_bounded(range(2 * tasks.SLICE), work, limit=jobs, name="job")
    assert max(b - a for a, b in itertools.pairwise(seen)) <= tasks.SLICE + jobs
    seen.clear()
    async for item in tasks.in_slices(range(2 * tasks.SLICE)):
        await work(item)
    await other
    assert seen == [3 * tasks.SLICE]


async def test_wait_for_is_cancelled_even_when_the_event_is_set() -> None:
    event = asyncio.Event()
    waits = asyncio.create_task(tasks.wait_for(event, 3))
    await settle()

    event.set()
    waits.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waits


@given(
    count=st.integers(1, 25),
    qps=st.sampled_from([0.5, 3.0, 20.0, 10_000.0]),
    burst=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
async def test_rate_limiter_serves_waiters_in_order(
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
    """Return the served waiters with their times; some are cancelled at once."""
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
def test_token_bucket_refuses_a_zero_rate_or_burst(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenBucket(qps=qps, burst=burst)


async def test_negative_rate_is_unlimited_and_zero_uses_client_go_defaults() -> None:
    limiter, default = client_go_limiter(-1, 10), client_go_limiter(0, 0)

    assert isinstance(limiter, Unlimited)
    assert [await limiter.acquire() for _ in range(500)] == [0.0] * 500
    assert [await default.acquire() for _ in range(11)] == [0.0] * 10 + [pytest.approx(0.2)]


async def test_try_acquire_neither_waits_nor_overtakes_waiters() -> None:
    limiter = TokenBucket(qps=1, burst=1)
    assert [limiter.try_acquire(), limiter.try_acquire()] == [True, False]
    waiter = tasks.spawn(limiter.acquire(), name="waiter")
    await settle()
    jump(10)
    assert not limiter.try_acquire()
    await tasks.cancel_and_join(waiter)
    assert limiter.try_acquire()


def test_token_bucket_never_holds_more_than_its_burst() -> None:
    bucket = Bucket(qps=1, burst=2)
    assert [bucket.take(at) for at in (0, 0, 0, 1000, 1000, 1000)] == [True, True, False] * 2
