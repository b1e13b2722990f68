"""A scripted provider: it answers what the test wrote down, and logs who asked what.

`FakeCloud` has one answer for all instances, except where a table is keyed; it does not
keep a world of instances (`tests.contract.memory` does). Errors in the script win over the
results beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ccm.cloud.errors import InvalidArgument
from ccm.cloud.interface import Cloud
from ccm.cloud.types import (
    NO_LABELS,
    InstanceListing,
    InstanceMetadata,
    InstanceState,
    Limits,
    Power,
    Zone,
)
from ccm.model import Node, NodeAddress


@dataclass(kw_only=True)
class FakeCloud:
    """A provider with the old and the new face; every field may be changed at any time.

    Attributes:
        name: the provider's name, the scheme of its IDs.
        v2: offer `InstancesV2`.
        v1: offer `Instances`.
        has_zones: offer `Zones`.
        addresses: answer to both address questions, and part of the metadata.
        error: raised by the address and zone questions.
        external_ids: node name -> answer to `instance_id`; missing = empty text.
        external_id_errors: node name -> error of `instance_id`.
        instance_types: V1 by name: keyed by node name; V1 by provider ID and V2: keyed by the
            provider ID of the question; missing = empty text.
        provider_ids: node name -> provider ID in the metadata; missing = empty text.
        zone: answer to the zone questions, and part of the metadata.
        additional_labels: part of the metadata.
        metadata_error: raised by `instance_metadata`.
        metadata: takes the place of `instance_metadata`.
        exists: answer to the existence questions.
        exists_error: raised by them.
        shutdown: answer to the shutdown questions.
        shutdown_error: raised by them.
        listing: answer to `list_instances`; None = no inventory is offered.
        listing_error: raised by `list_instances`.
        delay_s: how long each call takes before it is logged.
        limits: deadlines and rate the provider declares.
        calls: log of the calls: `instance-exists` and so on, in order.
        asked: the same with the subject: (entry, node name or provider ID).
    """

    name: str = "fake"
    v2: bool = True
    v1: bool = True
    has_zones: bool = True
    addresses: Sequence[NodeAddress] = ()
    error: Exception | None = None
    external_ids: Mapping[str, str] = field(default_factory=dict)
    external_id_errors: Mapping[str, Exception] = field(default_factory=dict)
    instance_types: Mapping[str, str] = field(default_factory=dict)
    provider_ids: Mapping[str, str] = field(default_factory=dict)
    zone: Zone = field(default_factory=Zone)
    additional_labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    metadata_error: Exception | None = None
    metadata: Callable[[Node], InstanceMetadata | None] | None = None
    exists: bool = False
    exists_error: Exception | None = None
    shutdown: bool = False
    shutdown_error: Exception | None = None
    listing: InstanceListing | None = None
    listing_error: Exception | None = None
    delay_s: float = 0.0
    limits: Limits = field(default_factory=Limits)
    calls: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def cloud(self) -> Cloud:
        """What the daemon would be given, with the capabilities chosen now."""
        return Cloud(
            name=self.name,
            instances=self if self.v2 else None,
            instances_v1=self if self.v1 else None,
            zones=self if self.has_zones else None,
            inventory=self if self.listing is not None else None,
            limits=self.limits,
        )

    async def instance_exists(self, node: Node) -> bool:
        """`exists`."""
        await self._log("instance-exists", node.provider_id or node.name)
        return self._exists()

    async def instance_shutdown(self, node: Node) -> bool:
        """`shutdown`."""
        await self._log("instance-shutdown", node.provider_id or node.name)
        return self._shutdown()

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """`metadata`, or what the other fields add up to."""
        await self._log("instance-metadata-by-provider-id", node.provider_id or node.name)
        if self.metadata is not None:
            return self.metadata(node)
        _raise(self.metadata_error)
        return InstanceMetadata(
            provider_id=self.provider_ids.get(node.name, ""),
            instance_type=self.instance_types.get(node.provider_id, ""),
            addresses=self.addresses,
            zone=self.zone.failure_domain,
            region=self.zone.region,
            additional_labels=self.additional_labels,
        )

    async def list_instances(self) -> InstanceListing:
        """`listing`."""
        await self._log("list-instances", "")
        _raise(self.listing_error)
        return self.listing or InstanceListing(instances=())

    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """`addresses`."""
        await self._log("node-addresses", node_name)
        _raise(self.error)
        return self.addresses

    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """`addresses`."""
        await self._log("node-addresses-by-provider-id", provider_id)
        _raise(self.error)
        return self.addresses

    async def instance_id(self, node_name: str) -> str:
        """From `external_ids`."""
        await self._log("instance-id", node_name)
        _raise(self.external_id_errors.get(node_name))
        return self.external_ids.get(node_name, "")

    async def instance_type(self, node_name: str) -> str:
        """From `instance_types`, by node name."""
        await self._log("instance-type", node_name)
        return self.instance_types.get(node_name, "")

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """From `instance_types`, by the whole provider ID."""
        await self._log("instance-type-by-provider-id", provider_id)
        return self.instance_types.get(provider_id, "")

    async def add_ssh_key_to_all_instances(self, user: str, key: str) -> None:
        """Logged only."""
        await self._log("add-ssh-key-to-all-instances", f"{user} {key}")

    async def current_node_name(self, hostname: str) -> str:
        """The host name."""
        await self._log("current-node-name", hostname)
        return hostname

    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """`exists`."""
        await self._log("instance-exists-by-provider-id", provider_id)
        return self._exists()

    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """`shutdown`; an empty provider ID is an error."""
        await self._log("instance-shutdown-by-provider-id", provider_id)
        if not provider_id:
            raise InvalidArgument("cannot shut down node with empty providerID")
        return self._shutdown()

    async def get_zone(self) -> Zone:
        """`zone`."""
        await self._log("get-zone", "")
        _raise(self.error)
        return self.zone

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """`zone`."""
        await self._log("get-zone-by-provider-id", provider_id)
        _raise(self.error)
        return self.zone

    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """`zone`."""
        await self._log("get-zone-by-node-name", node_name)
        _raise(self.error)
        return self.zone

    async def _log(self, entry: str, subject: str) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.calls.append(entry)
        self.asked.append((entry, subject))

    def _exists(self) -> bool:
        _raise(self.exists_error)
        return self.exists

    def _shutdown(self) -> bool:
        _raise(self.shutdown_error)
        return self.shutdown


class FakeStateCloud(FakeCloud):
    """The same with existence and power in one question."""

    async def instance_state(self, node: Node) -> InstanceState:
        """`exists` and `shutdown` at once."""
        await self._log("instance-state", node.provider_id or node.name)
        if not self._exists():
            return InstanceState(exists=False)
        power = Power.SHUTDOWN if self._shutdown() else Power.RUNNING
        return InstanceState(exists=True, power=power)


def _raise(error: Exception | None) -> None:
    """A fresh traceback each time, so that a scripted error never grows one over many calls."""
    if error is not None:
        raise error.with_traceback(None)
