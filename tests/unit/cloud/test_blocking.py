"""Blocking libraries: bounded threads, and a cancelled caller is free at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from ccm.cloud.blocking import THREADS, blocking

WHO = contextvars.ContextVar("WHO", default="nobody")


@pytest.mark.asyncio
async def test_result_and_arguments_pass() -> None:
    assert await blocking(divmod, 7, 2) == (3, 1)
    assert await blocking(int, "11", base=2) == 3


@pytest.mark.asyncio
async def test_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        await blocking(divmod, 1, 0)


@pytest.mark.asyncio
async def test_it_runs_in_a_thread_with_the_context_of_the_caller() -> None:
    WHO.set("caller")

    assert await blocking(WHO.get) == "caller"
    assert await blocking(threading.get_ident) != threading.get_ident()


@pytest.mark.asyncio
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
        release.wait(5)
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


@pytest.mark.asyncio
async def test_a_cancelled_caller_does_not_wait_for_the_thread() -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(5)
        ended.set()

    call = asyncio.ensure_future(blocking(work))
    while not started.is_set():
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not ended.is_set()
    release.set()
    assert await blocking(ended.wait, 5)
