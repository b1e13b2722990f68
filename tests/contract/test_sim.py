"""The provider of the simulated cloud keeps the provider contract."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import pytest_asyncio

from ccm import cloud
from ccm.testing.contract import Harness, HeldBalancer, Made, ProviderContract
from providers import sim
from providers.sim import api, server, traffic, world
from providers.sim.faults import Fault
from providers.sim.world_balancers import Interference
from providers.sim.world_routes import NewRoute

T = TypeVar("T")

PAGE_SIZE = 2
WRITES = {row.name for row in api.OPERATIONS if row.is_cloud_call and row.method != "GET"}
ANY_WRITE = "[!gl]*"
"""Operations of the cloud that only read begin with `get` or `list`."""


class RunningCloud:
    """A simulated cloud that is served by an event loop of its own, in a thread."""

    def __init__(self, service: server.Service, url: str) -> None:
        self.service = service
        self.url = url
        self.loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()

    async def do(self, work: Callable[[], T]) -> T:
        """Run something in the cloud's own loop."""

        async def there() -> T:
            return work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self.loop))


@asynccontextmanager
async def running_cloud(settings: traffic.Settings) -> AsyncIterator[RunningCloud]:
    """The contract counts tasks, and the cloud's must not be among the provider's."""
    ready: concurrent.futures.Future[RunningCloud] = concurrent.futures.Future()

    async def serve() -> None:
        service = server.Service(settings=settings)
        async with server.serve(service) as url:
            running = RunningCloud(service, url)
            ready.set_result(running)
            await running.stop.wait()

    served = asyncio.get_running_loop().run_in_executor(None, asyncio.run, serve())
    running = await asyncio.wait_for(asyncio.wrap_future(ready), 5)
    yield running
    await running.do(running.stop.set)
    await served


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

    def __init__(self, running: RunningCloud) -> None:
        self._do = running.do
        self._service = running.service
        self._world = running.service.world
        self._url = running.url
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
        given = world.GivenInstance(name=f"node-{number}", type="big", addresses=addresses)
        made = await self._do(lambda: self._world.put(given))
        types = ("InternalIP", "InternalIP", "ExternalIP")
        return Made(
            name=made.name,
            provider_id=f"sim://{made.id}",
            instance_type="big",
            zone=made.zone,
            region=made.region,
            addresses=[cloud.address(*each) for each in zip(types, values, strict=True)],
        )

    async def stop(self, made: Made) -> None:
        await self._do(lambda: self._world.act(_id(made), "stop"))

    async def start(self, made: Made) -> None:
        await self._do(lambda: self._world.act(_id(made), "start"))

    async def delete(self, made: Made) -> None:
        await self._do(lambda: self._world.delete(_id(made)))

    async def transition(self, made: Made) -> None:
        self._world.transition_s = 60.0
        await self.stop(made)

    async def surprise(self, made: Made) -> None:
        await self.fail(Fault(kind="novelty"))

    async def fail(self, how: Fault) -> None:
        await self._do(lambda: self._service.script.add(how))

    async def heal(self) -> None:
        await self._do(self._service.heal)

    async def writes(self) -> int:
        counts = self._service.calls.counts
        return sum(number for name, number in counts.items() if name in WRITES)

    async def lose_answer(self, number: int) -> None:
        # Whichever operation it is: the script counts per fault, so one for all of them.
        fault = Fault(kind="drop", operation=ANY_WRITE, skip=number - 1, count=1, applied=True)
        await self._do(lambda: self._service.script.add(fault))

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        balancers = await self._do(self._service.worlds.balancers.list)
        instances = await self._do(self._world.snapshot)
        owners = {each.value: one.name for one in instances for each in one.addresses}
        return [
            HeldBalancer(
                name=one.name,
                ports=frozenset((e.protocol, e.port, e.target_port) for e in one.listeners),
                members=frozenset(owners[member] for member in one.members),
            )
            for one in balancers
        ]

    async def slow_load_balancers(self, *, slow: bool) -> None:
        balancers = self._service.worlds.balancers
        balancers.provision_s = 60.0 if slow else 0.0
        if not slow:
            active = Interference(state="active")
            for one in await self._do(balancers.list):
                await self._interfere(one.name, active)

    async def break_load_balancer(self, name: str, reason: str) -> None:
        await self._interfere(name, Interference(state="error", reason=reason))

    async def tamper(self, name: str) -> None:
        await self._interfere(name, Interference(members=()))

    async def protect(self, name: str, *, protected: bool) -> None:
        await self._interfere(name, Interference(protected=protected))

    async def _interfere(self, name: str, interference: Interference) -> None:
        balancers = self._service.worlds.balancers
        (found,) = await self._do(lambda: balancers.list(name=name))
        await self._do(lambda: balancers.interfere(found.id, interference))

    async def routes(self) -> Sequence[str]:
        return [one.destination for one in await self._do(self._service.worlds.routes.list)]

    async def foreign_route(self, cidr: str) -> None:
        order = NewRoute(destination=cidr, gateway="10.99.0.1", cluster="somebody else")
        await self._do(lambda: self._service.worlds.routes.create(order))

    async def rotate(self) -> None:
        self._service.token = "renewed"

    async def requests(self) -> int:
        return self._service.calls.counts.total()


def _id(made: Made) -> str:
    return cloud.parse_provider_id(made.provider_id, "sim")


class TestSim(ProviderContract):
    """A cloud that forgets at once."""

    linger_s = 0.0

    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        settings = traffic.Settings(page_size=PAGE_SIZE, transition_s=0.0, linger_s=self.linger_s)
        async with running_cloud(settings) as running:
            yield SimHarness(running)


class TestLingeringSim(TestSim):
    """A cloud that shows deleted instances for a while."""

    linger_s = 60.0
