"""What the node controllers ask about an instance, whichever interface a provider offers.

`InstancesV2` wins; else `Instances` with `Zones` answer through `legacy`. Where the provider has
an inventory, a shared listing answers first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ccm.cloud.errors import Unimplemented
from ccm.cloud.interface import InstanceStates, InstancesV2
from ccm.cloud.inventory import SharedInventory
from ccm.cloud.legacy import LegacyInstances
from ccm.cloud.operation import Caller
from ccm.cloud.types import InstanceMetadata, InstanceRecord, InstanceState, Power
from ccm.model import Node, NodeAddress

GONE = InstanceState(exists=False)
RUNNING = InstanceState(exists=True, power=Power.RUNNING)
SHUTDOWN = InstanceState(exists=True, power=Power.SHUTDOWN)


class InstanceLookup:
    """Answers about the instance behind a node.

    Args:
        handle: the way to the cloud.
        inventory: the shared listing; None where the provider has none.
    """

    def __init__(self, handle: Caller, inventory: SharedInventory | None = None) -> None:
        self._handle = handle
        self._inventory = inventory
        self._legacy = LegacyInstances(handle)

    @property
    def by_node(self) -> bool:
        """Whether the provider looks instances up by Node (`InstancesV2`)."""
        return self._handle.offers(InstancesV2)

    @property
    def opening(self) -> int:
        """A number that changes when another provider object answers from now on."""
        return self._handle.opening

    def confirmed(self, node: Node) -> bool:
        """Whether this opening of the provider has confirmed the instance of a node without ID."""
        return node.uid in self._handle.confirmed

    def forget(self, node: Node) -> None:
        """The node is gone."""
        self._handle.confirmed.discard(node.uid)

    async def metadata(self, node: Node, *, waiting: int = 1) -> InstanceMetadata | None:
        """Everything known, for initialising a node; None = nothing to say yet.

        Args:
            node: the node asked about.
            waiting: how many nodes wait for the same question now, this one included.

        Raises:
            CloudError: the cloud did not answer, or not usefully.
        """
        opening = self.opening
        found = await self._metadata(node, waiting)
        self._note(node, opening, exists=found is not None)
        return found

    async def addresses(self, node: Node, *, waiting: int = 1) -> Sequence[NodeAddress] | None:
        """The addresses, for the periodic pass; None = nothing to say. Raises CloudError."""
        if self.by_node:
            metadata = await self.metadata(node, waiting=waiting)
            return None if metadata is None else metadata.addresses
        opening = self.opening
        addresses = await self._legacy.addresses(node)
        self._note(node, opening, exists=bool(addresses))
        return addresses

    async def state(self, node: Node, *, waiting: int = 1) -> InstanceState:
        """Whether the instance exists and runs.

        Raises:
            CloudError: existence or power is not known; nothing may follow from that.
        """
        opening = self.opening
        found = await self._state(node, waiting)
        self._note(node, opening, exists=found.exists)
        return found

    async def confirmed_gone(self, node: Node) -> bool:
        """Ask once more, never from a listing, whether the instance is gone.

        Raises:
            CloudError: it is not known; the node must be kept.
        """
        if not self.by_node:
            return not await self._legacy.instance_exists(node)
        return not await self._handle.call(InstancesV2.instance_exists, node)

    async def _state(self, node: Node, waiting: int) -> InstanceState:
        if not self.by_node:
            return await self._legacy.instance_state(node)
        combined = self._handle.offers(InstanceStates)
        record = await self._listed(node, single_requests=waiting * (1 if combined else 2))
        if record is not None:
            return InstanceState(exists=True, power=record.power)
        if combined:
            return await self._handle.call(InstanceStates.instance_state, node)
        if not await self._handle.call(InstancesV2.instance_exists, node):
            return GONE
        try:
            off = await self._handle.call(InstancesV2.instance_shutdown, node)
        except Unimplemented:
            return RUNNING
        return SHUTDOWN if off else RUNNING

    async def _metadata(self, node: Node, waiting: int) -> InstanceMetadata | None:
        if not self.by_node:
            return await self._legacy.instance_metadata(node)
        record = await self._listed(node, single_requests=waiting)
        if record is not None:
            return record.metadata
        return await self._handle.call(InstancesV2.instance_metadata, node)

    def _note(self, node: Node, opening: int, *, exists: bool) -> None:
        """Remember whom the cloud knows of those that nothing else says it of."""
        if exists and not node.provider_id and self.opening == opening:
            self._handle.confirmed.add(node.uid)

    async def _listed(self, node: Node, *, single_requests: int) -> InstanceRecord | None:
        if self._inventory is None:
            return None
        return await self._inventory.find(node, single_requests=single_requests)
