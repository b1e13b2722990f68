"""Calls that do not end when they should: the caller goes on, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import metrics
from ccm.cloud import Cloud, Status, errors
from ccm.cloud.guarded import DEADLINES_S, READ_DEADLINE_S, Guarded
from ccm.cloud.underway import GRACE_S, MOST_ABANDONED, REMARKABLE_S
from tests.unit.cloud.virtual_time import in_virtual_time

ENSURE = "ensure_load_balancer"


class Stubborn:
    """A provider whose calls swallow every cancellation until they are let go."""

    def __init__(self) -> None:
        self.entered = 0
        self.ended = 0
        self.leave = asyncio.Event()

    async def __call__(self, _: Cloud) -> Status:
        self.entered += 1
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                continue
        self.ended += 1
        return Status()


async def forever(_: Cloud) -> None:
    await asyncio.sleep(1e6)


async def fine(_: Cloud) -> str:
    return "fine"


def now() -> float:
    return asyncio.get_running_loop().time()


def sample(name: str, provider: str, operation: str = ENSURE) -> float:
    labels = {"provider": provider, "operation": operation}
    return metrics.REGISTRY.get_sample_value(f"ccm_cloud_calls_{name}", labels) or 0.0


async def settle() -> None:
    """Let tasks that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@in_virtual_time
async def test_the_caller_goes_on_a_grace_after_the_deadline() -> None:
    provider, guard = Stubborn(), Guarded(Cloud(name="s1"))
    started = now()

    with pytest.raises(errors.DeadlineExceeded, match="took longer than 900 s"):
        await guard.call(ENSURE, provider)

    assert now() - started == pytest.approx(DEADLINES_S[ENSURE] + GRACE_S)
    assert provider.ended == 0
    assert guard.abandoned_calls == 1
    assert guard.calls_under_way(guard.cloud) == 1
    assert sample("left_behind", "s1") == sample("under_way", "s1") == 1
    assert sample("abandoned_total", "s1") == 1

    provider.leave.set()
    await settle()

    assert provider.ended == 1
    assert guard.abandoned_calls == guard.calls_under_way(guard.cloud) == 0
    assert sample("left_behind", "s1") == sample("under_way", "s1") == 0
    assert sample("abandoned_total", "s1") == 1


@in_virtual_time
async def test_a_call_that_cleans_up_in_time_is_waited_for() -> None:
    cleaned = []

    async def tidy(_: Cloud) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(GRACE_S / 2)
            cleaned.append(now())

    guard = Guarded(Cloud(name="s2"))
    with pytest.raises(errors.DeadlineExceeded):
        await guard.call("instance_exists", tidy)

    assert cleaned == [now()]
    assert guard.abandoned_calls == 0
    assert sample("abandoned_total", "s2", "instance_exists") == 0


@in_virtual_time
async def test_a_cancelled_caller_ends_after_the_grace() -> None:
    """Lost leadership and a stop do not wait for a provider either."""
    provider, guard = Stubborn(), Guarded(Cloud(name="s3"))
    caller = asyncio.ensure_future(guard.call(ENSURE, provider))
    await settle()
    started = now()

    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert now() - started == pytest.approx(GRACE_S)
    assert guard.abandoned_calls == 1
    provider.leave.set()
    await settle()


@in_virtual_time
async def test_whoever_is_cancelled_twice_waits_for_nothing() -> None:
    provider, guard = Stubborn(), Guarded(Cloud(name="s4"))
    caller = asyncio.ensure_future(guard.call(ENSURE, provider))
    await settle()
    started = now()

    caller.cancel()
    await settle()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert now() == started
    assert guard.abandoned_calls == 1
    provider.leave.set()
    await settle()


@in_virtual_time
async def test_a_cancellation_in_the_grace_after_a_deadline_is_passed_on() -> None:
    provider, guard = Stubborn(), Guarded(Cloud(name="s5"), deadline_s=5)
    caller = asyncio.ensure_future(guard.call(ENSURE, provider))
    await asyncio.sleep(5 + GRACE_S / 2)

    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert guard.abandoned_calls == 1
    provider.leave.set()
    await settle()


