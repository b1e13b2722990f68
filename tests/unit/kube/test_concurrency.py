"""Requests at once: few while answers are fast, more while somebody waits."""

from __future__ import annotations

import asyncio

import pytest

from ccm.base.tasks import spawn
from ccm.kube.connections import CONCURRENCY, ConcurrencyLimiter
from ccm.testing.clock import elapsed_s, settle

pytestmark = pytest.mark.virtual_time


class Traffic:
    """Requests that take a while, and how many were under way at once."""

    def __init__(self) -> None:
        self.limiter = ConcurrencyLimiter()
        self.now = self.most = 0
        self.order: list[int] = []

    async def request(self, number: int, seconds: float) -> None:
        async with self.limiter:
            self.order.append(number)
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(seconds)
            self.now -= 1

    async def send(self, count: int, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self.request(number, seconds))


async def test_a_slow_server_gets_one_more_for_each_while_that_somebody_waits() -> None:
    traffic = Traffic()
    await traffic.send(1000, 1.0)
    assert traffic.most > 10 * CONCURRENCY
    # At the first limit it would be 125 s.
    assert elapsed_s() < 20.0
    assert traffic.order == list(range(1000))


async def test_a_busy_server_gets_no_more() -> None:
    traffic = Traffic()
    await traffic.send(1000, 0.03)
    assert traffic.most == CONCURRENCY


async def test_a_turn_that_comes_with_a_cancellation_is_passed_on() -> None:
    traffic = Traffic()
    first = [spawn(traffic.request(n, 0.001), name="first") for n in range(CONCURRENCY)]
    late = [spawn(traffic.request(100 + n, 0.001), name="late") for n in range(CONCURRENCY)]
    await settle()
    for task in first:
        task.add_done_callback(lambda _: [each.cancel() for each in late])
    await asyncio.wait({*first, *late})
    await asyncio.wait_for(traffic.send(CONCURRENCY, 0.001), 0.01)
    assert traffic.limiter._busy == 0
