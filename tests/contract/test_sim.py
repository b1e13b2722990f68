"""The provider of the simulated cloud keeps the provider contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest_asyncio

from ccm import cloud
from ccm.testing.contract import (
    Harness,
    HeldBalancer,
    HeldVM,
    MachineContract,
    Made,
    ProviderContract,
)
from ccm.testing.fake_api import Fault
from providers import sim
from providers.sim import client, server, state, world
from providers.sim.world import NewRoute
from providers.sim.world_balancers import BalancerAdminChange, Listener, NewBalancer

WRITES = {
    row.name for row in server.OPERATIONS if not row.route.startswith("GET") and "/v1/" in row.route
}
ANY_WRITE = "[!gl]*"
"""Operations of the cloud that only read begin with `get` or `list`."""


class SimHarness(Harness):
    """Moves a simulated cloud from behind, and never over its HTTP API."""

    faults: Mapping[str, Fault] = {
        "outage": Fault(kind="error", status=503),
        "drop": Fault(kind="drop"),
        "denied": Fault(kind="error", status=403, code="forbidden"),
        "rate_limited": Fault(kind="rate_limit"),
        "quota": Fault(kind="error", status=403, code="quota_exceeded"),
        "garbage": Fault(kind="garbage"),
        "empty": Fault(kind="empty"),
        "hang": Fault(kind="hang"),
    }

    def __init__(self, service: server.Service, url: str) -> None:
        self._service = service
        self._world = service.world
        self._url = url
        self._made = 0

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        config = f"url: {self._url}\ntoken: {self._service.token}\ntimeout: 5s"
        return sim.open_cloud(cloud.Context(config=config.encode()))

    async def create(self) -> Made:
        self._made += 1
        number = self._made
        values = (f"10.0.0.{number}", f"fd00::{number}", f"192.0.2.{number}")
        kinds: tuple[world.AddressKind, ...] = ("private", "private", "public")
        addresses = tuple(
            world.Address(kind=kind, value=value) for kind, value in zip(kinds, values, strict=True)
        )
        given = world.Instance(
            name=f"node-{number}", type="big", addresses=addresses, labels={"sim/rack": "r7"}
        )
        made = self._world.put(given)
        types = ("InternalIP", "InternalIP", "ExternalIP")
        return Made(
            name=made.name,
            provider_id=f"sim://{made.id}",
            instance_type="big",
            zone=made.zone,
            region=made.region,
            additional_labels=given.labels,
            addresses=[cloud.address(*each) for each in zip(types, values, strict=True)],
        )

    async def stop(self, made: Made) -> None:
        self._world.act(_id(made), "stop")

    async def start(self, made: Made) -> None:
        self._world.act(_id(made), "start")

    async def delete(self, made: Made) -> None:
        self._world.delete(_id(made), at_once=True)

    async def transition(self, made: Made) -> None:
        self._world.transition_s = 60.0
        await self.stop(made)

    async def surprise(self, made: Made) -> None:
        await self.fail(Fault(kind="novelty"))

    async def fail(self, how: Fault) -> None:
        self._service.script.add(how)

    async def heal(self) -> None:
        self._service.heal()

    async def writes(self) -> int:
        counts = self._service.calls
        return sum(number for name, number in counts.items() if name in WRITES)

    async def lose_answer(self, number: int) -> None:
        # Whichever operation it is: the script counts per fault, so one for all of them.
        fault = Fault(kind="drop", operation=ANY_WRITE, skip=number - 1, count=1, applied=True)
        self._service.script.add(fault)

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        balancers = self._service.worlds.balancers.list()
        instances = self._world.snapshot()
        owners = {each.value: one.name for one in instances for each in one.addresses}
        return [
            HeldBalancer(
                name=one.name,
                ports=frozenset((e.protocol, e.port, e.target_port) for e in one.listeners),
                members=frozenset(owners.get(member, member) for member in one.members),
                source_ranges=frozenset(one.source_ranges),
            )
            for one in balancers
        ]

    async def slow_load_balancers(self, *, slow: bool) -> None:
        balancers = self._service.worlds.balancers
        balancers.provision_s = 60.0 if slow else 0.0
        if not slow:
            active = BalancerAdminChange(state="active")
            for one in balancers.list():
                await self._interfere(one.name, active)

    async def break_load_balancer(self, name: str, reason: str) -> None:
        await self._interfere(name, BalancerAdminChange(state="error", reason=reason))

    async def tamper(self, name: str) -> None:
        await self._interfere(name, BalancerAdminChange(members=()))

    async def protect(self, name: str, *, protected: bool) -> None:
        await self._interfere(name, BalancerAdminChange(protected=protected))

    async def unmarked_load_balancer(self, name: str) -> None:
        order = NewBalancer(
            name=name,
            cluster="",
            listeners=(Listener(protocol="TCP", port=80, target_port=80),),
            families=("IPv4",),
        )
        self._service.worlds.balancers.create(order)

    async def _interfere(self, name: str, interference: BalancerAdminChange) -> None:
        balancers = self._service.worlds.balancers
        (found,) = balancers.list(name=name)
        balancers.interfere(found.id, interference)

    async def routes(self) -> Sequence[str]:
        return [one.destination for one in self._service.worlds.routes.list()]

    async def foreign_route(self, cidr: str) -> None:
        order = NewRoute(destination=cidr, gateway="10.99.0.1", cluster="somebody else")
        self._service.worlds.routes.create(order)

    async def shrink_pages(self, size: int) -> None:
        settings = msgspec.structs.replace(self._service.settings, page_size=size)
        self._service.change_settings(settings)

    async def rotate(self) -> None:
        self._service.token = "renewed"

    async def requests(self) -> int:
        return self._service.calls.total()

    # --- machines

    def open_machines(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return sim.open_machines(cloud.Context(environ={"SIM_URL": self._url}))

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {"token": f"{self._service.token}\n".encode()}

    def machine_spec(self) -> Mapping[str, Any]:
        ranges = ["10.244.0.0/16"]  # to be set after the start of the VM
        return {"machineType": "big", "allowedAddresses": ranges, "dataVolumes": [1, 2]}

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"machineType": ""}

    async def vms(self) -> Sequence[HeldVM]:
        living = [one for one in self._world.snapshot() if one.state != "deleted"]
        return [HeldVM(name=one.name, provider_id=f"sim://{one.id}") for one in living]

    async def beside_vms(self) -> Sequence[str]:
        return [one.id for one in self._service.worlds.volumes.list()]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        labels = {}
        if identity is not None:
            labels = {
                client.MARK_CLUSTER: identity.cluster,
                client.MARK_NAMESPACE: identity.namespace,
                client.MARK_POOL: identity.pool,
                client.MARK_NAME: identity.name,
                client.MARK_UID: identity.uid,
            }
        made = self._world.put(world.Instance(name=name, labels=labels))
        return HeldVM(name=made.name, provider_id=f"sim://{made.id}")

    async def slow_vms(self, *, slow: bool) -> None:
        self._world.transition_s = self._world.removal_s = 300.0 if slow else 0.0
        for one in self._world.snapshot():
            if one.state == "deleting":
                self._world.delete(one.id, at_once=True)


def _id(made: Made) -> str:
    return cloud.parse_provider_id(made.provider_id, "sim")


class TestSim(ProviderContract):
    """A cloud that forgets at once."""

    linger_s = 0.0

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        settings = state.Settings(transition_s=0.0, linger_s=self.linger_s)
        service = server.Service(settings=settings)
        async with server.serve(service) as url:
            yield SimHarness(service, url)


class TestLingeringSim(TestSim):
    """A cloud that shows deleted instances for a while."""

    linger_s = 60.0


class TestSimMachines(MachineContract):
    """VMs by request."""

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = server.Service(settings=state.Settings(transition_s=0.0))
        async with server.serve(service) as url:
            yield SimHarness(service, url)
