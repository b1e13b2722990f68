"""The contract about load balancers and routes, kept by the cloud in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest_asyncio

from ccm.cloud import Cloud
from ccm.testing.contract import Harness, HeldBalancer, ProviderContract
from ccm.testing.memory import MemoryProvider
from ccm.testing.memory_network import (
    MemoryBalancer,
    MemoryNetwork,
    MemoryNetworkApi,
    MemoryRoute,
    open_memory_network,
)
from tests.contract.test_fake import MemoryHarness


class NetworkHarness(MemoryHarness):
    """Moves the cloud in memory and its network."""

    api: MemoryNetworkApi

    def __init__(self, network: type[MemoryNetwork] = MemoryNetwork) -> None:
        super().__init__(MemoryProvider)
        self.api = MemoryNetworkApi()
        self._network = network

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with open_memory_network(self.api, network=self._network) as cloud:
            yield cloud

    async def writes(self) -> int:
        return self.api.writes

    async def lose_answer(self, number: int) -> None:
        self.api.lost = self.api.writes + number

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        return [
            HeldBalancer(
                name=one.name,
                ports=frozenset(one.ports),
                members=frozenset(one.members),
                source_ranges=frozenset(one.ranges),
            )
            for one in self.api.balancers.values()
        ]

    async def slow_load_balancers(self, *, slow: bool) -> None:
        self.api.slow = slow
        for one in self.api.balancers.values():
            one.state = "active"

    async def break_load_balancer(self, name: str, reason: str) -> None:
        self.api.balancers[name].state = f"failed: {reason}"

    async def tamper(self, name: str) -> None:
        self.api.balancers[name].members = ()

    async def protect(self, name: str, *, protected: bool) -> None:
        self.api.balancers[name].protected = protected

    async def unmarked_load_balancer(self, name: str) -> None:
        made = MemoryBalancer(name=name, cluster="", ip="192.0.2.254", ports=())
        self.api.balancers[name] = made

    async def routes(self) -> Sequence[str]:
        return [one.cidr for one in self.api.routes.values()]

    async def foreign_route(self, cidr: str) -> None:
        made = MemoryRoute(id="foreign", cluster="somebody else", cidr=cidr, target="x")
        self.api.routes[made.id] = made


class TestNetwork(ProviderContract):
    """Everything about load balancers and routes."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return NetworkHarness()
