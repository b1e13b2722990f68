"""The controller: keys, workers, concurrency slots, caches and periodic tasks."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ccm.base import log
from ccm.base.backoff import ExponentialBackoff
from ccm.base.metrics import REGISTRY
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.cloud.errors import (
    FailedPrecondition,
    ImplementedElsewhere,
    Internal,
    PermissionDenied,
    RetryAfter,
    Unavailable,
)
from ccm.kube.informer import Informer
from ccm.kube.resources import NODES
from ccm.kube.workqueue import WorkQueue
from ccm.model import Node
from ccm.runtime.backoff import RETRY_AFTER_JITTER, ItemBackoff
from ccm.runtime.controller import (
    DONE,
    NOT_READY,
    Controller,
    PassTimer,
    PeriodicTask,
    ReconcileResult,
    Watch,
)
from ccm.runtime.workers import MAX_OVERFLOW, SLOW_AFTER_S, ConcurrencySlot, Workers
from ccm.testing.builders import node
from ccm.testing.clock import advance, elapsed_s, settle
from tests.unit.controllers.drains import Server

pytestmark = pytest.mark.virtual_time


async def test_every_log_line_of_a_reconcile_has_controller_key_and_id() -> None:
    stream = io.BytesIO()
    root = logging.getLogger()
    handlers = root.handlers
    log.setup(fmt="json", stream=stream)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def reconcile(key: str) -> ReconcileResult:
        log.logger("deep").info("one")
        await asyncio.sleep(0)
        log.logger("deeper").info("two")
        seen.put_nowait(key)
        return DONE

    controller = Controller("thing", queue="things", reconcile=reconcile, workers=2)
    task = spawn(controller.run(), name="controller")
    for key in ("a", "b"):
        controller.queue.add(key)
    for _ in range(2):
        await seen.get()
    await cancel_and_join(task)
    log.setup()
    root.handlers = handlers

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    facts = {(line["controller"], line["key"], line["reconcile_id"]) for line in lines}
    assert len(lines) == 4
    assert sorted(fact[:2] for fact in facts) == [("thing", "a"), ("thing", "b")]
    assert len({fact[2] for fact in facts}) == 2


class Works:
    """Reconcile function with scripted results; records its calls and their concurrency."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.took_s = 0.0
        self.when: list[tuple[str, float]] = []
        self.hands: Counter[str] = Counter()
        self.peak = 0
        self.controller: Controller

    async def reconcile(self, key: str) -> ReconcileResult:
        self.when.append((key, round(elapsed_s(), 3)))
        self.hands[key] += 1
        assert self.hands[key] == 1, f"{key} is in two hands"
        self.peak = max(self.peak, self.hands.total())
        try:
            await asyncio.sleep(self.took_s)
        finally:
            self.hands[key] -= 1
        answer = self.answers.get(key, DONE)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, ReconcileResult)
        return answer

    def times(self, key: str) -> list[float]:
        return [when for each, when in self.when if each == key]


