"""A daemon to attack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests import servers
from tests.hostile import target
from tests.scenario import harness


@pytest_asyncio.fixture
async def attacked(
    api_server: servers.ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[target.Target]:
    """A daemon of its own process, with honest callers; on which event loop is the parameter."""
    async with (
        harness.open_environment(api_server, tmp_path) as env,
        target.started(env, uvloop=request.param == "uvloop") as found,
    ):
        yield found
