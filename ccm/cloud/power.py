"""What most providers answer about an instance, from one question: what power it has."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ccm.cloud.errors import NotFound
from ccm.cloud.types import InstanceState, Power
from ccm.model import Node


class InstancesByPower(ABC):
    """Base of instances: `InstancesV2` but for its metadata, and `InstanceStates`."""

    @abstractmethod
    async def instance_power(self, node: Node) -> Power:
        """Whether the instance is switched off; one in a state that you do not know runs.

        Raises:
            NotFound: there is none, on the cloud's word: it deletes the Node.
        """

    async def instance_exists(self, node: Node) -> bool:
        """See `InstancesV2.instance_exists`."""
        return (await self.instance_state(node)).exists

    async def instance_shutdown(self, node: Node) -> bool:
        """See `InstancesV2.instance_shutdown`."""
        return await self.instance_power(node) is Power.SHUTDOWN

    async def instance_state(self, node: Node) -> InstanceState:
        """See `InstanceStates.instance_state`."""
        try:
            return InstanceState(exists=True, power=await self.instance_power(node))
        except NotFound:
            return InstanceState(exists=False)