@contextlib.asynccontextmanager
async def running(works: Works, **parts: Any) -> AsyncIterator[WorkQueue[str]]:
    controller = works.controller = Controller(
        "test",
        queue="controller-test",
        reconcile=works.reconcile,
        backoff=ItemBackoff(ExponentialBackoff(base_s=1.0, cap_s=8.0)),
        **parts,
    )
    task = spawn(controller.run(), name="controller")
    await settle()
    try:
        yield controller.queue
        assert not task.done()
    finally:
        await cancel_and_join(task)
        controller.queue.add("late")
        assert len(controller.queue) == 0, "it takes nothing in any more"


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        (DONE, [0]),
        (NOT_READY, [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (Internal("x"), [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (KeyError("a defect"), [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87, 95, 103]),
        (PermissionDenied("no"), [0, 30, 90]),
        (FailedPrecondition("no"), [0]),
        (ImplementedElsewhere("not ours"), [0]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_error_class_decides_when_a_key_is_requeued(
    answer: object, times: list[float]
) -> None:
    works = Works(a=answer)
    async with running(works) as queue:
        queue.add("a")
        await advance(105)
    assert works.times("a") == times


async def test_failed_keys_are_retried_in_the_background_lane() -> None:
    """Retries and changes alternate, so neither delays the other."""
    works = Works(a=Internal("x"), b=Internal("x"))
    works.took_s = 0.7
    async with running(works) as queue:
        for key in "abcdef":
            queue.add(key)
        await advance(5)
        assert [key for key, _ in works.when] == list("abcadefb")
        works.answers.clear()
        await advance(20)


async def test_error_without_a_retry_resets_the_failure_count() -> None:
    works = Works(a=Internal("x"))
    async with running(works) as queue:
        queue.add("a")
        await advance(5)
        assert works.controller.backoff.failures("a") == 3
        works.answers["a"] = ImplementedElsewhere("not ours")
        await advance(1000)
        assert works.times("a") == [0, 1, 3, 7]
        assert works.controller.backoff.failures("a") == 0


async def test_end_of_an_outage_requeues_only_the_keys_that_it_stopped() -> None:
    down = Unavailable("down")
    works = Works(a=down, b=down, c=Internal("its own fault"))
    with capture_logs() as lines:
        async with running(works) as queue:
            for key in "abc":
                queue.add(key)
            await advance(16)  # all keys wait until 23 s
            works.answers.update(a=DONE, b=DONE)
            queue.add("a")
            await advance(0)
            assert works.times("a")[-1] == works.times("b")[-1] == 16
            assert works.times("c")[-1] == 15
    told = [line["event"] for line in lines if line["log_level"] in ("info", "warning")]
    assert told == [
        "cloud or API server unavailable, retrying",
        "reconcile failed",
        "cloud and API server available again",
    ]


async def test_retry_now_requeues_every_waiting_key() -> None:
    refusals = {"a": PermissionDenied("no"), "c": ImplementedElsewhere("no")}
    works = Works(**refusals, b=Unavailable("down"))
    async with running(works) as queue:
        for key in "abc":
            queue.add(key)
        await advance(10)
        works.answers.clear()
        works.controller.retry_now()
        await settle()
        assert works.times("a") == works.times("c") == [0, 10]
        assert works.times("b")[-1] == 10
        works.took_s = 5
        queue.add("d")
        await advance(1)
        works.controller.retry_now()
        await advance(20)
        assert len(works.times("d")) == 2, "a key in work is reconciled again afterwards"


async def test_watch_events_are_queued_once_all_caches_are_synced() -> None:
    nodes: Informer[Node] = Informer(None, resource="nodes")  # type: ignore[arg-type]
    seen: list[tuple[str, str, bool]] = []

    def changed(old: Node | None, new: Node | None, initial: bool) -> bool:
        seen.append((old.name if old else "", new.name if new else "", initial))
        return new is not None

    works, deleted = Works(), list[Node]()
    synced = lambda: seen.append(("synced", "", True))  # noqa: E731
    watch = Watch(informer=nodes, changed=changed, synced=synced, deleted=deleted.append)
    async with running(works, watches=[watch]):
        nodes.upsert(node("a", resource_version="1"))
        await advance(100)
        assert works.when == []
        nodes.mark_synced()
        await settle()
        assert works.when == [("a", 100)]
        nodes.upsert(node("a", resource_version="2"))
        await settle()
        nodes.remove("a")
        await settle()
        assert deleted == [], "a relist lacked the object"
        nodes.upsert(gone := node("b", resource_version="3"))
        nodes.remove("b", gone)
        assert deleted == [gone]
        await settle()
        del seen[4:]
    assert seen == [("", "a", True), ("synced", "", True), ("a", "a", False), ("a", "", False)]
    assert works.times("a") == [100, 100]
    assert not nodes._handlers, "an ended controller has no handlers"


@pytest.mark.parametrize(("at_once", "began"), [(True, [0, 13, 26, 39]), (False, [10, 23, 36])])
async def test_period_of_a_task_starts_when_its_last_run_ended(
    at_once: bool, began: list[float]
) -> None:
    seen: list[float] = []

    async def work() -> None:
        seen.append(elapsed_s())
        await asyncio.sleep(3)

    async with running(Works(), passes=[PeriodicTask(work=work, period_s=10, at_once=at_once)]):
        await advance(40)
    assert seen == began


async def test_failed_periodic_task_is_logged_and_runs_again() -> None:
    passes = 0

    async def work() -> None:
        nonlocal passes
        passes += 1
        raise KeyError("a defect")

    with capture_logs() as lines:
        async with running(Works(), passes=[PeriodicTask(work=work, period_s=10)]):
            await advance(15)

    assert passes == 2
    assert [line["event"] for line in lines] == ["pass failed unexpectedly"] * 2
    assert lines[0]["log_level"] == "error"


async def test_failing_result_keeps_the_backoff_of_its_key() -> None:
    works = Works(a=Internal("x"))
    async with running(works) as queue:
        queue.add("a")
        await advance(3.5)
        assert works.times("a") == [0, 1, 3]
        last = works.controller._last("a")
        assert last is not None
        assert (last.ago_s, last.since_s) == (0.5, 3.5)
        works.answers["a"] = ReconcileResult(failing=True)
        queue.add("a")
        await settle()
        works.answers["a"] = Internal("x")
        await advance(12)

        assert works.times("a") == [0, 1, 3, 3.5, 7, 15]


async def test_key_is_requeued_after_the_given_delay_with_jitter() -> None:
    works = Works(a=ReconcileResult(after_s=10), b=ReconcileResult(after_s=10, punctual=True))
    async with running(works) as queue:
        for key in "ab":
            queue.add(key)
        await advance(35)
    assert works.times("b") == [0, 10, 20, 30]
    assert 10 < works.times("a")[1] <= 10 * (1 + RETRY_AFTER_JITTER)


async def test_known_cause_is_a_warning_again_after_a_success() -> None:
    works = Works()
    with capture_logs() as lines:
        async with running(works) as queue:
            for answer in (FailedPrecondition("wrong"), DONE, FailedPrecondition("wrong")):
                works.answers["a"] = answer
                queue.add("a")
                await settle()
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "reconcile failed"
    ] * 2


async def test_busy_result_backs_off_like_a_retry_after_error() -> None:
    busy = RetryAfter("works on it", seconds=2)
    works = Works(a=ReconcileResult(after_s=2, busy=busy))
    async with running(works) as queue:
        queue.add("a")
        with capture_logs() as lines:
            await advance(100)

        assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
            "cloud or API server busy, retrying later"
        ]
        assert 2 <= works.times("a")[1] <= 2.4
        assert works.times("a")[-1] - works.times("a")[-2] >= 8


class Crew:
    """Workers whose keys take the given time, and fail on request."""

    def __init__(self, count: int = 1, /, **lasts: float) -> None:
        self.workers = Workers("crew", queue="crew", reconcile=self.take, count=count)
        self.lasts = lasts
        self.failing: set[str] = set()
        self.began: list[tuple[str, float]] = []
        self.hands: Counter[str] = Counter()
        self.peak = 0

    async def take(self, key: str) -> bool:
        self.began.append((key, elapsed_s()))
        self.hands[key] += 1
        assert self.hands[key] == 1, f"{key} is in two hands"
        self.peak = max(self.peak, self.hands.total())
        try:
            await asyncio.sleep(self.lasts.get(key, 0))
        finally:
            self.hands[key] -= 1
        return key not in self.failing

    def add(self, *keys: str) -> None:
        for key in keys:
            self.workers.queue.add(key)

    async def hang(self, *keys: str) -> None:
        """Let keys block their workers once, and reset the records."""
        for key in keys:
            self.add(key)
            await advance(self.lasts[key])
        self.began.clear()

    def since(self, when: float) -> dict[str, float]:
        """Return the last start of each key, in seconds relative to the given time."""
        return {key: began - when for key, began in self.began}

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async def run() -> None:
            async with NamedTaskGroup() as group:
                self.workers.start(group)

        task = spawn(run(), name="crew")
        await settle()
        try:
            yield
        finally:
            await cancel_and_join(task)
        assert task.cancelled()


def lent() -> float | None:
    return REGISTRY.get_sample_value("ccm_overflow_workers", {"name": "crew"})


async def test_overflow_worker_exists_while_a_worker_is_stuck() -> None:
    crew = Crew(slow=100.0, a=10.0, b=10.0)
    async with crew.at_work():
        crew.add("slow", "a", "b")
        await advance(SLOW_AFTER_S - 1)
        assert (crew.since(0), lent()) == ({"slow": 0}, 0)
        await advance(31)
        assert crew.since(0) == {"slow": 0, "a": 30, "b": 40}
        assert lent() == 1
        await advance(40)
        assert lent() == 0
        crew.add("a", "b")
        await advance(20)
        assert crew.since(100) == {"slow": -100, "a": 0, "b": 10}


async def test_key_that_hung_before_does_not_occupy_the_last_worker() -> None:
    crew = Crew(slow=100.0, a=10.0)
    async with crew.at_work():
        await crew.hang("slow")
        crew.add("slow")
        await advance(1)
        crew.add("a")
        await advance(1)
        assert crew.since(100) == {"slow": 0, "a": 1}
        assert lent() == 1


async def test_isolated_key_returns_to_normal_after_a_quick_success() -> None:
    crew = Crew(slow=100.0)
    queue = crew.workers.queue
    async with crew.at_work():
        await crew.hang("slow")
        crew.lasts.clear()
        crew.failing = {"slow"}
        crew.add("slow")
        await settle()
        assert queue.is_isolated("slow"), "a key that fails quickly may hang again"
        crew.failing.clear()
        crew.add("slow")
        await settle()
        assert not queue.is_isolated("slow")


async def test_overflow_workers_are_limited_and_their_exhaustion_is_logged() -> None:
    slow = {f"slow{number}": 10_000.0 for number in range(MAX_OVERFLOW + 5)}
    crew = Crew(**slow)
    with capture_logs() as lines:
        async with crew.at_work():
            crew.add(*slow)
            await advance(2_000)
            assert (crew.hands.total(), lent()) == (1 + MAX_OVERFLOW, MAX_OVERFLOW)
            await advance(30_000)
            assert (crew.peak, lent()) == (1 + MAX_OVERFLOW, 0)
            crew.add("a")
            await settle()
            assert crew.since(32_000)["a"] == 0
    told = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert told[0].startswith("slow objects occupy all overflow workers")
    assert told[-1] == "overflow workers available again"


ADDED = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=30),
        st.sampled_from([0.0, 1.0, 29.0, 31.0, 500.0]),
        st.booleans(),
        st.floats(min_value=0, max_value=100),
    ),
    max_size=60,
)


