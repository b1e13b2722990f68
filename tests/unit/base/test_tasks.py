"""Tasks, drain, fence, throttle and waits, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import clock, drain, lease_guard, tasks
from ccm.base.drain import Drain
from ccm.base.lease_guard import Lapsed, LeaseGuard
from ccm.base.throttle import TokenBucket, Unlimited, bucket
from ccm.testing.clock import advance, elapsed_s, jump, settle

pytestmark = pytest.mark.virtual_time


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_groups_in_groups_are_taken_apart_in_their_order() -> None:
    first, second, third = ValueError("a"), KeyError("b"), OSError("c")
    error = ExceptionGroup("outer", [ExceptionGroup("inner", [first, second]), third])

    assert list(tasks.leaves(error)) == [first, second, third]
    assert list(tasks.leaves(third)) == [third]


async def tidies(tidied: asyncio.Event) -> None:
    try:
        await for_ever()
    finally:
        await asyncio.sleep(0.01)
        tidied.set()


async def fails() -> None:
    raise ValueError("broken")


async def test_joining_waits_until_a_task_has_tidied_up() -> None:
    tidied = asyncio.Event()
    task = tasks.spawn(tidies(tidied), name="tidies")
    await asyncio.sleep(0)

    await tasks.cancel_and_join(task)

    assert tidied.is_set()


async def test_bounded_runs_everything_with_at_most_the_limit_at_once() -> None:
    running, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await tasks.bounded(iter(range(20)), work, limit=3, name="job")

    assert sorted(done) == list(range(20))
    assert most == 3


async def test_bounded_stops_at_the_first_failure() -> None:
    done = []

    async def work(item: int) -> None:
        if item == 2:
            raise ValueError(item)
        await asyncio.sleep(0)
        done.append(item)

    with pytest.raises(ExceptionGroup):
        await tasks.bounded(range(1000), work, limit=2, name="job")

    assert len(done) < 5


async def test_the_first_to_end_cancels_the_others() -> None:
    tidied = asyncio.Event()

    await tasks.first_of(tidies(tidied), asyncio.sleep(0.001), name="race")

    assert tidied.is_set()


async def test_the_first_to_fail_is_raised() -> None:
    with pytest.raises(ValueError, match="broken"):
        await tasks.first_of(for_ever(), fails(), name="race")


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


async def looks_only(env: Environment) -> None:
    async with drain.unit():
        await asyncio.Event().wait()


def changes(*what: str, in_unit: bool = True) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def work(env: Environment) -> None:
        async with drain.unit() if in_unit else contextlib.nullcontext():
            for each in what:
                await env.change(each, long=each == "long")
            env.said.append("done")

    return work


ONE, LONE = changes("first"), changes("lone", in_unit=False)


async def leaves_a_task_behind(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("left behind"), name="left-behind"))


async def changes_twice_at_once(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("first", long=True), name="beside"))
        await env.door_of_second.wait()
        await env.change("second", long=True)


async def ends_before_its_change(env: Environment) -> None:
    async with drain.unit():
        env.tasks.append(tasks.spawn(env.change("beside"), name="beside"))
        await asyncio.sleep(0)


async def run(work: Callable[[Environment], Coroutine[Any, Any, None]]) -> Environment:
    env = Environment()
    await env.start(lambda: work(env))
    return env


async def ended(env: Environment) -> None:
    await tasks.cancel_and_join(*env.tasks)


async def test_what_only_looks_is_not_waited_for() -> None:
    env = await run(looks_only)

    stopped = await env.stop()

    assert stopped.result() is True
    await ended(env)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        pytest.param(ONE, ["first", "done"], id="a-unit-comes-to-its-end"),
        pytest.param(
            changes("first", "second"), ["first", "second", "done"], id="its-next-change-is-made"
        ),
        pytest.param(changes("first", "long"), ["first"], id="but-none-that-takes-long"),
        pytest.param(LONE, ["lone", "done"], id="a-change-without-a-unit"),
        pytest.param(leaves_a_task_behind, ["left behind"], id="a-task-that-outlives-its-unit"),
    ],
)
async def test_a_change_under_way_comes_to_its_end(
    work: Callable[[Environment], Coroutine[Any, Any, None]], said: list[str]
) -> None:
    env = await run(work)
    stopped = await env.stop()
    assert not stopped.done()

    env.door.set()
    await settle()

    assert stopped.result() is True
    assert env.said == said
    assert env.drain.under_way == 0
    await ended(env)


@pytest.mark.parametrize("work", [changes_twice_at_once, ends_before_its_change])
async def test_a_change_beside_another_comes_to_its_end_too(
    work: Callable[[Environment], Coroutine[Any, Any, None]],
) -> None:
    env = await run(work)
    stopped = await env.stop()
    env.door_of_second.set()
    await settle()
    assert not stopped.done()

    env.door.set()
    await settle()

    assert stopped.result() is True
    assert len(env.said) == 1
    await ended(env)
    assert env.drain.under_way == 0


async def test_what_takes_too_long_is_reported() -> None:
    env = await run(ONE)
    stopped = await env.stop()

    await advance(GRACE_S - 0.1)
    assert not stopped.done()
    await advance(0.2)

    assert stopped.result() is False
    assert env.drain.under_way == 1
    await ended(env)
    assert env.drain.under_way == 0


@pytest.mark.parametrize("work", [ONE, LONE, leaves_a_task_behind])
async def test_nothing_new_is_begun(
    work: Callable[[Environment], Coroutine[Any, Any, None]],
) -> None:
    env = Environment()
    env.door.set()
    assert await env.drain.drained(GRACE_S)

    await env.start(lambda: work(env))
    await settle()

    assert env.drain.begun
    assert env.said == []
    await ended(env)


async def test_without_a_drain_everything_is_allowed() -> None:
    env = Environment()
    env.door.set()

    await changes("first", "long")(env)

    assert env.said == ["first", "long", "done"]


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


async def test_outside_of_a_fence_everything_may_be_done() -> None:
    lease_guard.check()
    async with lease_guard.limit():
        await asyncio.sleep(1e5)
    lease_guard.check()


async def test_before_the_first_lease_nothing_may_be_begun() -> None:
    governing(None)

    with pytest.raises(Lapsed):
        lease_guard.check()
    assert await work() == "not begun"


async def test_nothing_is_begun_once_the_lease_has_run_out() -> None:
    """Also where the event loop had no chance to notice."""
    governing(10)
    jump(9.9)
    lease_guard.check()

    jump(0.1)

    with pytest.raises(Lapsed):
        lease_guard.check()
    assert await work() == "not begun"


async def test_what_is_under_way_ends_with_the_lease() -> None:
    governing(10)

    assert await work() == "ended"
    assert elapsed_s() == 10


async def test_what_is_under_way_may_last_for_as_long_as_the_lease_is_renewed() -> None:
    made = governing(10)
    begun = asyncio.create_task(work())
    for _ in range(3):
        await advance(9)
        made.extend(clock.monotonic() + 10)

    assert await begun == "ended"
    assert elapsed_s() == 37
    made.extend(clock.monotonic() + 10)
    lease_guard.check()


async def test_a_lost_lease_ends_at_once_what_is_under_way() -> None:
    made = governing(10)
    begun = asyncio.create_task(work())
    await advance(1)

    made.lapse()
    # A renewal that is answered in the same breath finds its end begun.
    await asyncio.sleep(0)
    made.extend(clock.monotonic())

    assert await begun == "ended"
    assert elapsed_s() == 1


async def test_each_lease_holds_its_own_work() -> None:
    """What a task starts, in threads too, is held as the task is; the others are not."""
    governing(10)

    async def another() -> None:
        governing(100)
        await advance(50)
        lease_guard.check()
        await asyncio.to_thread(lease_guard.check)

    await asyncio.create_task(another())
    await settle()

    for way in (asyncio.create_task(_checks()), asyncio.to_thread(lease_guard.check)):
        with pytest.raises(Lapsed):
            await way
    bare = threading.Thread(target=lease_guard.check)
    bare.start()
    bare.join()


async def _checks() -> None:
    lease_guard.check()


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


async def answer_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_a_result_in_time_is_returned_at_once() -> None:
    assert await tasks.within(5, answer_after(2), name="t") == "done"
    assert elapsed_s() == 2


async def test_an_error_of_the_work_comes_out() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await tasks.within(5, work(), name="t")


async def test_a_cancellation_is_heard_together_with_the_event() -> None:
    event = asyncio.Event()
    waits = asyncio.create_task(tasks.wait_for(event, 3))
    await settle()

    event.set()
    waits.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waits
