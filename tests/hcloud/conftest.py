"""A fake of the Hetzner Cloud, and a witness of what goes over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from providers.hcloud.testing import server
from providers.hcloud.testing.settings import Settings


@pytest.fixture
def seen() -> list[server.Exchange]:
    """Every call of a test and its answer."""
    return []


@pytest.fixture
def service(seen: list[server.Exchange]) -> server.Service:
    """The fake."""
    return server.Service(Settings(), witness=seen.append)


@pytest_asyncio.fixture
async def endpoint(service: server.Service) -> AsyncIterator[str]:
    """Where it is."""
    async with server.serve(service) as url:
        yield url
