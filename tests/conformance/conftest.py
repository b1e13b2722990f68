"""One environment per test, before each API server in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests import servers
from tests.conformance.environment import NodeEnvironment
from tests.unit.controllers.machines import world

__all__ = ["PROOFS", "world"]

PROOFS = pytest.StashKey[dict[str, list[str]]]()
"""Row -> tests, of everything that was collected, whatever of it runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = config.stash.setdefault(PROOFS, {})
    for item in items:
        for row in (row for mark in item.iter_markers("row") for row in mark.args):
            found.setdefault(row, []).append(item.nodeid)


@pytest_asyncio.fixture
async def env(api_server: servers.ApiServer) -> AsyncIterator[NodeEnvironment]:
    """An empty API server behind a recording proxy, its nodes cached."""
    async with NodeEnvironment.open(api_server) as each:
        yield each
