"""Leaders of the machine controllers that are killed, frozen or refused at a chosen call.

`CrashWorld` has an API server in memory, a cloud account, kubelets, and one or two leaders. Every
API write and every cloud request of a leader goes through an `Interceptor`, which applies one
`Fault` to one of them. Each API group of machines has a subclass.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from ccm.base import clock, lease_guard
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, GardenerRequest, errors, from_gardener
from ccm.cloud.machines import (
    DeleteMachineResponse,
    Driver,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
)
from ccm.kube.errors import Unreachable
from tests.unit.controllers.machines import BASE, NODES_PATH, TOKENS, World
from tests.unit.controllers.machinesets import TEMPLATE, Sets
from tests.unit.controllers.memory_server import MemoryServer

T = TypeVar("T")

LEASE_S = 15.0
"""Time from the end of a leader to the start of the next one."""

FROZEN_S = 25.0
"""Time for which a leader is frozen; another one leads before it goes on."""

BOOT_S = 10.0
"""Time from the creation of a server to the registration of its node."""

REQUEST_S = 0.2
"""Time that a cloud request takes before it is carried out, and again before its answer."""

TICK_S = 1.0

CLOUD, API = "cloud", "api"


# --- faults -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A disturbance of one call.

    Attributes:
        name: in test IDs and reports.
        sides: the calls to which it may happen: `CLOUD`, `API` or both.
        is_before: the call is not carried out; else it is, and its answer does not arrive.
        error: raised instead of the answer; None = the leader stops.
        is_frozen: the leader that stopped goes on after `FROZEN_S`.
        retry_s: seconds after which the failed call is repeated, from its name.
    """

    name: str
    sides: frozenset[str]
    is_before: bool = False
    error: Callable[[], Exception] | None = None
    is_frozen: bool = False
    retry_s: Callable[[str], float] = lambda _call: 0.0

    @property
    def stops(self) -> bool:
        """Whether another leader has to go on."""
        return self.error is None


class CloudFault(Exception):
    """An error of the cloud; without a code nothing can be decoded from it."""

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        if code:
            self.code = code


