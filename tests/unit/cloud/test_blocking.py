"""Blocking libraries: bounded threads, and a cancelled caller is free at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator

import pytest

from ccm.base import clock, metrics
from ccm.base.lease_guard import Lapsed, LeaseGuard
from ccm.cloud.blocking import KIND, OUTLASTED, THREADS, blocking, exhausted
from tests.handclock import HandClock
from tests.waiting import DEADLINE_S

WHO = contextvars.ContextVar("WHO", default="nobody")


async def until(happened: threading.Event) -> None:
    while not happened.is_set():
        await asyncio.sleep(0.001)


async def test_result_and_arguments_pass() -> None:
    assert await blocking(divmod, 7, 2) == (3, 1)
    assert await blocking(int, "11", base=2) == 3


async def test_threads_are_bounded() -> None:
    running, most = 0, 0
    lock, release = threading.Lock(), threading.Event()
    full = threading.Semaphore(0)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        full.release()
        release.wait(DEADLINE_S)
        with lock:
            running -= 1

    calls = [asyncio.ensure_future(blocking(work)) for _ in range(THREADS * 2)]
    for _ in range(THREADS):
        while not full.acquire(blocking=False):
            await asyncio.sleep(0.001)
    release.set()
    await asyncio.gather(*calls)

    assert most == THREADS
    assert running == 0


@contextlib.asynccontextmanager
async def all_threads_taken(kind: str) -> AsyncIterator[threading.Event]:
    """Every thread for one kind of call is at work until the event is set."""
    release = threading.Event()
    KIND.set(kind)
    holding = [asyncio.ensure_future(blocking(release.wait, DEADLINE_S)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    try:
        yield release
    finally:
        release.set()
        await asyncio.gather(*holding)


async def test_threads_of_one_kind_that_hang_do_not_hold_up_the_others() -> None:
    async with all_threads_taken("ensure"):
        KIND.set("exists")
        async with asyncio.timeout(DEADLINE_S):
            assert await blocking(int, "11", base=2) == 3


async def test_it_is_told_for_how_long_no_thread_became_free(hand: HandClock) -> None:
    def free() -> float | None:
        labels = {"operation": "told"}
        return metrics.REGISTRY.get_sample_value("ccm_cloud_threads_free", labels)

    KIND.set("told")
    await blocking(int)
    hand.advance(50)
    async with all_threads_taken("told") as release:
        assert (exhausted(), free()) == ({"told": 0.0}, 0)
        hand.advance(100)
        waiting = asyncio.ensure_future(blocking(int))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert exhausted() == {"told": 100.0}, "what never had a thread frees none"
        release.set()

    assert (exhausted(), free()) == ({}, THREADS)


async def test_in_a_call_of_the_daemon_the_thread_is_outlasted() -> None:
    """However often it is cancelled, the call is not over before its thread is."""
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(DEADLINE_S)
        raise ValueError("nobody wants to know")

    OUTLASTED.set(True)
    call = asyncio.ensure_future(blocking(work))
    await until(started)
    for _ in range(3):
        call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()

    release.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_what_still_waits_for_a_thread_is_not_outlasted() -> None:
    OUTLASTED.set(True)
    release, ran = threading.Event(), threading.Event()
    holding = [asyncio.ensure_future(blocking(release.wait, DEADLINE_S)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(blocking(ran.set))
    await asyncio.sleep(0.01)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    release.set()
    await asyncio.gather(*holding)
    assert not ran.is_set()


async def test_what_waited_for_a_thread_until_the_lease_ran_out_is_not_begun() -> None:
    lease = LeaseGuard()
    lease.extend(clock.monotonic() + 60)
    lease.govern()
    release, ran = threading.Event(), threading.Event()
    holding = [asyncio.ensure_future(blocking(release.wait, DEADLINE_S)) for _ in range(THREADS)]
    waiting = asyncio.ensure_future(blocking(ran.set))
    await asyncio.sleep(0.01)

    lease.lapse()
    release.set()

    await asyncio.gather(*holding, return_exceptions=True)
    with pytest.raises(Lapsed):
        await waiting
    assert not ran.is_set()
