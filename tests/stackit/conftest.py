"""A fake of STACKIT, and a witness of what goes over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing.fake_api import Exchange
from providers.stackit.testing import server
from providers.stackit.testing.state import Settings
from tests.stackit.harness import StackitHarness


@pytest.fixture
def seen() -> list[Exchange]:
    """Every call of a test and its answer."""
    return []


@pytest.fixture
def service(seen: list[Exchange]) -> server.Service:
    """The fake."""
    return server.Service(Settings(), witness=seen.append)


@pytest_asyncio.fixture
async def endpoint(service: server.Service) -> AsyncIterator[str]:
    """Where it is."""
    async with server.serve(service) as url:
        yield url


@pytest_asyncio.fixture
async def harness(service: server.Service, endpoint: str) -> StackitHarness:
    """The hand behind the fake; its project has a network and an image."""
    return StackitHarness(service, endpoint)


@pytest_asyncio.fixture
async def project(harness: StackitHarness) -> AsyncIterator[cloud.Cloud]:
    """The provider, with the settings of the contract suite."""
    async with harness.open() as opened:
        yield opened
