"""The contract kept: a cloud in memory through every combination of its interfaces."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest_asyncio

from ccm.cloud import Cloud
from ccm.testing.contract import Harness, Made, ProviderContract
from ccm.testing.memory import (
    MemoryApi,
    MemoryInstance,
    MemoryProvider,
    MemoryStateProvider,
    open_memory,
)


class MemoryHarness(Harness):
    """Moves the cloud in memory; `without` names capabilities the cloud hides."""

    faults: Mapping[str, object] = {
        "outage": 503,
        "denied": 401,
        "rate_limited": 429,
        "quota": 409,
        "garbage": 200,
        "hang": "hang",
    }
    patience_s = 0.2

    def __init__(self, provider: type[MemoryProvider], without: tuple[str, ...] = ()) -> None:
        self.api = MemoryApi()
        self._provider = provider
        self._without = without
        self._zones = "instances" not in without or "zones" not in without

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with open_memory(self.api, provider=self._provider) as cloud:
            hidden: dict[str, Any] = dict.fromkeys(self._without)
            yield dataclasses.replace(cloud, **hidden)

    async def create(self) -> Made:
        made = self.api.create()
        made.labels = {"example.com/rack": "r7"}
        return Made(
            additional_labels=made.labels,
            name=made.name,
            provider_id=f"memory://{made.id}",
            instance_type="small",
            zone=f"zone-{made.number % 3}" if self._zones else "",
            region="region" if self._zones else "",
        )

    async def stop(self, made: Made) -> None:
        self._of(made).state = "stopped"

    async def start(self, made: Made) -> None:
        self._of(made).state = "running"

    async def delete(self, made: Made) -> None:
        del self.api.instances[self._of(made).id]

    async def transition(self, made: Made) -> None:
        self._of(made).state = "stopping"

    async def surprise(self, made: Made) -> None:
        self._of(made).state = "levitating"

    async def fail(self, how: Any) -> None:
        self.api.fault = how

    async def heal(self) -> None:
        self.api.heal()

    async def rotate(self) -> None:
        self.api.token = "second"

    async def shrink_pages(self, size: int) -> None:
        self.api.page_size = size

    async def requests(self) -> int:
        return self.api.requests

    def _of(self, made: Made) -> MemoryInstance:
        return self.api.instances[made.provider_id.removeprefix("memory://")]


class TestEverything(ProviderContract):
    """Both interfaces and an inventory."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MemoryHarness(MemoryProvider)


class TestCombinedState(ProviderContract):
    """The new interface only, with existence and power in one question."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MemoryHarness(MemoryStateProvider, without=("instances_v1", "zones", "inventory"))


class TestOldWithoutZones(ProviderContract):
    """The old interface only."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MemoryHarness(MemoryProvider, without=("instances", "zones", "inventory"))
