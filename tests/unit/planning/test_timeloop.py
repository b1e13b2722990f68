"""An event loop that skips what only waits, and waits for the world."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from ccm.base import clock
from ccm.planning.timeloop import HurryingLoop, held, hurrying

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=HurryingLoop) as runner:
        return runner.run(work)


def test_in_a_hurry_an_hour_takes_no_time() -> None:
    async def work() -> tuple[float, float, float]:
        wall, steady, really = clock.now(), clock.monotonic(), time.monotonic()
        with hurrying():
            await asyncio.sleep(3600)
        passed = (clock.now() - wall).total_seconds()
        return passed, clock.monotonic() - steady, time.monotonic() - really

    passed, steady, really = run(work())

    assert 3600 <= passed <= 3600 + really + 0.01
    assert 3600 <= steady <= 3600 + really + 0.01
    assert really < 3600


def test_in_a_hurry_computing_takes_no_time_and_time_goes_on_from_there() -> None:
    """On a slow machine the same is planned as on a fast one."""

    async def work() -> list[float]:
        with hurrying():
            began = clock.monotonic()
            time.sleep(0.05)
            found = [clock.monotonic() - began]
            await asyncio.sleep(10)
            really = time.monotonic()
            found.append(clock.monotonic() - began)
        found.append(clock.monotonic() - began)
        return [*found, time.monotonic() - really]

    computed, slept, after, really = run(work())

    assert computed == 0
    assert 10 <= slept <= after
    assert slept < 10.05
    assert after - slept <= really


def test_without_a_hurry_time_is_the_machines() -> None:
    async def work() -> float:
        began = time.monotonic()
        await asyncio.sleep(0.05)
        return time.monotonic() - began

    assert run(work()) >= 0.05


def test_who_waits_for_the_world_holds_it() -> None:
    """A deadline of an hour does not pass while an answer comes."""

    async def work() -> str:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()
        thread = threading.Timer(
            0.05, lambda: loop.call_soon_threadsafe(answered.set_result, "here")
        )
        thread.start()
        with hurrying(), held():
            async with asyncio.timeout(3600):
                return await answered

    assert run(work()) == "here"


def test_who_waits_for_a_thread_holds_it() -> None:
    async def work() -> None:
        with hurrying():
            async with asyncio.timeout(3600):
                await asyncio.to_thread(time.sleep, 0.05)

    run(work())


def test_time_is_skipped_in_its_own_thread_only() -> None:
    async def work() -> float:
        with hurrying():
            await asyncio.sleep(3600)
        told: list[float] = []
        other = threading.Thread(target=lambda: told.append(clock.monotonic()))
        other.start()
        other.join()
        return told[0] - time.monotonic()

    assert abs(run(work())) < 1800


async def test_on_another_loop_nothing_is_skipped() -> None:
    began = time.monotonic()

    with hurrying(), held():
        await asyncio.sleep(0.02)

    assert time.monotonic() - began >= 0.02
