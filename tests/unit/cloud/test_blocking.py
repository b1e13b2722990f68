"""Blocking libraries: bounded threads, and a cancelled caller is free at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ccm.base import clock
from ccm.base.lease_guard import LeaseExpired, LeaseGuard
from ccm.cloud.blocking import MAX_THREADS, WAIT_FOR_THREAD, blocking
from tests.waiting import DEADLINE_S


async def until(happened: threading.Event) -> None:
    while not happened.is_set():
        await asyncio.sleep(0.001)


async def test_blocking_threads_are_limited() -> None:
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

    calls = [asyncio.ensure_future(blocking(work)) for _ in range(MAX_THREADS * 2)]
    for _ in range(MAX_THREADS):
        while not full.acquire(blocking=False):
            await asyncio.sleep(0.001)
    release.set()
    await asyncio.gather(*calls)

    assert most == MAX_THREADS
    assert running == 0


async def test_cancelled_blocking_call_waits_for_its_thread() -> None:
    """Even after several cancellations, the call ends only after its thread."""
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(DEADLINE_S)
        raise ValueError("nobody wants to know")

    WAIT_FOR_THREAD.set(True)
    call = asyncio.ensure_future(blocking(work))
    await until(started)
    for _ in range(3):
        call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()

    release.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_blocking_call_that_got_its_thread_after_lease_expiry_is_refused() -> None:
    lease = LeaseGuard()
    lease.extend(clock.monotonic() + 60)
    lease.activate()
    release, ran = threading.Event(), threading.Event()
    holding = [
        asyncio.ensure_future(blocking(release.wait, DEADLINE_S)) for _ in range(MAX_THREADS)
    ]
    waiting = asyncio.ensure_future(blocking(ran.set))
    await asyncio.sleep(0.01)

    lease.expire()
    release.set()

    await asyncio.gather(*holding, return_exceptions=True)
    with pytest.raises(LeaseExpired):
        await waiting
    assert not ran.is_set()
