"""The stage of every scenario."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests import servers
from tests.scenario import crowd, harness


@pytest_asyncio.fixture
async def stage(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[harness.Stage]:
    """A stage before each API server in turn; no daemon runs yet."""
    async with harness.open_stage(api_server, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def dispersed(stage: harness.Stage) -> AsyncIterator[None]:
    """The stage is left without the crowd."""
    yield
    await crowd.disperse(stage)
