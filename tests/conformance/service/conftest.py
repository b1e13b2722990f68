"""An environment per test, before each API server in turn; and one with the whole daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests import servers
from tests.conformance.service.environment import ServiceEnvironment
from tests.scenario import harness


@pytest_asyncio.fixture
async def services(api_server: servers.ApiServer) -> AsyncIterator[ServiceEnvironment]:
    """An empty API server behind a recording proxy, Services and nodes cached."""
    async with ServiceEnvironment.open(api_server) as each:
        yield each


@pytest_asyncio.fixture
async def whole(
    api_server: servers.ApiServer, tmp_path: Path
) -> AsyncIterator[harness.Environment]:
    """An API server, the simulated cloud, and room for daemons."""
    async with harness.open_environment(api_server, tmp_path) as opened:
        yield opened
