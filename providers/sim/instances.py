"""Instances and inventory of the simulated cloud, over its client.

A node is looked up by its provider ID, else by its exact name. The cloud may show a
deleted instance for a while, as `deleted`; that is an absence here.
"""

from __future__ import annotations

import functools
import re

from ccm import cloud

from . import client

SCHEME = "sim"
"""The provider's name and the scheme of its provider IDs. A promise to old clusters."""

ADDRESS_TYPES = {
    "private": "InternalIP",
    "public": "ExternalIP",
    "private_dns": "InternalDNS",
    "public_dns": "ExternalDNS",
    "hostname": "Hostname",
}
"""The cloud's kinds of addresses -> Kubernetes' types; other kinds are left out."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)


class SimInstances(cloud.InstancesByPower):
    """`InstancesV2`, `InstanceStates` and `Inventory` in one."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """One request; `NotFound` if it is gone."""
        return _power(await self._find(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Everything about the instance; one request; `NotFound` if it is gone."""
        return _metadata(await self._find(node))

    async def list_instances(self) -> cloud.InstanceListing:
        """Every instance; one request for each page of 500."""
        servers, requests = await self._api.servers()
        records = [
            cloud.InstanceRecord(name=server.name, power=_power(server), metadata=_metadata(server))
            for server in servers
            if is_there(server)
        ]
        return cloud.InstanceListing(instances=records, requests=requests)

    async def _find(self, node: cloud.Node) -> client.Server:
        """The instance of a node.

        Raises:
            NotFound: there is none.
            InvalidArgument: the provider ID is not one of ours.
            FailedPrecondition: the node has no provider ID and its name is not unique.
        """
        if node.provider_id:
            found = [await self._api.server(parse_id(node.provider_id))]
        else:
            found, _ = await self._api.servers(node.name)
        living = [server for server in found if is_there(server)]
        if not living:
            raise cloud.NotFound(
                f"no instance for node {node.name} ({node.provider_id or 'by name'})"
            )
        if len(living) > 1:
            ids = ", ".join(server.id for server in living)
            raise cloud.FailedPrecondition(f"several instances are named {node.name}: {ids}")
        return living[0]


def parse_id(provider_id: str) -> str:
    """The instance ID in a provider ID.

    Raises:
        InvalidArgument: it is not one of ours.
    """
    instance_id = cloud.parse_provider_id(provider_id, SCHEME)
    if not _ID.fullmatch(instance_id):
        # Asking would give "not found" for what never was an ID of this cloud.
        raise cloud.InvalidArgument(f"provider ID {provider_id!r} is malformed")
    return instance_id


def is_there(server: client.Server) -> bool:
    """Whether an instance is more than a memory of the cloud's."""
    return server.state != "deleted"


def _power(server: client.Server) -> cloud.Power:
    return cloud.Power.SHUTDOWN if server.state == "stopped" else cloud.Power.RUNNING


def _metadata(server: client.Server) -> cloud.InstanceMetadata:
    return cloud.InstanceMetadata(
        provider_id=cloud.format_provider_id(SCHEME, server.id),
        instance_type=_label_value(server.type),
        addresses=addresses(server),
        zone=_label_value(server.zone),
        region=_label_value(server.region),
        additional_labels={
            key: value
            for key, value in server.labels.items()
            if _LABEL_KEY.fullmatch(key)
            and _LABEL_VALUE.fullmatch(value)
            and not key.startswith(client.MARKS)
        },
    )


def addresses(server: client.Server) -> tuple[cloud.NodeAddress, ...]:
    """In the cloud's order, each once."""
    known = [
        (ADDRESS_TYPES[address.kind], address.value)
        for address in server.addresses
        if address.kind in ADDRESS_TYPES
    ]
    return tuple([cloud.address(kind, value) for kind, value in dict.fromkeys(known)])


@functools.lru_cache  # a listing names few types, zones and regions, and each many times
def _label_value(text: str) -> str:
    """The text as Kubernetes accepts it in a label; usually unchanged."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")
