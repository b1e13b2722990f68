"""A small, well-behaved cloud in memory: instances, VMs by request, load balancers, routes.

`MemoryApi` and its two subclasses are the cloud, with errors of their own; `MemoryProvider`,
`MemoryMachines` and `MemoryNetwork` translate. Faults last until `heal`. A VM and a load balancer
take two writes each, so that a crash can fall in between.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from ccm.cloud import errors
from ccm.cloud.helpers import (
    default_load_balancer_name,
    format_provider_id,
    is_allow_all,
    load_balancer_source_ranges,
    parse_provider_id,
)
from ccm.cloud.interface import Cloud, InstancesByPower
from ccm.cloud.machines import (
    Credentials,
    DeleteMachineResponse,
    Driver,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    Phase,
    Problem,
    check_owner,
)
from ccm.cloud.types import (
    Ingress,
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    LoadBalancerRecord,
    Power,
    Route,
    Status,
    Zone,
    address,
)
from ccm.model import Node, NodeAddress, Service
from ccm.testing.contract import Harness, HeldBalancer, HeldVM, Made

T = TypeVar("T")

SCHEME = "memory"
"""The provider's name and the scheme of its IDs."""

ERRORS: Mapping[int, type[errors.CloudError]] = {
    401: errors.Unauthenticated,
    404: errors.NotFound,
    409: errors.ResourceExhausted,
    412: errors.AlreadyExists,
    422: errors.InvalidArgument,
    423: errors.FailedPrecondition,
    429: errors.ResourceExhausted,
    503: errors.Unavailable,
}
"""Status of an answer -> error; any other is `Internal`."""


