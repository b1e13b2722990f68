"""Blocking libraries: bounded threads, and a cancelled caller is free at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading

import pytest

from ccm.cloud import Status, errors
from ccm.cloud.blocking import OUTLASTED, THREADS, blocking
from ccm.cloud.calls.handle import Handle
from tests.unit.cloud.calls.provider import cloud, ensure

WHO = contextvars.ContextVar("WHO", default="nobody")


async def until(happened: threading.Event) -> None:
    while not happened.is_set():
        await asyncio.sleep(0.001)


async def test_result_and_arguments_pass() -> None:
    assert await blocking(divmod, 7, 2) == (3, 1)
    assert await blocking(int, "11", base=2) == 3


async def test_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        await blocking(divmod, 1, 0)


async def test_it_runs_in_a_thread_with_the_context_of_the_caller() -> None:
    WHO.set("caller")

    assert await blocking(WHO.get) == "caller"
    assert await blocking(threading.get_ident) != threading.get_ident()


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


async def test_a_cancelled_caller_does_not_wait_for_the_thread() -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(5)
        ended.set()

    call = asyncio.ensure_future(blocking(work))
    await until(started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not ended.is_set()
    release.set()
    assert await blocking(ended.wait, 5)


async def test_in_a_call_of_the_daemon_the_thread_is_outlasted() -> None:
    """However often it is cancelled, the call is not over before its thread is."""
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(5)
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
    holding = [asyncio.ensure_future(blocking(release.wait, 5)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(blocking(ran.set))
    await asyncio.sleep(0.01)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    release.set()
    await asyncio.gather(*holding)
    assert not ran.is_set()


async def test_calls_about_one_service_do_not_overlap_in_threads_either() -> None:
    release, at_work = threading.Event(), []

    def work() -> None:
        at_work.append("ensure")
        release.wait(10)
        at_work.remove("ensure")

    async def synchronous() -> Status:
        await blocking(work)
        return Status()

    handle = Handle(cloud("threads", synchronous), deadline_s=0.05)
    with pytest.raises(errors.DeadlineExceeded):
        await ensure(handle, "uid-1")

    with pytest.raises(errors.Aborted):
        await ensure(handle, "uid-1")
    assert at_work == ["ensure"]

    release.set()
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(errors.Aborted):
                assert await ensure(handle, "uid-1") == Status()
                break
            await asyncio.sleep(0.01)
