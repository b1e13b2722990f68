"""A fake of the Hetzner Cloud, and a witness of what goes over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.model.cidr import parse_ranges
from ccm.testing.fake_api import Exchange
from providers import hcloud
from providers.hcloud.testing import server
from providers.hcloud.testing.state import Settings
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


class Told:
    """A sink of events: kind of the object, its name, and what is said of it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.messages: list[str] = []

    def event(self, reference: cloud.ObjectReference, kind: str, reason: str, message: str) -> None:
        """Take note of one."""
        assert kind == "Warning"
        self.events.append((reference.kind, reference.name, reason))
        self.messages.append(message)


@asynccontextmanager
async def opened(harness: HcloudHarness, **settings: str) -> AsyncIterator[cloud.Cloud]:
    """The provider with other settings; an empty one is left out."""
    async with in_cluster(harness, Told(), settings) as found:
        yield found


@asynccontextmanager
async def in_cluster(
    harness: HcloudHarness, told: Told, settings: Mapping[str, str], *, pods: str = ""
) -> AsyncIterator[cloud.Cloud]:
    """The provider with other settings, and a cluster around it whose Pods have these ranges."""
    given = cloud.Context(
        environ={**harness.environ(), **settings},
        events=told,
        pod_ranges=parse_ranges(pods) if pods else (),
    )
    async with hcloud.open_cloud(given) as found:
        yield found