@given(added=ADDED, count=st.integers(min_value=1, max_value=3))
async def test_every_key_is_processed_by_one_worker_despite_hanging_keys(
    added: list[tuple[int, float, bool, float]], count: int
) -> None:
    crew = Crew(count)
    asked_at: dict[str, float] = {}
    async with crew.at_work():
        for number, lasts, fails, pause in added:
            key = str(number)
            crew.lasts[key] = lasts
            crew.failing = crew.failing | {key} if fails else crew.failing - {key}
            asked_at[key] = elapsed_s()
            crew.add(key)
            await advance(pause)
        await advance(60 * 500)
        assert crew.hands.total() == 0
        assert crew.peak <= count + MAX_OVERFLOW
        for key, when in asked_at.items():
            assert crew.since(when)[key] >= 0, "an addition was lost"
        crew.began.clear()
        crew.lasts = dict.fromkeys("abcdef", 1.0)
        crew.add(*crew.lasts)
        await advance(0)
        assert len(crew.began) == count, "workers are as many as at the start"


async def test_released_slot_is_free_during_a_wait() -> None:
    free, at_once, most = asyncio.Semaphore(2), 0, 0

    async def work() -> None:
        nonlocal at_once, most
        async with ConcurrencySlot(free) as turn:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1)
            at_once -= 1
            async with turn.release():
                await asyncio.sleep(100)
            at_once += 1
            most = max(most, at_once)
            at_once -= 1

    began = asyncio.get_running_loop().time()
    async with NamedTaskGroup() as group:
        for number in range(10):
            group.start(work(), name=str(number))

    assert most == 2
    assert asyncio.get_running_loop().time() - began == pytest.approx(105)


async def test_cancelled_task_does_not_wait_for_a_slot() -> None:
    free = asyncio.Semaphore(1)

    async def work() -> None:
        async with ConcurrencySlot(free) as turn, turn.release():
            await asyncio.sleep(1000)

    task = spawn(work(), name="work")
    await settle()
    async with ConcurrencySlot(free):
        await cancel_and_join(task)
        assert free.locked()

    assert not free.locked()


@pytest.mark.parametrize(("joins", "ends"), [(False, 3), (True, 4)])
async def test_pass_timer_ends_with_the_last_key(joins: bool, ends: float) -> None:
    """Two keys start at 0 s, one more at 1 s; they finish at 2, 3 and 4 s."""
    seen: list[float] = []
    timer = PassTimer(seen.append)
    timer.start(["a", "b"], joins=joins)
    await advance(1)
    timer.start(["b", "c"], joins=joins)
    for key in ("a", "b", "c"):
        await advance(1)
        timer.finish(key)
    assert seen == [ends]


def informer(server: Server) -> Informer[Node]:
    return Informer(server.client().resource(NODES), resource=NODES.plural)
