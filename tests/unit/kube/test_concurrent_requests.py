"""Requests share few connections, and the Lease's wait behind nobody."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ccm.base.tasks import spawn
from ccm.kube.concurrency import CONCURRENCY
from tests.unit.kube.proxy import connect, serve

BUSY = 2 * CONCURRENCY


async def test_an_urgent_request_waits_behind_nobody() -> None:
    held = asyncio.Event()
    open_now = 0

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal open_now
        open_now += 1
        if request.path != "/lease":
            await held.wait()
        open_now -= 1
        return web.json_response({})

    async with serve() as server, connect(server.url) as transport:
        server.will(*[slow] * (BUSY + 1))
        others = [spawn(transport.do("GET", f"/{n}"), name="other") for n in range(BUSY)]
        while open_now < CONCURRENCY:
            await asyncio.sleep(0)

        assert await transport.do("PUT", "/lease", urgent=True) == b"{}"

        assert open_now < BUSY, "the others went in although all slots were taken"
        held.set()
        await asyncio.gather(*others)
