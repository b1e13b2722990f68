"""The provider of STACKIT keeps the provider contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from providers.stackit.testing import server
from tests.stackit.harness import StackitHarness


class TestStackit(ProviderContract):
    """All but machines."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield StackitHarness(service, url)


class TestStackitMachines(MachineContract):
    """Servers by request."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service()
        async with server.serve(service) as url:
            yield StackitHarness(service, url)
