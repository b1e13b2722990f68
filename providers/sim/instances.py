"""Instances and inventory of the simulated cloud.

A node is looked up by its provider ID, or by its exact name if it has none. The cloud may list
a deleted instance as `deleted` for a while; this module treats that instance as not found.
"""

from __future__ import annotations

import re

from ccm import cloud
from ccm.base.tasks import in_slices
from ccm.cloud.helpers import sanitize_label_value

from . import client

SCHEME = "sim"
"""Name of the provider and scheme of its provider IDs. Nodes store it: never change it."""

ADDRESS_TYPES = {
    "private": "InternalIP",
    "public": "ExternalIP",
    "private_dns": "InternalDNS",
    "public_dns": "ExternalDNS",
    "hostname": "Hostname",
}
"""Address kind of the cloud -> Kubernetes address type. Other kinds are ignored."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)


class SimInstances(cloud.InstancesByPower):
    """Implementation of `InstancesV2`, `InstanceStates` and `Inventory`."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """Return the power state of a node's instance: one request. Raises `NotFound`."""
        return _power(await self._find(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Return the metadata of a node's instance: one request. Raises `NotFound`."""
        return _metadata(await self._find(node))

    async def list_instances(self) -> cloud.InstanceListing:
        """Return all instances that are not deleted: one request per page of 500."""
        servers, requests = await self._api.servers()
        records = [
            cloud.InstanceRecord(name=server.name, power=_power(server), metadata=_metadata(server))
            async for server in in_slices(servers)
            if exists(server)
        ]
        return cloud.InstanceListing(instances=records, requests=requests)

    async def _find(self, node: cloud.Node) -> client.Server:
        """Return the instance of a node.

        Raises:
            NotFound: the node has no instance.
            InvalidArgument: the provider ID is malformed or of another cloud.
            FailedPrecondition: the node has no provider ID and several instances have its name.
        """
        if node.provider_id:
            servers = [await self._api.server(parse_id(node.provider_id))]
        else:
            servers, _ = await self._api.servers(node.name)
        living = [server for server in servers if exists(server)]
        if not living:
            raise cloud.NotFound(
                f"no instance for node {node.name} ({node.provider_id or 'by name'})"
            )
        if len(living) > 1:
            ids = ", ".join(server.id for server in living)
            raise cloud.FailedPrecondition(f"several instances are named {node.name}: {ids}")
        return living[0]


def parse_id(provider_id: str) -> str:
    """Return the instance ID in a provider ID.

    Raises:
        InvalidArgument: the provider ID is malformed or of another cloud.
    """
    instance_id = cloud.parse_provider_id(provider_id, SCHEME)
    if not _ID.fullmatch(instance_id):
        # A request would return "not found", and the caller would take the instance for deleted.
        raise cloud.InvalidArgument(f"provider ID {provider_id!r} is malformed")
    return instance_id


def exists(server: client.Server) -> bool:
    """Return whether an instance exists; the cloud may still list deleted instances."""
    return server.state != "deleted"


def _power(server: client.Server) -> cloud.Power:
    return cloud.Power.SHUTDOWN if server.state == "stopped" else cloud.Power.RUNNING


def _metadata(server: client.Server) -> cloud.InstanceMetadata:
    return cloud.InstanceMetadata(
        provider_id=cloud.format_provider_id(SCHEME, server.id),
        instance_type=sanitize_label_value(server.type),
        addresses=addresses(server),
        zone=sanitize_label_value(server.zone),
        region=sanitize_label_value(server.region),
        additional_labels={
            key: value
            for key, value in server.labels.items()
            if _LABEL_KEY.fullmatch(key)
            and _LABEL_VALUE.fullmatch(value)
            and not key.startswith(client.MARK_PREFIX)
        },
    )


def addresses(server: client.Server) -> tuple[cloud.NodeAddress, ...]:
    """Return the addresses of an instance in the cloud's order, without duplicates."""
    known = [
        (ADDRESS_TYPES[address.kind], address.value)
        for address in server.addresses
        if address.kind in ADDRESS_TYPES
    ]
    return tuple([cloud.address(kind, value) for kind, value in dict.fromkeys(known)])
