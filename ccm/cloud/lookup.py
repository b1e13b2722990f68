"""What the node controllers ask about an instance, whichever interface a provider offers.

`InstancesV2` wins; else `Instances` with `Zones`. Where the provider has an inventory, a
shared listing answers first. The order of the calls on the old path and its fallbacks are
those of the Go reference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ccm.base import log
from ccm.cloud.errors import CloudError, FailedPrecondition, NotFound, Unimplemented
from ccm.cloud.interface import InstanceStates
from ccm.cloud.inventory import SharedInventory
from ccm.cloud.node_calls import NodeCalls
from ccm.cloud.provider_id import format_provider_id
from ccm.cloud.types import InstanceMetadata, InstanceState, Power, Zone
from ccm.model import Node, NodeAddress

T = TypeVar("T")

GONE = InstanceState(exists=False)
RUNNING = InstanceState(exists=True, power=Power.RUNNING)
SHUTDOWN = InstanceState(exists=True, power=Power.SHUTDOWN)


class InstanceLookup:
    """Answers about the instance behind a node.

    Args:
        calls: the guarded calls.
        inventory: the shared listing; None where the provider has none.
    """

    def __init__(self, calls: NodeCalls, inventory: SharedInventory | None = None) -> None:
        self._calls = calls
        self._inventory = inventory
        self._log = log.logger("lookup")

    @property
    def by_node(self) -> bool:
        """Whether the provider looks instances up by Node (`InstancesV2`)."""
        return self._calls.cloud.instances is not None

    async def metadata(self, node: Node, *, waiting: int = 1) -> InstanceMetadata | None:
        """Everything known, for initialising a node; None = nothing to say yet.

        Args:
            node: the node asked about.
            waiting: how many nodes wait for the same question now, this one included.

        Raises:
            CloudError: the cloud did not answer, or not usefully.
        """
        if self._calls.cloud.instances is None:
            return await self._metadata_v1(node)
        listed = await self._listed(node, single_requests=waiting)
        return listed if listed is not None else await self._calls.instance_metadata(node)

    async def addresses(self, node: Node, *, waiting: int = 1) -> Sequence[NodeAddress] | None:
        """The addresses, for the periodic pass; None = nothing to say. Raises CloudError."""
        if self._calls.cloud.instances is None:
            return await self._addresses_v1(node.provider_id, node.name)
        metadata = await self.metadata(node, waiting=waiting)
        return None if metadata is None else metadata.addresses

    async def state(self, node: Node, *, waiting: int = 1) -> InstanceState:
        """Whether the instance exists and runs.

        Raises:
            CloudError: existence or power is not known; nothing may follow from that.
        """
        instances = self._calls.cloud.instances
        if instances is None:
            return await self._state_v1(node)
        combined = isinstance(instances, InstanceStates)
        if self._inventory is not None:
            requests = waiting * (1 if combined else 2)
            record = await self._inventory.find(node, single_requests=requests)
            if record is not None:
                return InstanceState(exists=True, power=record.power)
        if combined:
            return await self._calls.instance_state(node)
        if not await self._calls.instance_exists(node):
            return GONE
        return await self._power(self._calls.instance_shutdown(node))

    async def confirmed_gone(self, node: Node) -> bool:
        """Ask once more, never from a listing, whether the instance is gone.

        Raises:
            CloudError: it is not known; the node must be kept.
        """
        if self._calls.cloud.instances is not None:
            return not await self._calls.instance_exists(node)
        return not (await self._state_v1(node, power=False)).exists

    async def _listed(self, node: Node, *, single_requests: int) -> InstanceMetadata | None:
        if self._inventory is None:
            return None
        record = await self._inventory.find(node, single_requests=single_requests)
        return record.metadata if record is not None else None

    async def _metadata_v1(self, node: Node) -> InstanceMetadata:
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id_v1(node)
            except Unimplemented:
                self._log.warning("provider cannot tell instance IDs", node=node.name)
        zone = Zone()
        addresses = await self._addresses_v1(provider_id, node.name)
        instance_type = await self._first_of(
            lambda: self._calls.instance_type_by_provider_id(provider_id),
            lambda: self._calls.instance_type(node.name),
            what="instance type",
        )
        if self._calls.cloud.zones is not None:
            zone = await self._first_of(
                lambda: self._calls.get_zone_by_provider_id(provider_id),
                lambda: self._calls.get_zone_by_node_name(node.name),
                what="zone",
            )
        return InstanceMetadata(
            provider_id=provider_id,
            instance_type=instance_type,
            addresses=addresses,
            zone=zone.failure_domain,
            region=zone.region,
        )

    async def _addresses_v1(self, provider_id: str, name: str) -> Sequence[NodeAddress]:
        return await self._first_of(
            lambda: self._calls.node_addresses_by_provider_id(provider_id),
            lambda: self._calls.node_addresses(name),
            what="addresses",
        )

    async def _state_v1(self, node: Node, *, power: bool = True) -> InstanceState:
        provider_id = node.provider_id
        if not provider_id:
            try:
                provider_id = await self._provider_id_v1(node)
            except NotFound:
                return GONE
        # A NotFound from here on is an ordinary error: only the boolean says "gone".
        try:
            exists = await self._calls.instance_exists_by_provider_id(provider_id)
        except NotFound as error:
            raise FailedPrecondition(f"existence of {provider_id} is unclear: {error}") from error
        if not exists:
            return GONE
        if not power:
            return RUNNING
        return await self._power(self._calls.instance_shutdown_by_provider_id(provider_id))

    async def _provider_id_v1(self, node: Node) -> str:
        instance_id = await self._calls.instance_id(node.name)
        return format_provider_id(self._calls.cloud.name, instance_id)

    async def _power(self, question: Awaitable[bool]) -> InstanceState:
        try:
            return SHUTDOWN if await question else RUNNING
        except Unimplemented:
            return RUNNING

    async def _first_of(
        self, first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[T]], *, what: str
    ) -> T:
        try:
            return await first()
        except CloudError as by_id:
            try:
                return await second()
            except CloudError as by_name:
                text = f"{what}: by provider ID: {by_id}; by name: {by_name}"
                raise _retold(by_name, text) from by_name


def _retold(error: CloudError, text: str) -> CloudError:
    """The same error with another text: its class and facts stay, so its policy holds.

    A copy, because a provider may raise one object again and again.
    """
    kind = type(error)
    copied = kind.__new__(kind, text)
    copied.__dict__.update(error.__dict__)
    return copied
