"""The work queue: client-go's semantics, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.kube.workqueue import ShutDown, WorkQueue
from ccm.testing.clock import advance, elapsed_s

pytestmark = pytest.mark.virtual_time

Queue = WorkQueue[str]


@pytest.fixture
def queue() -> Queue:
    return WorkQueue("test")


async def test_shut_down_hands_out_what_is_queued_and_drops_the_rest(queue: Queue) -> None:
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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "after", "advance"]),
        st.integers(min_value=0, max_value=4),
        st.floats(min_value=0, max_value=3),
    ),
    max_size=40,
)


@given(steps=STEPS, workers=st.integers(min_value=1, max_value=3))
async def test_keys_are_apart_and_kept(steps: list[tuple[str, int, float]], workers: int) -> None:
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
            assert in_work[key] == 1, "one key in two hands"
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
async def test_no_lane_starves(queue: Queue, lane: dict[str, bool]) -> None:
    """However fast keys come back to one lane, the other has its turn."""
    queue.add("other", background=not lane)
    for key in "abcdef":
        queue.add(key, **lane)
    assert "other" in (await take_all(queue))[:4]


async def test_a_crowd_in_one_namespace_holds_up_no_other_and_does_not_starve(queue: Queue) -> None:
    for key in (*(f"crowd/{n}" for n in range(100)), *(f"small/{n}" for n in range(6)), "b/1"):
        queue.add(key)

    found = [await queue.get() for _ in range(12)]

    assert [key for key in found if not key.startswith("crowd")] == [
        *("small/0", "b/1", *(f"small/{n}" for n in range(1, 6)))
    ]
    assert [at for at, key in enumerate(found) if key.startswith("crowd")] == [3, 8, 9, 10, 11]