@dataclass(slots=True, kw_only=True)
class Interceptor:
    """Counts the calls of leaders and applies a fault to one of them.

    Attributes:
        fault: the fault; None = count only.
        position: number of the call, among those to which the fault may happen.
        calls: names of these calls, in order.
        struck: name of the disturbed call; empty = not yet.
    """

    fault: Fault | None = None
    position: int = -1
    calls: list[tuple[str, str]] = field(default_factory=list)
    struck: str = ""

    def arm(self, fault: Fault | None, position: int = -1) -> None:
        """Count anew, and apply the fault to the call with this number."""
        self.fault, self.position, self.calls, self.struck = fault, position, [], ""

    async def call(self, side: str, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request as the leader of this task."""
        leader = LEADER.get()
        await leader.runs()
        if not name.startswith("list"):
            lease_guard.check_current_guard()
        fault = self._due(side, name)
        if fault is not None and fault.is_before:
            await self._strike(fault, name, leader)
        answer = await request()
        if fault is not None:
            await self._strike(fault, name, leader)
        await leader.runs()
        return answer

    def _due(self, side: str, name: str) -> Fault | None:
        if self.fault is not None and side not in self.fault.sides:
            return None
        self.calls.append((side, name))
        return self.fault if len(self.calls) == self.position + 1 else None

    async def _strike(self, fault: Fault, name: str, leader: Leader) -> None:
        # Not earlier: the test must not end the leader before the call is carried out.
        self.struck = name
        if fault.error is not None:
            raise fault.error()
        leader.stop()
        await leader.runs()


# --- leaders ----------------------------------------------------------------------------------


class Lease(lease_guard.LeaseGuard):
    """A Lease that ends when the test says so.

    No timer cancels a call under way: a leader that wakes up may read its answer first.
    """

    is_lost = False

    @property
    def remaining_s(self) -> float:
        return -1.0 if self.is_lost else math.inf


class Leader:
    """One process; stopped, none of its calls is made or answered."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.task: asyncio.Task[None] | None = None
        self._may_run = asyncio.Event()
        self._may_run.set()

    async def runs(self) -> None:
        """Wait until the process runs."""
        await self._may_run.wait()

    def stop(self) -> None:
        """Stop the process."""
        self._may_run.clear()

    def wake(self) -> None:
        """Let the process go on, without its Lease."""
        self.lease.is_lost = True
        self._may_run.set()

    async def end(self) -> None:
        """Kill the process: it makes no call any more, whatever its tasks do on their way out."""
        assert self.task is not None
        assert not self.task.done(), self.task
        self.stop()
        await cancel_and_join(self.task)


LEADER: ContextVar[Leader] = ContextVar("leader")


class InterceptedServer(MemoryServer):
    """An API server whose writes go through an interceptor."""

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    async def do(
        self, method: str, path: str, *, body: bytes | None, content_type: str, **rest: Any
    ) -> bytes:
        async def request() -> bytes:
            return await super(InterceptedServer, self).do(
                method, path, body=body, content_type=content_type, **rest
            )

        if method == "GET":
            await LEADER.get().runs()
            return await request()
        try:
            return await self._interceptor.call(API, _call_name(method, path), request)
        except lease_guard.LeaseExpired as error:
            raise Unreachable(str(error), kind="timeout") from error

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **rest: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        leader = LEADER.get()

        async def gated(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for line in lines:
                await leader.runs()
                yield line

        async with super().stream(path, query=query, **rest) as lines:
            yield gated(lines)


def _call_name(method: str, path: str) -> str:
    """Method and resource, without the names of objects."""
    parts = path.partition("/namespaces/")[2].split("/")[1:] or path.split("/")[3:]
    return " ".join([method, "/".join([parts[0], *parts[2:]])])


# --- the cloud --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A VM of the account; `identity` is empty where the driver marks nothing."""

    provider_id: str
    name: str
    identity: Identity
    created: datetime
    initialized: bool = False


class Account(Protocol):
    """The servers and disks of a cloud account.

    Attributes:
        servers: existing servers by provider ID.
        disks: name of the server of each disk.
        ordered: number of servers ever made, by name.
    """

    @property
    def servers(self) -> Mapping[str, Server]: ...

    @property
    def disks(self) -> Collection[str]: ...

    @property
    def ordered(self) -> Counter[str]: ...


class MemoryAccount:
    """An account without a cloud; see `Account`."""

    def __init__(self, interceptor: Interceptor) -> None:
        self.servers: dict[str, Server] = {}
        self.disks: set[str] = set()
        self.ordered: Counter[str] = Counter()
        self._interceptor = interceptor

    async def create_disk(self, name: str) -> None:
        await self._request("create disk", lambda: self.disks.add(name))

    async def create_server(self, name: str, identity: Identity | None = None) -> Server:
        def create() -> Server:
            number = self.ordered.total()
            self.ordered[name] += 1
            marks = identity or Identity(cluster="", pool="", name="", uid="")
            made = Server(
                provider_id=f"fake:///{number}", name=name, identity=marks, created=clock.now()
            )
            self.servers[made.provider_id] = made
            return made

        return await self._request("create server", create)

    async def initialize_server(self, provider_id: str) -> Server:
        def initialize() -> Server:
            made = self._get(provider_id)
            self.servers[provider_id] = replace(made, initialized=True)
            return made

        return await self._request("initialize server", initialize)

    async def delete_server(self, provider_id: str) -> None:
        await self._request("delete server", lambda: self.servers.pop(provider_id, None))

    async def delete_disk(self, name: str) -> None:
        await self._request("delete disk", lambda: self.disks.discard(name))

    async def list_servers(self) -> Sequence[Server]:
        return await self._request("list servers", lambda: list(self.servers.values()))

    def _get(self, provider_id: str) -> Server:
        if provider_id not in self.servers:
            raise CloudFault(f"no server {provider_id}", code="NotFound")
        return self.servers[provider_id]

    async def _request(self, name: str, act: Callable[[], T]) -> T:
        async def request() -> T:
            await asyncio.sleep(REQUEST_S)
            answer = act()
            await asyncio.sleep(REQUEST_S)
            return answer

        return await self._interceptor.call(CLOUD, name, request)


class NativeDriver(Driver[MemoryAccount]):
    """Marks servers with their identity; makes a server whenever it is asked for one."""

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        with decoded():
            await self.spi.create_disk(req.identity.name)
            return _info(await self.spi.create_server(req.identity.name, req.identity))

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        with decoded():
            return _info(await self.spi.initialize_server(req.provider_id))

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        with decoded():
            for server in await self._servers(req):
                await self.spi.delete_server(server.provider_id)
            await self.spi.delete_disk(req.identity.name)
        return DeleteMachineResponse()

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        with decoded():
            for server in await self._servers(req):
                return _info(server)
        raise errors.NotFound(req.identity.name)

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        with decoded():
            return [
                MachineRecord(
                    identity=one.identity,
                    info=_info(one),
                    created=one.created,
                    initialized=one.initialized,
                )
                for one in await self.spi.list_servers()
            ]

    async def _servers(self, req: MachineRequest) -> Sequence[Server]:
        """The servers with the provider ID, or with the identity where there is none."""
        return [
            one
            for one in await self.spi.list_servers()
            if (
                one.provider_id == req.provider_id
                if req.provider_id
                else one.identity == req.identity
            )
        ]


@contextlib.contextmanager
def decoded() -> Iterator[None]:
    try:
        yield
    except CloudFault as error:
        kind = errors.class_of(getattr(error, "code", None))
        if kind is None:
            raise
        raise kind(str(error)) from error


def _info(server: Server) -> MachineInfo:
    return MachineInfo(provider_id=server.provider_id, node_name=server.name)


class NamedDriver:
    """A driver of Gardener's shape: names only, and another server for each creation."""

    def __init__(self, account: MemoryAccount) -> None:
        self.account = account

    async def create_machine(self, req: GardenerRequest) -> Mapping[str, str]:
        name = _name(req)
        await self.account.create_disk(name)
        return _shown(await self.account.create_server(name))

    async def get_machine_status(self, req: GardenerRequest) -> Mapping[str, str]:
        return _shown(await self._found(req))

    async def delete_machine(self, req: GardenerRequest) -> None:
        for server in await self._servers(req):
            await self.account.delete_server(server.provider_id)
        await self.account.delete_disk(_name(req))

    async def list_machines(self, _req: GardenerRequest) -> Mapping[str, Mapping[str, str]]:
        servers = await self.account.list_servers()
        return {"machine_list": {one.provider_id: one.name for one in servers}}

    async def _servers(self, req: GardenerRequest) -> Sequence[Server]:
        """The servers with the provider ID, or with the name where there is none."""
        assert req.machine is not None
        provider_id = req.machine.spec.provider_id
        return [
            one
            for one in await self.account.list_servers()
            if (one.provider_id == provider_id if provider_id else one.name == _name(req))
        ]

    async def _found(self, req: GardenerRequest) -> Server:
        for server in await self._servers(req):
            return server
        raise CloudFault(f"no server {_name(req)}", code="NotFound")


class FindingDriver(NamedDriver):
    """One that finds its server by name, and initialises it after its creation."""

    async def create_machine(self, req: GardenerRequest) -> Mapping[str, str]:
        for server in await self._servers(req):
            return _shown(server)
        return await super().create_machine(req)

    async def get_machine_status(self, req: GardenerRequest) -> Mapping[str, str]:
        server = await self._found(req)
        if not server.initialized:
            error = CloudFault(f"server {server.name} has to be initialised", code="Uninitialized")
            vars(error).update(_shown(server))
            raise error
        return _shown(server)

    async def initialize_machine(self, req: GardenerRequest) -> Mapping[str, str]:
        assert req.machine is not None
        return _shown(await self.account.initialize_server(req.machine.spec.provider_id))


def _name(req: GardenerRequest) -> str:
    assert req.machine is not None
    return req.machine.metadata.name


def _shown(server: Server) -> Mapping[str, str]:
    return {"provider_id": server.provider_id, "node_name": server.name}


# --- the world --------------------------------------------------------------------------------


class CrashWorld(World):
    """A cluster with one MachineDeployment `web`, and an account with its servers.

    Args:
        driver: creates the driver of an account.
        initializes: whether the driver initialises servers.

    Attributes:
        base: path of the objects.
        controllers: controllers of a leader.
        provider: name of the cloud.
        account_type: type of the account.
    """

    base: ClassVar[str]
    controllers: ClassVar[tuple[str, ...]]
    provider: ClassVar = "fake"
    account_type: ClassVar[type[Any]] = MemoryAccount

    def __init__(self, driver: Callable[[Any], Any], *, initializes: bool = True) -> None:
        self.interceptor = Interceptor()
        super().__init__(InterceptedServer(self.interceptor))
        account = self.account_type(self.interceptor)
        self.account: Account = account
        self._machine_driver = driver(account)
        self._initializes = initializes

    def cloud(self) -> Cloud:
        return Cloud(name=self.provider, machines=self._machine_driver, has_cluster_id=True)

    # --- what a user does ---------------------------------------------------------------------

    def create(self, replicas: int) -> None:
        """Create the deployment, with machines of class `small`."""
        raise NotImplementedError

    def roll(self) -> None:
        """Change the class of the machines to `large`."""
        raise NotImplementedError

    def scale(self, replicas: int) -> None:
        self.server.patch(f"{self.base}/machinedeployments/web", {"spec": {"replicas": replicas}})

    def delete(self) -> None:
        self.server.drop(f"{self.base}/machinedeployments/web")

    # --- who takes part -----------------------------------------------------------------------

    async def lead(self) -> Leader:
        """Start a process that leads."""
        leader = Leader()
        # The task takes over both with its context.
        LEADER.set(leader)
        leader.lease.activate()
        leader.task = spawn(self._run(self.controllers), name="leader")
        return leader

    @contextlib.asynccontextmanager
    async def kubelets(self) -> AsyncIterator[None]:
        """Each server becomes a ready node once it has booted."""
        task = spawn(self._boot(), name="kubelets")
        try:
            yield
            assert not task.done(), task
        finally:
            await cancel_and_join(task)

    async def _boot(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Act as the other components of the cluster; called every `TICK_S`."""
        for server in list(self.account.servers.values()):
            age_s = (clock.now() - server.created).total_seconds()
            if age_s >= BOOT_S and not self.node_object(server.name):
                self.node(server.name, providerID=server.provider_id)

    # --- the state ----------------------------------------------------------------------------

    def objects(self, plural: str) -> list[dict[str, Any]]:
        return self.server.list(f"{self.base}/{plural}")

    def here(self) -> list[str]:
        """Names of the machines that are not being deleted."""
        return sorted(
            one["metadata"]["name"]
            for one in self.objects("machines")
            if "deletionTimestamp" not in one["metadata"]
        )

    def class_name(self, machine: Mapping[str, Any]) -> str:
        """Return the class of a machine: `small` or `large`."""
        raise NotImplementedError

    def problems(self, replicas: int, class_name: str) -> list[str]:
        """What is still missing, or too much, for a deployment of so many machines of a class.

        With 0 replicas the deployment and its sets are gone too.
        """
        machines = {one["metadata"]["name"]: one for one in self.objects("machines")}
        stored = {one["spec"].get("providerID", ""): name for name, one in machines.items()}
        servers = {one.provider_id: one.name for one in self.account.servers.values()}
        uids = {one["metadata"]["uid"] for one in machines.values()}
        marks = {uid for one in self.account.servers.values() if (uid := one.identity.uid)}
        classes = [self.class_name(one) for one in machines.values()]
        nodes = {one["metadata"]["name"] for one in self.server.list(NODES_PATH)}
        running = [name for name in machines if self.phase(name) == "Running"]
        uninitialized = [one.name for one in self.account.servers.values() if not one.initialized]
        checks = {
            f"machines of classes {classes}": classes != [class_name] * replicas,
            f"running: {len(running)} of {len(machines)}": len(running) != len(machines),
            f"servers {servers}, machines {stored}": servers != stored,
            f"servers of the UIDs {marks}, machines {uids}": not marks <= uids,
            f"disks {sorted(self.account.disks)}": sorted(self.account.disks) != sorted(machines),
            f"nodes {sorted(nodes)}": nodes != machines.keys(),
            "bootstrap tokens": self.server.list(TOKENS) != [],
            f"uninitialised: {uninitialized}": self._initializes and uninitialized != [],
            "deployment and sets": replicas == 0
            and (self.objects("machinedeployments") + self.objects("machinesets")) != [],
        }
        return [text for text, is_wrong in checks.items() if is_wrong]


class GardenerWorld(CrashWorld, Sets):
    """A world of Gardener's machine objects."""

    base = BASE
    controllers = ("machine", "machineclass", "machineset", "machinedeployment", "machinesafety")

    def __init__(self, driver: Callable[[Any], Any], *, initializes: bool = True) -> None:
        super().__init__(driver, initializes=initializes)
        for name in ("small", "large"):
            self.machine_class(name)
            self.secret(name)

    def create(self, replicas: int) -> None:
        self.deployment(replicas=replicas)

    def roll(self) -> None:
        spec = {"class": {"kind": "MachineClass", "name": "large"}}
        template = {"template": {**TEMPLATE, "spec": spec}}
        self.server.patch(f"{self.base}/machinedeployments/web", {"spec": template})

    def class_name(self, machine: Mapping[str, Any]) -> str:
        return str(machine["spec"]["class"]["name"])


WORLDS: Mapping[str, Callable[[], CrashWorld]] = {
    "native": partial(GardenerWorld, NativeDriver),
    "gardener": partial(
        GardenerWorld, lambda account: from_gardener(NamedDriver(account)), initializes=False
    ),
    "gardener-finds": partial(GardenerWorld, lambda account: from_gardener(FindingDriver(account))),
}
"""Worlds of Gardener's machine objects by the kind of their driver."""
