"""A cloud that does some things otherwise, and says so, keeps the rest of the contract."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest_asyncio

from ccm.cloud import Route, Service
from ccm.testing.contract import OPT_OUTS, Harness, ProviderContract
from ccm.testing.memory_network import MemoryBalancer
from tests.contract.bad_networks import ListsAllClusters, WritesAlways
from tests.contract.test_memory_network import NetworkHarness

CHORE = "chore-of-the-fake"


class OtherWays(ListsAllClusters, WritesAlways):
    """No marks of clusters, members written each time, routes that go on naming their node.

    The cloud starts a task in each call that looks for a load balancer.
    """

    async def _find(self, cluster_name: str, service: Service) -> MemoryBalancer | None:
        asyncio.get_running_loop().create_task(asyncio.sleep(60), name=CHORE)
        return await super()._find(cluster_name, service)

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        return [
            dataclasses.replace(one, target_node=self.api.routes[one.name].target, blackhole=False)
            for one in await super().list_routes(cluster_name)
        ]


class OtherHarness(NetworkHarness):
    """Moves it."""

    opt_outs: Mapping[str, str] = dict.fromkeys(OPT_OUTS, "it is made that way")

    def is_task_of_fake(self, task: asyncio.Task[Any]) -> bool:
        return task.get_name() == CHORE


class TestOtherWays(ProviderContract):
    """Not one case is overridden."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        yield OtherHarness(OtherWays)
        for task in asyncio.all_tasks():
            if task.get_name() == CHORE:
                task.cancel()