@in_virtual_time
async def test_nothing_else_is_done_about_the_subject_meanwhile() -> None:
    """Calls about one Service never overlap, not even with one that was given up."""
    provider, guard = Stubborn(), Guarded(Cloud(name="s7"), deadline_s=5)
    with pytest.raises(errors.DeadlineExceeded):
        await guard.call(ENSURE, provider, subject="uid-1")

    for operation in (ENSURE, "get_load_balancer", "ensure_load_balancer_deleted"):
        with pytest.raises(errors.Aborted, match=f"an earlier {ENSURE} was cancelled"):
            await guard.call(operation, fine, subject="uid-1")
    assert await guard.call(ENSURE, fine, subject="uid-2") == "fine"
    assert await guard.call("instance_exists", fine) == "fine"

    guard.swap(Cloud(name="s7-new"))
    with pytest.raises(errors.Aborted):
        await guard.call(ENSURE, fine, subject="uid-1")

    provider.leave.set()
    await settle()
    assert await guard.call(ENSURE, fine, subject="uid-1") == "fine"


@in_virtual_time
async def test_a_refused_call_neither_counts_nor_costs_a_turn() -> None:
    class Counting:
        taken = 0

        async def acquire(self) -> float:
            self.taken += 1
            return 0.0

    limiter, seen = Counting(), []
    provider, guard = Stubborn(), Guarded(Cloud(name="s8"), deadline_s=5, limiter=limiter)
    with pytest.raises(errors.DeadlineExceeded):
        await guard.call(ENSURE, provider, subject="uid-1")

    with pytest.raises(errors.Aborted):
        await guard.call(ENSURE, fine, subject="uid-1", observer=lambda *t: seen.append(t))

    assert (limiter.taken, seen) == (1, [])
    provider.leave.set()
    await settle()


@in_virtual_time
async def test_only_so_many_calls_of_an_operation_are_left_behind() -> None:
    provider, guard = Stubborn(), Guarded(Cloud(name="s9"), deadline_s=5)
    for number in range(MOST_ABANDONED):
        with pytest.raises(errors.DeadlineExceeded):
            await guard.call(ENSURE, provider, subject=f"uid-{number}")

    with pytest.raises(errors.Unavailable, match=f"{MOST_ABANDONED} earlier ones"):
        await guard.call(ENSURE, provider, subject="another")
    assert provider.entered == MOST_ABANDONED
    assert await guard.call("update_load_balancer", fine, subject="another") == "fine"

    guard.swap(Cloud(name="s9-new"))
    assert await guard.call(ENSURE, fine, subject="another") == "fine"
    provider.leave.set()
    await settle()


def about(lines: Sequence[Any], text: str) -> list[Any]:
    return [line for line in lines if text in line["event"]]


@in_virtual_time
async def test_a_call_that_takes_long_is_said_while_it_lasts() -> None:
    async def slow(_: Cloud) -> str:
        await asyncio.sleep(REMARKABLE_S + 10)
        return "done"

    async def look() -> None:
        await asyncio.sleep(REMARKABLE_S + 1)
        (line,) = about(lines, "cloud call takes long")
        assert (line["operation"], line["subject"]) == (ENSURE, "uid-1")

    with capture_logs() as lines:
        looking = asyncio.ensure_future(look())
        assert await Guarded(Cloud(name="s10")).call(ENSURE, slow, subject="uid-1") == "done"
        await looking

    assert len(about(lines, "took long has ended")) == 1


@in_virtual_time
async def test_a_call_in_good_time_is_not_worth_a_word() -> None:
    async def prompt(_: Cloud) -> None:
        await asyncio.sleep(REMARKABLE_S - 1)

    with capture_logs() as lines:
        await Guarded(Cloud(name="s11")).call(ENSURE, prompt)
        with pytest.raises(errors.DeadlineExceeded):
            await Guarded(Cloud(name="s11"), deadline_s=5).call(ENSURE, forever)

    assert about(lines, "takes long") == []
    assert READ_DEADLINE_S > REMARKABLE_S
