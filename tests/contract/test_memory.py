"""The contract kept by the cloud in memory: each interface, the shape of the origin, opt-outs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from ccm.cloud import Cloud, GardenerRequest, Route, Service, errors, from_gardener
from ccm.testing.contract import OPT_OUTS, Harness, MachineContract, ProviderContract
from tests.contract.bad_networks import ListsAllClusters, WritesAlways
from tests.contract.memory import (
    SCHEME,
    MachineHarness,
    MemoryBalancer,
    MemoryHarness,
    MemoryInstance,
    MemoryMachineApi,
    MemoryProvider,
    MemoryStateProvider,
    NetworkHarness,
    OddKeyHarness,
    check,
    translated,
)

T = TypeVar("T")

CHORE = "chore-of-the-fake"


class MachinesOnlyHarness(MachineHarness):
    """Moves a cloud that offers machines and nothing else."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with super().open() as cloud:
            yield replace(cloud, instances=None)


class Origin:
    """A driver to the origin's shape: VMs are known by their names, and bear the pool alone."""

    def __init__(self, api: MemoryMachineApi) -> None:
        self._api = api

    async def create_machine(self, req: GardenerRequest) -> Mapping[str, str]:
        found = await self._named(req)
        if found is None:
            check(req.machine_class.provider_spec)
            tags = {"pool": req.machine_class.metadata.name}
            found = await said(self._api.order(_token(req), _name(req), tags))
        return self._shown(found)

    async def get_machine_status(self, req: GardenerRequest) -> Mapping[str, str]:
        found = await self._named(req)
        if found is None:
            raise OriginError("NotFound", "no such VM")
        return self._shown(found)

    async def delete_machine(self, req: GardenerRequest) -> None:
        found = await self._named(req)
        if found is not None:
            await said(self._api.drop(_token(req), found.id))

    async def list_machines(self, req: GardenerRequest) -> Mapping[str, str]:
        pool = {"pool": req.machine_class.metadata.name}
        found = await said(self._api.tagged(_token(req), pool))
        return {f"{SCHEME}://{one.id}": one.name for one in found}

    async def _named(self, req: GardenerRequest) -> MemoryInstance | None:
        assert req.machine is not None
        wanted = req.machine.spec.provider_id
        if wanted and not wanted.startswith(f"{SCHEME}://i-"):
            raise OriginError("InvalidArgument", wanted)
        found = await said(self._api.tagged(_token(req), {}))
        return next(
            (
                one
                for one in found
                if (f"{SCHEME}://{one.id}" == wanted if wanted else one.name == _name(req))
            ),
            None,
        )

    def _shown(self, found: MemoryInstance) -> Mapping[str, str]:
        return {"provider_id": f"{SCHEME}://{found.id}", "node_name": found.name}


class OriginError(Exception):
    """As such drivers raise it: a text with a code in it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"machine codes error: code = [{code}] message = [{text}]")


async def said(answer: Awaitable[T]) -> T:
    """The client's answer; its errors become those of the origin."""
    try:
        return await translated(answer)
    except errors.CloudError as error:
        raise OriginError(errors.code_of(error).name, str(error)) from None


def _token(req: GardenerRequest) -> str:
    return req.secret.data["token"].decode()


def _name(req: GardenerRequest) -> str:
    assert req.machine is not None
    return req.machine.metadata.name


class OriginHarness(MachineHarness):
    """Moves a driver of the origin's shape."""

    opt_outs: Mapping[str, str] = {"no_machine_marks": "the origin knows VMs by their names"}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        yield Cloud(
            name=SCHEME,
            instances=MemoryProvider(self.api),
            machines=from_gardener(Origin(self.api)),
            has_cluster_id=True,
        )

    async def slow_vms(self, *, slow: bool) -> None:
        """Such a driver never raises RetryAfter."""


class OtherWays(ListsAllClusters, WritesAlways):
    """No marks of clusters, members written each time, routes that go on naming their node.

    The cloud starts a task in each call that looks for a load balancer.
    """

    async def _find(self, cluster_name: str, service: Service) -> MemoryBalancer | None:
        asyncio.get_running_loop().create_task(asyncio.sleep(60), name=CHORE)
        return await super()._find(cluster_name, service)

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        return [
            replace(one, target_node=self.api.routes[one.name].target, blackhole=False)
            for one in await super().list_routes(cluster_name)
        ]


class OtherHarness(NetworkHarness):
    """Moves it."""

    opt_outs: Mapping[str, str] = dict.fromkeys(OPT_OUTS, "it is made that way")

    def is_task_of_fake(self, task: asyncio.Task[Any]) -> bool:
        return task.get_name() == CHORE


PROVIDERS: Mapping[str, Callable[[], Harness]] = {
    "everything": partial(MemoryHarness, MemoryProvider),
    "state": partial(MemoryHarness, MemoryStateProvider, ("instances_v1", "zones", "inventory")),
    "old": partial(MemoryHarness, MemoryProvider, ("instances", "zones", "inventory")),
    "network": NetworkHarness,
    "machines_only": MachinesOnlyHarness,
    "other_ways": partial(OtherHarness, OtherWays),
}

DRIVERS: Mapping[str, Callable[[], Harness]] = {
    "all": MachineHarness,
    "odd_key": OddKeyHarness,
    "machines_only": MachinesOnlyHarness,
    "origin": OriginHarness,
}


class TestProviders(ProviderContract):
    """Each combination of interfaces, and a cloud that declares all opt-outs."""

    @pytest_asyncio.fixture(params=PROVIDERS)
    async def harness(self, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
        yield PROVIDERS[request.param]()
        for task in asyncio.all_tasks():
            if task.get_name() == CHORE:
                task.cancel()


class TestMachines(MachineContract):
    """Drivers of both shapes."""

    @pytest_asyncio.fixture(params=DRIVERS)
    async def harness(self, request: pytest.FixtureRequest) -> Harness:
        return DRIVERS[request.param]()
