"""Workers of a controller: whose turn it is, when a key returns, what lines carry."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from ccm.base import log
from ccm.base.backoff import Exponential, PerItem
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.errors import (
    FailedPrecondition,
    ImplementedElsewhere,
    Internal,
    PermissionDenied,
    RetryAfter,
    Unavailable,
)
from ccm.kube.workqueue import WorkQueue
from ccm.runtime.loop import DONE, NOT_YET, WAKE_PAUSE_S, Loop, OnError, Result
from ccm.runtime.retry import Again
from ccm.testing.clock import FakeClock


async def test_every_line_of_one_reconcile_has_its_controller_key_and_id() -> None:
    stream = io.BytesIO()
    root = logging.getLogger()
    handlers = root.handlers
    log.setup(fmt="json", stream=stream)
    queue: WorkQueue[str] = WorkQueue("things")
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def reconcile(key: str) -> Result:
        log.logger("deep").info("one")
        await asyncio.sleep(0)
        log.logger("deeper").info("two")
        seen.put_nowait(key)
        return DONE

    loop = spawn(Loop("thing", queue=queue, reconcile=reconcile, workers=2).run(), name="loop")
    for key in ("a", "b"):
        queue.add(key)
    for _ in range(2):
        await seen.get()
    await cancel_and_join(loop)
    log.setup()
    root.handlers = handlers

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    facts = {(line["controller"], line["key"], line["reconcile_id"]) for line in lines}
    assert len(lines) == 4
    assert sorted(fact[:2] for fact in facts) == [("thing", "a"), ("thing", "b")]
    assert len({fact[2] for fact in facts}) == 2


class Works:
    """A reconcile that does what the test wrote down, and notes when and how many at once."""

    def __init__(self, clock: FakeClock, **answers: object) -> None:
        self.clock = clock
        self.answers = answers
        self.took_s = 0.0
        self.when: list[tuple[str, float]] = []
        self.hands: Counter[str] = Counter()
        self.peak = 0

    async def reconcile(self, key: str) -> Result:
        self.when.append((key, round(self.clock.elapsed_s, 3)))
        self.hands[key] += 1
        assert self.hands[key] == 1, f"{key} is in two hands"
        self.peak = max(self.peak, self.hands.total())
        try:
            await self.clock.sleep(self.took_s)
        finally:
            self.hands[key] -= 1
        answer = self.answers.get(key, DONE)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Result)
        return answer

    def times(self, key: str) -> list[float]:
        return [when for each, when in self.when if each == key]


@contextlib.asynccontextmanager
async def running(
    works: Works, *, workers: int = 1, on_error: OnError | None = None
) -> AsyncIterator[WorkQueue[str]]:
    policy = PerItem(policy=Exponential(base_s=1.0, cap_s=8.0))
    queue = WorkQueue[str]("loop-test", policy=policy, clock=works.clock)
    loop = Loop(
        "test",
        queue=queue,
        reconcile=works.reconcile,
        workers=workers,
        on_error=on_error,
        clock=works.clock,
    )
    task = spawn(loop.run(), name="loop")
    await works.clock.advance(0)
    try:
        yield queue
        assert not task.done()
    finally:
        await cancel_and_join(task)
        assert queue.is_shutting_down
        await queue.drained(0)


async def test_one_key_is_never_in_two_hands() -> None:
    works = Works(FakeClock())
    works.took_s = 10
    async with running(works, workers=3) as queue:
        for _ in range(5):
            for key in "ab":
                queue.add(key)
            await works.clock.advance(1)
        await works.clock.advance(60)
    # What was added while it was in work comes once more, however often it was added.
    assert works.times("a") == works.times("b") == [0, 10]
    assert works.peak == 2


async def test_no_more_keys_are_in_work_than_there_are_workers() -> None:
    works = Works(FakeClock())
    works.took_s = 1
    async with running(works, workers=3) as queue:
        for number in range(10):
            queue.add(str(number))
        await works.clock.advance(10)
    assert works.peak == 3
    assert len(works.when) == 10


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (DONE, [0]),
        (Result(after_s=25), [0, 25, 50, 75, 100]),
        (NOT_YET, [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (Internal("x"), [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (KeyError("a defect"), [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (RetryAfter("busy", seconds=40), [0, 40, 80]),
        (PermissionDenied("no"), [0, 30, 90]),
        (FailedPrecondition("no"), [0]),
        (ImplementedElsewhere("not ours"), [0]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_class_of_the_error_decides_when_a_key_returns(
    answer: object, times: list[float]
) -> None:
    works = Works(FakeClock(), a=answer)
    async with running(works) as queue:
        queue.add("a")
        await works.clock.advance(105)
    assert works.times("a") == times


async def test_never_forgets_the_failures_before() -> None:
    works = Works(FakeClock(), a=Internal("x"))
    async with running(works) as queue:
        queue.add("a")
        await works.clock.advance(5)
        assert queue.num_requeues("a") == 3
        works.answers["a"] = ImplementedElsewhere("not ours")
        await works.clock.advance(1000)
        assert works.times("a") == [0, 1, 3, 7]
        assert queue.num_requeues("a") == 0


async def test_success_begins_the_count_anew() -> None:
    works = Works(FakeClock(), a=PermissionDenied("no"))
    async with running(works) as queue:
        queue.add("a")
        await works.clock.advance(80)  # tried at 0 and 30; the next would come at 90
        works.answers["a"] = DONE
        await works.clock.advance(20)
        works.answers["a"] = PermissionDenied("no")
        queue.add("a")
        await works.clock.advance(29)
        assert works.times("a") == [0, 30, 90, 100]
        await works.clock.advance(2)
        assert works.times("a")[-1] == 130


async def test_the_end_of_an_outage_wakes_what_it_stopped_and_nothing_else() -> None:
    down = Unavailable("down")
    works = Works(FakeClock(), a=down, b=down, c=Internal("its own fault"))
    async with running(works) as queue:
        for key in "abc":
            queue.add(key)
        await works.clock.advance(16)  # all wait until 23
        works.answers.update(a=DONE, b=DONE)
        queue.add("a")
        await works.clock.advance(0)
        assert works.times("a")[-1] == works.times("b")[-1] == 16
        assert works.times("c")[-1] == 15


async def test_what_an_outage_stopped_is_not_woken_in_a_hurry() -> None:
    down = Unavailable("down")
    works = Works(FakeClock(), a=down, b=down, c=down)
    async with running(works) as queue:
        for key in "abc":
            queue.add(key)
        await works.clock.advance(16)
        works.answers["a"] = DONE
        queue.add("a")
        await works.clock.advance(0)
        # "b" and "c" were woken and failed; now they follow their back-off again.
        works.answers["b"] = DONE
        await works.clock.advance(WAKE_PAUSE_S / 2)
        assert works.times("b")[-2:] == [16, 17]
        assert works.times("c")[-2:] == [16, 17]


async def test_errors_are_told_with_their_answer() -> None:
    told: list[tuple[str, str, bool, bool]] = []

    def note(key: str, error: Exception, answer: Again) -> None:
        told.append((key, type(error).__name__, answer.outage, answer.defect))

    works = Works(FakeClock(), a=Unavailable("down"), b=KeyError("a defect"))
    async with running(works, on_error=note) as queue:
        for key in "abc":
            queue.add(key)
        await works.clock.advance(0)
    assert told == [("a", "Unavailable", True, False), ("b", "KeyError", False, True)]
