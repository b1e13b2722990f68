"""One stage per test, before each API server in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests import servers
from tests.conformance.stage import Stage, staged


@pytest_asyncio.fixture
async def stage(api_server: servers.ApiServer) -> AsyncIterator[Stage]:
    """An empty API server behind a recording proxy, its nodes cached."""
    async with staged(api_server) as each:
        yield each
