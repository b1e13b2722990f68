"""A proxy between a client and a small server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from aiohttp import web

from tests import faults
from tests.unit.faults.upstream import Environment, Upstream
from tests.waiting import DEADLINE_S


@pytest_asyncio.fixture
async def env() -> AsyncIterator[Environment]:
    upstream = Upstream()
    server = web.Server(upstream.handle, handler_cancellation=True, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with (
        faults.FaultProxy(f"http://127.0.0.1:{port}") as proxy,
        aiohttp.ClientSession(proxy.url, timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as client,
    ):
        # No silent second try of a request: a test wants to see the first one fail.
        client._retry_connection = False
        yield Environment(client=client, proxy=proxy, upstream=upstream)
    listener.close()
    await server.shutdown(1)
