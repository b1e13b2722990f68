"""The provider of STACKIT keeps the provider contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from providers.stackit.testing import server
from tests.stackit.harness import StackitHarness


@pytest.mark.row(
    "stackit-node-01",
    "stackit-node-03",
    "stackit-node-04",
    "stackit-node-06",
    "stackit-balancer-01",
    "stackit-balancer-02",
    "stackit-balancer-03",
    "stackit-balancer-04",
    "stackit-balancer-05",
    "stackit-auth-03",
    "stackit-call-02",
)
class TestStackit(ProviderContract):
    """All but machines."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield StackitHarness(service, url)


@pytest.mark.row("stackit-machine-01")
class TestStackitMachines(MachineContract):
    """Servers by request."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield StackitHarness(service, url)
