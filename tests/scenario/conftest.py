"""The environment of every scenario."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests import servers
from tests.scenario import harness, load


@pytest_asyncio.fixture
async def env(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[harness.Environment]:
    """An environment with each API server in turn; no daemon runs yet."""
    async with harness.open_environment(api_server, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def unloaded(env: harness.Environment) -> AsyncIterator[None]:
    """The environment is left without the load."""
    yield
    await load.remove(env)
