"""The provider of the Hetzner Cloud keeps the provider contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from providers.hcloud.testing import server
from tests.hcloud.harness import HcloudHarness


@pytest.mark.row(
    "hcloud-node-01",
    "hcloud-node-02",
    "hcloud-node-03",
    "hcloud-node-04",
    "hcloud-balancer-01",
    "hcloud-balancer-02",
    "hcloud-balancer-03",
    "hcloud-balancer-04",
    "hcloud-balancer-05",
    "hcloud-route-01",
    "hcloud-call-02",
    "hcloud-call-03",
)
class TestHcloud(ProviderContract):
    """All but machines."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield HcloudHarness(service, url)


@pytest.mark.row("hcloud-machine-01")
class TestHcloudMachines(MachineContract):
    """Servers by request."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield HcloudHarness(service, url)
