"""A client's rate limit as the server sees it: burst, pace and order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ccm.base.throttle import TokenBucket
from ccm.kube.client import Client
from tests.handclock import HandClock
from tests.unit.kube.wire import connect, serve


async def test_the_31st_request_of_a_burst_of_30_waits_50_ms(hand: HandClock) -> None:
    limiter = TokenBucket(qps=20, burst=30)

    async with serve() as server, connect(server.url) as wire:
        client = Client(wire, limiter=limiter)
        for _ in range(30):
            await client.raw("GET", "/x")
        assert hand.naps == []
        await client.raw("GET", "/x")

    assert hand.naps == [pytest.approx(0.05)]
    assert len(server.seen) == 31


async def test_a_cancelled_request_takes_no_token(hand: HandClock) -> None:
    limiter = TokenBucket(qps=1, burst=1)

    async with serve() as server, connect(server.url) as wire:
        client = Client(wire, limiter=limiter)
        await client.raw("GET", "/first")
        waiting = [asyncio.create_task(client.raw("GET", f"/{n}")) for n in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        for task in waiting:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    assert [seen.target for seen in server.seen] == ["/first", "/0", "/2"]
    assert sum(hand.naps) == pytest.approx(2)