class MemoryApiError(Exception):
    """The client's own error, with the status of the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(kw_only=True)
class MemoryInstance:
    """One instance; its ID and number never change."""

    id: str
    name: str
    number: int
    state: str = "running"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def ip(self) -> str:
        """Its one address."""
        return f"10.0.{self.number // 250}.{self.number % 250 + 1}"


@dataclass(kw_only=True)
class MemoryApi:
    """The cloud: instances by ID, and a client's view of them that may fail.

    Attributes:
        page_size: instances per page of a listing.
        token: the credentials that are accepted.
        fault: status of every answer, or `hang`; None = none.
        requests: how many requests came in, refused ones included.
        writes: how many requests changed something.
        lost: the answer to the write of this number is lost; None = of none.
        slow: VMs stay `starting` and `deleting`, new load balancers `pending`.
    """

    page_size: int = 50
    token: str = "first"
    fault: int | Literal["hang"] | None = None
    requests: int = 0
    writes: int = 0
    lost: int | None = None
    slow: bool = False
    instances: dict[str, MemoryInstance] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _healed: asyncio.Event = field(default_factory=asyncio.Event)

    def create(self, name: str = "") -> MemoryInstance:
        """A new running instance."""
        number = next(self._numbers)
        made = MemoryInstance(id=f"i-{number}", name=name or f"memory-{number}", number=number)
        self.instances[made.id] = made
        return made

    def heal(self) -> None:
        """End the fault; requests that hang are answered."""
        self.fault = self.lost = None
        self._healed.set()
        self._healed = asyncio.Event()

    async def get(self, token: str, instance_id: str) -> MemoryInstance:
        """One instance. Raises MemoryApiError."""
        await self.request(token)
        found = self.instances.get(instance_id)
        if found is None:
            raise MemoryApiError(404)
        return found

    async def find(self, token: str, name: str) -> MemoryInstance:
        """The instance of that name. Raises MemoryApiError."""
        await self.request(token)
        for instance in self.instances.values():
            if instance.name == name:
                return instance
        raise MemoryApiError(404)

    async def page(self, token: str, start: int) -> Sequence[MemoryInstance]:
        """Some instances from a position on. Raises MemoryApiError."""
        await self.request(token)
        return list(self.instances.values())[start : start + self.page_size]

    async def request(self, token: str) -> None:
        """One request comes in. Raises MemoryApiError."""
        self.requests += 1
        await asyncio.sleep(0)
        if self.fault == "hang":
            await self._healed.wait()
        elif self.fault is not None:
            raise MemoryApiError(self.fault)
        if token != self.token:
            raise MemoryApiError(401)

    def written(self) -> None:
        """Count a write that took effect. Raises MemoryApiError if its answer is lost."""
        self.writes += 1
        if self.writes == self.lost:
            raise MemoryApiError(503)


class MemoryProvider:
    """Translates between the cloud and the daemon, through the new and the old interface."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self._token = api.token

    async def instance_exists(self, node: Node) -> bool:
        """Whether it exists."""
        return await _exists(self._of(node))

    async def instance_shutdown(self, node: Node) -> bool:
        """Whether it is stopped."""
        return _power(await self._of(node)) is Power.SHUTDOWN

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """Everything about it."""
        return _metadata(await self._of(node))

    async def list_instances(self) -> InstanceListing:
        """All instances, page by page."""
        found: list[MemoryInstance] = []
        requests, more = 0, True
        while more:
            page = await translated(self.api.page(self._token, len(found)))
            found += page
            requests += 1
            more = len(page) == self.api.page_size
        records = [
            InstanceRecord(name=each.name, power=_power(each), metadata=_metadata(each))
            for each in found
        ]
        return InstanceListing(instances=records, requests=requests)

    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """Addresses by name."""
        return _metadata(await self._named(node_name)).addresses

    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """Addresses by provider ID."""
        return _metadata(await self._get(provider_id)).addresses

    async def instance_id(self, node_name: str) -> str:
        """The ID without scheme."""
        return (await self._named(node_name)).id

    async def instance_type(self, node_name: str) -> str:
        """Type by name."""
        return _metadata(await self._named(node_name)).instance_type

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Type by provider ID."""
        return _metadata(await self._get(provider_id)).instance_type

    async def add_ssh_key_to_all_instances(self, user: str, key: str) -> None:
        """Not offered."""
        raise errors.Unimplemented(f"no SSH keys here, neither {key} nor others for {user}")

    async def current_node_name(self, hostname: str) -> str:
        """The host name."""
        return hostname

    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """Whether it exists."""
        return await _exists(self._get(provider_id))

    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """Whether it is stopped."""
        return _power(await self._get(provider_id)) is Power.SHUTDOWN

    async def get_zone(self) -> Zone:
        """Not offered."""
        raise errors.Unimplemented("we run outside the cloud")

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """Zone by provider ID."""
        return _zone(await self._get(provider_id))

    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """Zone by name."""
        return _zone(await self._named(node_name))

    async def _of(self, node: Node) -> MemoryInstance:
        if node.provider_id:
            return await self._get(node.provider_id)
        return await self._named(node.name)

    async def _get(self, provider_id: str) -> MemoryInstance:
        instance_id = parse_provider_id(provider_id, SCHEME)
        return await translated(self.api.get(self._token, instance_id))

    async def _named(self, name: str) -> MemoryInstance:
        return await translated(self.api.find(self._token, name))


class MemoryStateProvider(InstancesByPower, MemoryProvider):
    """The same with existence and power in one question."""

    async def instance_power(self, node: Node) -> Power:
        """Its power, or `NotFound`."""
        return _power(await self._of(node))


@asynccontextmanager
async def open_memory(
    api: MemoryApi, *, provider: type[MemoryProvider] = MemoryProvider
) -> AsyncIterator[Cloud]:
    """A provider with every capability; `dataclasses.replace` takes some away."""
    offered = provider(api)
    yield Cloud(
        name=SCHEME,
        instances=offered,
        instances_v1=offered,
        zones=offered,
        inventory=offered,
        has_cluster_id=True,
    )


async def translated(answer: Awaitable[T]) -> T:
    """The client's answer; its errors become those of the SDK."""
    try:
        return await answer
    except MemoryApiError as error:
        raise ERRORS.get(error.status, errors.Internal)(str(error)) from error


async def _exists(found: Awaitable[MemoryInstance]) -> bool:
    try:
        await found
    except errors.NotFound:
        return False
    return True


def _power(instance: MemoryInstance) -> Power:
    return Power.SHUTDOWN if instance.state == "stopped" else Power.RUNNING


def _zone(instance: MemoryInstance) -> Zone:
    return Zone(failure_domain=f"zone-{instance.number % 3}", region="region")


