"""The guarded calls of the node controllers."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.cloud import answers, errors
from ccm.cloud.calls import Calls, offered
from ccm.cloud.interface import Cloud, Instances, InstancesV2, Inventory, Zones
from ccm.cloud.interface import InstanceStates as States
from ccm.cloud.types import InstanceListing, InstanceMetadata, InstanceState, Zone
from ccm.model import Node, NodeAddress


class NodeCalls(Calls):
    """The calls about instances; each mirrors a method of the interfaces."""

    async def instance_exists(self, node: Node) -> bool:
        """See `InstancesV2.instance_exists`."""
        return await self._ask(
            "instance_exists",
            lambda c: _v2(c).instance_exists(node),
            answers.decision,
        )

    async def instance_shutdown(self, node: Node) -> bool:
        """See `InstancesV2.instance_shutdown`."""
        return await self._ask(
            "instance_shutdown",
            lambda c: _v2(c).instance_shutdown(node),
            answers.decision,
        )

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """See `InstancesV2.instance_metadata`."""
        return await self._ask(
            "instance_metadata",
            lambda c: _v2(c).instance_metadata(node),
            answers.metadata,
        )

    async def instance_state(self, node: Node) -> InstanceState:
        """See `InstanceStates.instance_state`."""
        return await self._ask(
            "instance_state",
            lambda c: _states(c).instance_state(node),
            answers.state,
        )

    async def list_instances(self) -> InstanceListing:
        """See `Inventory.list_instances`."""
        return await self._ask(
            "list_instances",
            lambda c: _inventory(c).list_instances(),
            answers.listing,
        )

    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """See `Instances.node_addresses`."""
        return await self._ask(
            "node_addresses",
            lambda c: _v1(c).node_addresses(node_name),
            answers.addresses,
        )

    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """See `Instances.node_addresses_by_provider_id`."""
        return await self._ask(
            "node_addresses_by_provider_id",
            lambda c: _v1(c).node_addresses_by_provider_id(provider_id),
            answers.addresses,
        )

    async def instance_id(self, node_name: str) -> str:
        """See `Instances.instance_id`."""
        return await self._ask(
            "instance_id",
            lambda c: _v1(c).instance_id(node_name),
            answers.text,
        )

    async def instance_type(self, node_name: str) -> str:
        """See `Instances.instance_type`."""
        return await self._ask(
            "instance_type",
            lambda c: _v1(c).instance_type(node_name),
            answers.text,
        )

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """See `Instances.instance_type_by_provider_id`."""
        return await self._ask(
            "instance_type_by_provider_id",
            lambda c: _v1(c).instance_type_by_provider_id(provider_id),
            answers.text,
        )

    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """See `Instances.instance_exists_by_provider_id`."""
        return await self._ask(
            "instance_exists_by_provider_id",
            lambda c: _v1(c).instance_exists_by_provider_id(provider_id),
            answers.decision,
        )

    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """See `Instances.instance_shutdown_by_provider_id`."""
        return await self._ask(
            "instance_shutdown_by_provider_id",
            lambda c: _v1(c).instance_shutdown_by_provider_id(provider_id),
            answers.decision,
        )

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """See `Zones.get_zone_by_provider_id`."""
        return await self._ask(
            "get_zone_by_provider_id",
            lambda c: _zones(c).get_zone_by_provider_id(provider_id),
            answers.zone,
        )

    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """See `Zones.get_zone_by_node_name`."""
        return await self._ask(
            "get_zone_by_node_name",
            lambda c: _zones(c).get_zone_by_node_name(node_name),
            answers.zone,
        )


def _v2(cloud: Cloud) -> InstancesV2:
    return offered(cloud.instances, "instances")


def _v1(cloud: Cloud) -> Instances:
    return offered(cloud.instances_v1, "instances by provider ID")


def _zones(cloud: Cloud) -> Zones:
    return offered(cloud.zones, "zones")


def _inventory(cloud: Cloud) -> Inventory:
    return offered(cloud.inventory, "an inventory")


def _states(cloud: Cloud) -> States:
    instances = _v2(cloud)
    if not isinstance(instances, States):
        raise errors.Unimplemented("this cloud does not offer instance states")
    return instances
