"""The work queue: client-go's semantics, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.metrics import REGISTRY
from ccm.kube.workqueue import ShutDown, WorkQueue
from ccm.testing.clock import advance, elapsed_s, settle

pytestmark = pytest.mark.virtual_time

Queue = WorkQueue[str]


@pytest.fixture
def queue() -> Iterator[Queue]:
    yield WorkQueue("test")
    # A new queue of that name takes over the metrics. They must not show keys that the test left
    # in processing: in later tests of this process, the health check would find a hanging worker.
    WorkQueue("test")


async def test_shut_down_delivers_queued_keys_and_drops_delayed_ones(queue: Queue) -> None:
    queue.add("a")
    queue.add_after("late", 5)
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    queue.shut_down()
    queue.add("c")
    queue.add_after("d", 1)
    assert await queue.get() == "b"
    queue.done("b")
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    with pytest.raises(ShutDown):
        await queue.get()
    await advance(10)
    assert len(queue) == 0


async def test_cancelled_worker_passes_its_key_to_another(queue: Queue) -> None:
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"
    assert first.cancelled()


async def test_earliest_of_several_delays_wins(queue: Queue) -> None:
    for delay_s in (5, 2, 9):
        queue.add_after("a", delay_s)
    assert queue.due_s("a") == 2
    assert await queue.get() == "a"
    assert elapsed_s() == 2
    queue.shut_down()


async def test_workqueue_metrics_match_client_go() -> None:
    def metric(suffix: str) -> float | None:
        return REGISTRY.get_sample_value(f"workqueue_{suffix}", {"name": "measured"})

    queue = Queue("measured")
    for key in "aab":
        queue.add(key)
    assert [metric("depth"), metric("adds_total")] == [2, 2]
    await advance(3)
    await queue.get()
    await advance(2)
    await queue.get()
    assert [metric("depth"), metric("queue_duration_seconds_sum")] == [0, 8]
    await advance(1)
    assert metric("unfinished_work_seconds") == 4
    assert metric("longest_running_processor_seconds") == 3
    queue.done("a")
    queue.done("b")
    assert metric("work_duration_seconds_sum") == 4
    assert metric("longest_running_processor_seconds") == 0
    queue.add_after("c", 0)
    queue.add_after("d", 5)
    assert metric("retries_total") == 2
    queue.shut_down()
    await advance(10)
    assert [metric("depth"), metric("adds_total")] == [1, 3]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "advance"]),
        st.integers(min_value=0, max_value=4),
        st.floats(min_value=0, max_value=3),
    ),
    max_size=40,
)


@given(steps=STEPS, workers=st.integers(min_value=1, max_value=3))
async def test_key_is_processed_by_one_worker_at_a_time_and_never_lost(
    steps: list[tuple[str, int, float]], workers: int
) -> None:
    queue: WorkQueue[int] = WorkQueue("property")
    in_work: Counter[int] = Counter()
    asked_at: dict[int, float] = {}
    began_at: dict[int, float] = {}

    async def worker() -> None:
        while True:
            try:
                key = await queue.get()
            except ShutDown:
                return
            in_work[key] += 1
            assert in_work[key] == 1, "a key is processed by two workers"
            began_at[key] = elapsed_s()
            await asyncio.sleep(0.7)
            in_work[key] -= 1
            queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
        for action, key, seconds in steps:
            if action == "advance":
                await advance(seconds)
                continue
            asked_at[key] = elapsed_s()
            if action == "add":
                queue.add(key)
            else:
                queue.add_after(key, seconds)
        await advance(60)
        for key, moment in asked_at.items():
            assert began_at[key] >= moment, "an addition was lost"
        queue.shut_down()


async def take_all(queue: Queue) -> list[str]:
    taken = []
    while len(queue):
        key = await queue.get()
        taken.append(key)
        queue.done(key)
    return taken


BACKGROUND = {"background": True}


@pytest.mark.parametrize("lane", [{}, BACKGROUND], ids=["foreground", "background"])
async def test_foreground_and_background_lanes_do_not_starve(
    queue: Queue, lane: dict[str, bool]
) -> None:
    """Keys that return quickly to one lane do not block the other lane."""
    queue.add("other", background=not lane)
    for key in "abcdef":
        queue.add(key, **lane)
    assert "other" in (await take_all(queue))[:4]


async def test_isolated_keys_are_delivered_only_while_a_worker_is_spare() -> None:
    can_spare = False
    queue = Queue("apart", can_spare=lambda: can_spare)
    for key in "ab":
        queue.add(key)
        assert await queue.get() == key
        queue.set_isolated(key, True)
        queue.add(key)
        queue.done(key)
    queue.add("c")
    assert await queue.get() == "c"
    waiting = asyncio.create_task(queue.get())
    await settle()
    assert not waiting.done()
    can_spare = True
    queue.done("c")
    assert await waiting == "a"
    queue.set_isolated("a", False)
    queue.add("a")
    queue.done("a")
    assert await take_all(queue) == ["a", "b"]


async def test_busy_namespace_neither_delays_others_nor_starves(queue: Queue) -> None:
    for key in (*(f"crowd/{n}" for n in range(100)), *(f"small/{n}" for n in range(6)), "b/1"):
        queue.add(key)

    found = [await queue.get() for _ in range(12)]

    assert [key for key in found if not key.startswith("crowd")] == [
        *("small/0", "b/1", *(f"small/{n}" for n in range(1, 6)))
    ]
    assert [at for at, key in enumerate(found) if key.startswith("crowd")] == [3, 8, 9, 10, 11]
