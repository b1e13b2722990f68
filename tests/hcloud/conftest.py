"""A fake of the Hetzner Cloud, and a witness of what goes over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.testing.fake_api import Exchange
from providers import hcloud
from providers.hcloud.testing import server
from providers.hcloud.testing.settings import Settings
from tests.hcloud.harness import HcloudHarness


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
async def harness(service: server.Service, endpoint: str) -> HcloudHarness:
    """The hand behind the fake; its project has a network `k8s`."""
    return HcloudHarness(service, endpoint)


@pytest_asyncio.fixture
async def project(harness: HcloudHarness) -> AsyncIterator[cloud.Cloud]:
    """The provider, with the settings of the contract suite."""
    async with harness.open() as opened:
        yield opened


@asynccontextmanager
async def opened(harness: HcloudHarness, **settings: str) -> AsyncIterator[cloud.Cloud]:
    """The provider with other settings; an empty one is left out."""
    given = {**harness.environ(), **settings}
    async with hcloud.open_cloud(cloud.Context(environ=given)) as found:
        yield found
