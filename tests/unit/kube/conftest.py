"""Shared fixture: a scripted server, with a transport to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.kube.proxy import Server, connect, serve


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with serve() as running, connect(running.url) as running.transport:
        yield running