def _metadata(instance: MemoryInstance) -> InstanceMetadata:
    zone = _zone(instance)
    return InstanceMetadata(
        provider_id=format_provider_id(SCHEME, instance.id),
        instance_type="small",
        addresses=(address("InternalIP", instance.ip), address("Hostname", instance.name)),
        zone=zone.failure_domain,
        region=zone.region,
        additional_labels=instance.labels,
    )


SIZES = ("small", "big")
"""All VMs."""

ROLE = "role"
"""The tag of a VM that was initialised."""


@dataclass(kw_only=True)
class MemoryMachineApi(MemoryApi):
    """The cloud, where VMs can be ordered.

    Attributes:
        disks: tags of each disk, by its name.
    """

    disks: dict[str, Mapping[str, str]] = field(default_factory=dict)

    async def tagged(self, token: str, tags: Mapping[str, str]) -> list[MemoryInstance]:
        """All VMs with these tags, page by page. Raises MemoryApiError."""
        found: list[MemoryInstance] = []
        more = True
        while more:
            page = await self.page(token, len(found))
            found += page
            more = len(page) == self.page_size
        return [one for one in found if tags.items() <= one.labels.items()]

    async def put_disk(self, token: str, name: str, tags: Mapping[str, str]) -> None:
        """Make a disk, or leave the one that is there. Raises MemoryApiError."""
        await self.request(token)
        self.disks.setdefault(name, tags)
        self.written()

    async def drop_disk(self, token: str, name: str) -> None:
        """Delete a disk. Raises MemoryApiError."""
        await self.request(token)
        self.disks.pop(name, None)
        self.written()

    async def order(self, token: str, name: str, tags: Mapping[str, str]) -> MemoryInstance:
        """Create a VM with an unused name. Raises MemoryApiError."""
        await self.request(token)
        if any(one.name == name for one in self.instances.values()):
            raise MemoryApiError(412)
        made = self.create(name)
        made.labels = tags
        made.state = "starting" if self.slow else "running"
        self.written()
        return made

    async def tag(self, token: str, instance_id: str, tags: Mapping[str, str]) -> MemoryInstance:
        """Add tags to a VM. Raises MemoryApiError."""
        found = await self.get(token, instance_id)
        found.labels = {**found.labels, **tags}
        self.written()
        return found

    async def drop(self, token: str, instance_id: str) -> None:
        """Delete a VM. Raises MemoryApiError."""
        found = await self.get(token, instance_id)
        if self.slow:
            found.state = "deleting"
        else:
            del self.instances[instance_id]
        self.written()


class MemoryMachines(Driver[MemoryMachineApi]):
    """Translates between that cloud and the daemon."""

    csi_driver = "csi.memory"

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        """The disk first, then the VM."""
        check(req.provider_spec)
        token = token_of(req.credentials)
        found = await self._find(req)
        if found is not None:
            return info(found)
        tags = asdict(req.identity)
        for one in await translated(self.spi.tagged(token, {})):
            if one.name == req.identity.name:
                raise errors.AlreadyExists(f"{one.id} has the name {one.name}")
        await translated(self.spi.put_disk(token, req.identity.uid, tags))
        return info(await translated(self.spi.order(token, req.identity.name, tags)))

    async def initialize_machine(self, req: MachineRequest) -> MachineInfo:
        """Tag it with its role."""
        token = token_of(req.credentials)
        found = await self._there(req)
        return info(await translated(self.spi.tag(token, found.id, {ROLE: "worker"})))

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        """One that has no role wants one."""
        found = await self._there(req)
        if ROLE not in found.labels:
            raise errors.Uninitialized(f"{found.id} has no role").carrying(info(found))
        return info(found)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        """Delete the VM first, then its disk."""
        token = token_of(req.credentials)
        found, disk = await self._find(req), req.identity.uid
        if found is not None:
            await translated(self.spi.drop(token, found.id))
            if found.state == "deleting":
                raise errors.RetryAfter(f"{found.id} is being deleted", seconds=1.0)
            disk = found.labels.get("uid", "")
        await translated(self.spi.drop_disk(token, disk))
        return DeleteMachineResponse()

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        """All with the pool's tag."""
        found = await translated(self.spi.tagged(token_of(req.credentials), {"pool": req.pool}))
        return [
            MachineRecord(identity=_identity(one), info=info(one), initialized=ROLE in one.labels)
            for one in found
        ]

    async def migrate_uid(self, req: MachineRequest, former: str) -> None:
        """Make another disk for the new UID, then tag the VM."""
        token, identity = token_of(req.credentials), req.identity
        owner = replace(req, identity=replace(identity, uid=former), provider_id="")
        found = await self._find(owner)
        if found is not None:
            await translated(self.spi.put_disk(token, identity.uid, asdict(identity)))
            await translated(self.spi.tag(token, found.id, {"uid": identity.uid}))
            await translated(self.spi.drop_disk(token, former))

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: Credentials, live: bool
    ) -> Sequence[Problem]:
        """Whether there is such a size, and the cloud may be asked."""
        try:
            check(spec)
        except errors.InvalidArgument as error:
            return [Problem(field="size", message=str(error))]
        if live:
            await translated(self.spi.page(token_of(credentials), 0))
        return []

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """The size."""
        return {"size": str(spec.get("size", ""))}

    async def _there(self, req: MachineRequest) -> MemoryInstance:
        found = await self._find(req)
        if found is None:
            raise errors.NotFound(f"no VM of {req.identity.name}")
        return found

    async def _find(self, req: MachineRequest) -> MemoryInstance | None:
        token = token_of(req.credentials)
        if req.provider_id:
            instance_id = parse_provider_id(req.provider_id, SCHEME)
            try:
                found = await translated(self.spi.get(token, instance_id))
            except errors.NotFound:
                return None
            check_owner(req, _identity(found))
            return found
        marks = {"cluster": req.identity.cluster, "uid": req.identity.uid}
        return next(iter(await translated(self.spi.tagged(token, marks))), None)


