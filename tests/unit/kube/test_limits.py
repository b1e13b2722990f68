"""A client's rate limit as the server sees it: burst, pace and order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ccm.base import throttle
from ccm.base.throttle import TokenBucket
from ccm.kube.client import Client
from tests.unit.kube.wire import HandClock, connect, serve


async def test_the_31st_request_of_a_burst_of_30_waits_50_ms() -> None:
    clock = HandClock()
    limiter = TokenBucket(qps=20, burst=30, clock=clock)

    async with serve() as server, connect(server.url, clock=clock) as wire:
        client = Client(wire, limiter=limiter)
        for _ in range(30):
            await client.raw("GET", "/x")
        assert clock.naps == []
        await client.raw("GET", "/x")

    assert clock.naps == [pytest.approx(0.05)]
    assert len(server.seen) == 31


async def test_requests_are_served_in_the_order_of_arrival() -> None:
    limiter = TokenBucket(qps=1000, burst=1, clock=HandClock())
    order: list[int] = []

    async def one(number: int) -> None:
        await limiter.acquire()
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(1000)))

    assert order == list(range(1000))


async def test_a_cancelled_request_takes_no_token() -> None:
    clock = HandClock()
    limiter = TokenBucket(qps=1, burst=1, clock=clock)

    async with serve() as server, connect(server.url, clock=clock) as wire:
        client = Client(wire, limiter=limiter)
        await client.raw("GET", "/first")
        waiting = [asyncio.create_task(client.raw("GET", f"/{n}")) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        for task in waiting:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    assert [seen.target for seen in server.seen] == ["/first", "/0", "/2"]
    assert sum(clock.naps) == pytest.approx(2)


async def test_a_negative_rate_is_no_limit() -> None:
    limiter = throttle.bucket(-1, 1)

    assert [await limiter.acquire() for _ in range(100)] == [0.0] * 100
