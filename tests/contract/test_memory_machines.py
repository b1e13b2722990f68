"""The contract of machine drivers, kept by the cloud in memory; also behind the origin's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pytest_asyncio

from ccm.cloud import Cloud, GardenerRequest, Identity, codes, errors, from_gardener
from ccm.testing.contract import Harness, MachineContract, ProviderContract
from ccm.testing.harness import HeldVM
from ccm.testing.memory import SCHEME, MemoryInstance, MemoryProvider, translated
from ccm.testing.memory_machines import (
    MemoryMachineApi,
    MemoryMachines,
    check,
    open_memory_machines,
)
from tests.contract.test_fake import MemoryHarness

T = TypeVar("T")


class MachineHarness(MemoryHarness):
    """Moves the cloud in memory and its VMs."""

    api: MemoryMachineApi

    def __init__(self, driver: type[MemoryMachines] = MemoryMachines) -> None:
        super().__init__(MemoryProvider)
        self.api = MemoryMachineApi()
        self._driver = driver

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with open_memory_machines(self.api, driver=self._driver) as cloud:
            yield cloud

    def open_machines(self) -> AbstractAsyncContextManager[Cloud]:
        return self.open()

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {"token": f"{self.api.token}".encode(), "endpoint": b"in-memory"}

    def machine_spec(self) -> Mapping[str, Any]:
        return {"size": "big", "labels": {"colour": "blue"}}

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"size": "enormous"}

    async def vms(self) -> Sequence[HeldVM]:
        return [
            HeldVM(name=one.name, provider_id=f"{SCHEME}://{one.id}")
            for one in self.api.instances.values()
        ]

    async def beside_vms(self) -> Sequence[str]:
        return list(self.api.disks)

    async def foreign_vm(self, name: str, identity: Identity | None) -> HeldVM:
        made = self.api.create(name)
        made.labels = asdict(identity) if identity else {}
        return HeldVM(name=made.name, provider_id=f"{SCHEME}://{made.id}")

    async def slow_vms(self, *, slow: bool) -> None:
        self.api.slow = slow
        for one in self.api.instances.values():
            one.state = "running"

    async def lose_answer(self, number: int) -> None:
        self.api.lost = self.api.writes + number


class TestMachines(MachineContract):
    """Every case."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MachineHarness()


class OddKeyHarness(MachineHarness):
    """The token stands under a name that does not sound secret."""

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {"endpoint": b"in-memory", SCHEME: self.api.token.encode()}


class TestOddKey(MachineContract):
    """Every case."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return OddKeyHarness()


class MachinesOnlyHarness(MachineHarness):
    """Moves a cloud that offers machines and nothing else."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Cloud]:
        async with super().open() as cloud:
            yield replace(cloud, instances=None)


class TestMachinesOnly(MachineContract):
    """The one class that such a package has."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MachinesOnlyHarness()


class TestMachinesOnlyBesides(ProviderContract):
    """All that it does not offer is skipped, for a package that keeps both classes."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return MachinesOnlyHarness()


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
        raise OriginError(codes.code_of(error).name, str(error)) from None


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
        """Such a driver does not say "again later"."""


class TestOrigin(MachineContract):
    """Behind `from_gardener`: what rests on marks is declared to be otherwise."""

    @pytest_asyncio.fixture
    async def harness(self) -> Harness:
        return OriginHarness()
