"""A small, well-behaved cloud in memory, with both faces, an inventory and faults.

Where `ccm.testing.fakes` answers what a test wrote down, here answers follow from
instances that are created, stopped and deleted. It has two halves, as every provider has:
`MemoryApi` stands for the cloud and its client, with errors of its own; `MemoryProvider`
translates. It is also the shortest provider that keeps the whole contract.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.power import InstancesByPower
from ccm.cloud.provider_id import format_provider_id, parse_provider_id
from ccm.cloud.types import (
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    Power,
    Zone,
    address,
)
from ccm.model import Node, NodeAddress

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
"""Status of an answer -> what it means; any other is `Internal`."""


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
    """

    page_size: int = 50
    token: str = "first"
    fault: int | Literal["hang"] | None = None
    requests: int = 0
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
        self.fault = None
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