def _identity(vm: MemoryInstance) -> Identity:
    return Identity(**{mark: vm.labels.get(mark, "") for mark in _MARKS})


_MARKS = tuple(one.name for one in fields(Identity))


@asynccontextmanager
async def open_memory_machines(
    api: MemoryMachineApi, *, driver: type[MemoryMachines] = MemoryMachines
) -> AsyncIterator[Cloud]:
    """A provider with instances and machines."""
    yield Cloud(
        name=SCHEME, instances=MemoryProvider(api), machines=driver(api), has_cluster_id=True
    )


def token_of(credentials: Mapping[str, bytes]) -> str:
    """The token in some credentials, under its own name or the cloud's."""
    for key in ("token", SCHEME):
        if key in credentials:
            return credentials[key].decode()
    raise errors.InvalidArgument("the credentials lack token")


def check(spec: Mapping[str, Any]) -> None:
    """Refuse a spec that makes no sense. Raises InvalidArgument."""
    if spec.get("size") not in SIZES:
        raise errors.InvalidArgument(f"size {spec.get('size')!r} is none of {', '.join(SIZES)}")


def info(found: MemoryInstance) -> MachineInfo:
    """What is told about a VM."""
    return MachineInfo(
        provider_id=format_provider_id(SCHEME, found.id),
        node_name=found.name,
        addresses=(address("InternalIP", found.ip),),
        phase=Phase.RUNNING if found.state == "running" else Phase.UNKNOWN,
    )


PROTOCOLS = ("TCP", "UDP")

Ports = tuple[tuple[str, int, int], ...]


@dataclass(kw_only=True)
class MemoryBalancer:
    """One load balancer; `state` is `active`, `pending` or `failed: <reason>`."""

    name: str
    cluster: str
    ip: str
    ports: Ports
    members: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    state: str = "active"
    protected: bool = False


@dataclass(kw_only=True)
class MemoryRoute:
    """One route to an instance, by the instance's name."""

    id: str
    cluster: str
    cidr: str
    target: str


@dataclass(kw_only=True)
class MemoryNetworkApi(MemoryApi):
    """The cloud with a network.

    Attributes:
        any_member: members need not be instances.
        balancers: by name.
        routes: by ID.
    """

    any_member: bool = False
    balancers: dict[str, MemoryBalancer] = field(default_factory=dict)
    routes: dict[str, MemoryRoute] = field(default_factory=dict)
    _serial: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def names(self) -> set[str]:
        """Names of the instances."""
        return {one.name for one in self.instances.values()}

    async def balancer(self, token: str, name: str) -> MemoryBalancer | None:
        """One load balancer. Raises MemoryApiError."""
        await self.request(token)
        return self.balancers.get(name)

    async def all_balancers(self, token: str) -> list[MemoryBalancer]:
        """All load balancers. Raises MemoryApiError."""
        await self.request(token)
        return list(self.balancers.values())

    async def put_balancer(
        self, token: str, name: str, cluster: str, ports: Ports, ranges: tuple[str, ...] = ()
    ) -> None:
        """Make a load balancer or change its ports and source ranges; another cluster's is 412.

        Raises MemoryApiError.
        """
        await self.request(token)
        found = self.balancers.get(name)
        if found is None:
            ip = f"192.0.2.{next(self._serial) % 250 + 1}"
            state = "pending" if self.slow else "active"
            made = MemoryBalancer(
                name=name, cluster=cluster, ip=ip, ports=ports, ranges=ranges, state=state
            )
            self.balancers[name] = made
        elif found.cluster != cluster:
            raise MemoryApiError(412)
        else:
            found.ports, found.ranges = ports, ranges
        self.written()

    async def put_members(self, token: str, name: str, members: tuple[str, ...]) -> None:
        """Replace members; one that is no instance is 422. Raises MemoryApiError."""
        await self.request(token)
        if name not in self.balancers:
            raise MemoryApiError(404)
        if not (self.any_member or self.names.issuperset(members)):
            raise MemoryApiError(422)
        self.balancers[name].members = members
        self.written()

    async def delete_balancer(self, token: str, name: str) -> None:
        """Delete a load balancer. Raises MemoryApiError."""
        await self.request(token)
        if name not in self.balancers:
            raise MemoryApiError(404)
        if self.balancers[name].protected:
            raise MemoryApiError(423)
        del self.balancers[name]
        self.written()

    async def all_routes(self, token: str) -> list[MemoryRoute]:
        """All routes. Raises MemoryApiError."""
        await self.request(token)
        return list(self.routes.values())

    async def put_route(self, token: str, cluster: str, cidr: str, target: str) -> None:
        """Make a route, or leave the same one; a taken range is 412. Raises MemoryApiError."""
        await self.request(token)
        for one in self.routes.values():
            if (one.cluster, one.cidr) == (cluster, cidr):
                if one.target != target:
                    raise MemoryApiError(412)
                return
        made = MemoryRoute(id=f"r-{next(self._serial)}", cluster=cluster, cidr=cidr, target=target)
        self.routes[made.id] = made
        self.written()

    async def delete_route(self, token: str, route_id: str) -> None:
        """Delete a route. Raises MemoryApiError."""
        await self.request(token)
        if self.routes.pop(route_id, None) is None:
            raise MemoryApiError(404)
        self.written()


class RefusedMembers(errors.Aborted):
    """The cloud refused some nodes; the others are members."""


class MemoryNetwork:
    """`LoadBalancer` with digests, and `Routes`."""

    def __init__(self, api: MemoryNetworkApi) -> None:
        self.api = api
        self._token = api.token

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        """From the UID."""
        return default_load_balancer_name(service)

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        """Its address."""
        found = await self._find(cluster_name, service)
        return None if found is None else _status(found)

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        """Ports and source ranges first, then members; each only if it differs.

        Raises:
            RefusedMembers: with the status of the load balancer, which serves.
        """
        name = self.get_load_balancer_name(cluster_name, service)
        wanted = _ports(service), _ranges(service)
        found = await self._find(cluster_name, service)
        if found is None or (found.ports, found.ranges) != wanted:
            if found is not None:
                _check(found)
            await translated(self.api.put_balancer(self._token, name, cluster_name, *wanted))
        refused: RefusedMembers | None = None
        try:
            await self.update_load_balancer(cluster_name, service, nodes)
        except RefusedMembers as error:
            refused = error
        found = await self._find(cluster_name, service)
        if found is None:
            raise errors.Aborted(f"load balancer {name} is gone again")
        if refused is not None:
            raise refused.carrying(_status(found))
        return _status(found)

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        """Members, if they differ; without those that the cloud refuses, which an error names."""
        found = await self._find(cluster_name, service)
        if found is None:
            raise errors.NotFound("no such load balancer")
        _check(found)
        wanted = _members(nodes)
        try:
            await self._put_members(found, wanted)
        except errors.InvalidArgument as error:
            listing = await MemoryProvider(self.api).list_instances()
            living = {one.name for one in listing.instances}
            await self._put_members(found, tuple(name for name in wanted if name in living))
            refused = ", ".join(name for name in wanted if name not in living)
            raise RefusedMembers(
                f"load balancer {found.name}: {refused} are no instances; delete their nodes"
            ) from error

    async def _put_members(self, balancer: MemoryBalancer, members: tuple[str, ...]) -> None:
        if balancer.members != members:
            await translated(self.api.put_members(self._token, balancer.name, members))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        """Delete what is there."""
        name = self.get_load_balancer_name(cluster_name, service)
        await self.delete_load_balancer(cluster_name, name)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete what is there."""
        found = await translated(self.api.balancer(self._token, name))
        if found is not None and found.cluster == cluster_name:
            with suppress(errors.NotFound):
                await translated(self.api.delete_balancer(self._token, name))

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        """All of the cluster."""
        found = await translated(self.api.all_balancers(self._token))
        return [
            LoadBalancerRecord(
                name=one.name,
                digest=_digest(one.ports, one.ranges, one.members),
                status=_status(one),
            )
            for one in found
            if one.cluster == cluster_name
        ]

    def load_balancer_digest(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> str:
        """Of ports, source ranges and members."""
        return _digest(_ports(service), _ranges(service), _members(nodes))

    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        """All of the cluster; without an instance a route leads nowhere."""
        found = await translated(self.api.all_routes(self._token))
        living = self.api.names
        return [
            Route(
                destination_cidr=one.cidr,
                target_node=one.target if one.target in living else "",
                name=one.id,
                blackhole=one.target not in living,
            )
            for one in found
            if one.cluster == cluster_name
        ]

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        """Make it."""
        cidr, target = route.destination_cidr, route.target_node
        await translated(self.api.put_route(self._token, cluster_name, cidr, target))

    async def delete_route(self, cluster_name: str, route: Route) -> None:
        """Delete it."""
        with suppress(errors.NotFound):
            await translated(self.api.delete_route(self._token, route.name))

    async def _find(self, cluster_name: str, service: Service) -> MemoryBalancer | None:
        name = self.get_load_balancer_name(cluster_name, service)
        found = await translated(self.api.balancer(self._token, name))
        return found if found is not None and found.cluster == cluster_name else None


@asynccontextmanager
async def open_memory_network(
    api: MemoryNetworkApi, *, network: type[MemoryNetwork] = MemoryNetwork
) -> AsyncIterator[Cloud]:
    """A provider with instances, load balancers and routes."""
    offered = network(api)
    yield Cloud(
        name=SCHEME,
        instances=MemoryProvider(api),
        load_balancer=offered,
        routes=offered,
        has_cluster_id=True,
    )


def _check(balancer: MemoryBalancer) -> None:
    if balancer.state == "pending":
        raise errors.RetryAfter(f"load balancer {balancer.name} is pending", seconds=1.0)
    if balancer.state != "active":
        raise errors.Aborted(f"load balancer {balancer.name} {balancer.state}")


def _ports(service: Service) -> Ports:
    for port in service.ports:
        if port.protocol not in PROTOCOLS:
            raise errors.InvalidArgument(
                f"port {port.port}: no load balancers for {port.protocol}; use TCP or UDP"
            )
    return tuple(sorted((port.protocol, port.port, port.node_port) for port in service.ports))


def _ranges(service: Service) -> tuple[str, ...]:
    found = load_balancer_source_ranges(service)
    return () if is_allow_all(found) else tuple(sorted(map(str, found)))


def _members(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(sorted(node.name for node in nodes if node.addresses))


def _digest(ports: Ports, ranges: Sequence[str], members: Sequence[str]) -> str:
    return repr((ports, sorted(ranges), sorted(members)))


def _status(balancer: MemoryBalancer) -> Status:
    return Status(ingress=(Ingress(ip=balancer.ip),))


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
            yield replace(cloud, **hidden)

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


class OddKeyHarness(MachineHarness):
    """The key of the token does not look like one of a secret."""

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {"endpoint": b"in-memory", SCHEME: self.api.token.encode()}


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
