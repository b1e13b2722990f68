"""Instances and inventory of the Hetzner Cloud.

Dedicated servers (Robot) may be nodes of the same cluster. Their provider IDs begin with
`hrobot://`, formerly with `hcloud://bm-`. See `robot_nodes`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from ccm import cloud
from ccm.base.tasks import in_slices

from . import client, config, networks

SCHEME = "hcloud"
"""Scheme of provider IDs. Nodes store it: never change it."""

LEGACY_ROBOT_PREFIX = f"{SCHEME}://bm-"
"""Former prefix of the provider IDs of dedicated servers."""

ROBOT_PATTERN = re.compile(rf"hrobot://.*|{LEGACY_ROBOT_PREFIX}.*")
"""Pattern of the provider IDs of dedicated servers."""

PROVIDED_BY = "instance.hetzner.cloud/provided-by"

ZONES = {
    "nbg1": "nbg1-dc3",
    "hel1": "hel1-dc2",
    "fsn1": "fsn1-dc14",
    "ash": "ash-dc1",
    "hil": "hil-dc1",
    "sin": "sin-dc1",
}
"""Location -> value of the zone label. Never change a value: existing nodes keep their label."""

_ID = re.compile(r"[1-9][0-9]{0,15}")


class HcloudInstances(cloud.InstancesByPower):
    """Implementation of `InstancesV2`, `InstanceStates` and `Inventory`."""

    def __init__(
        self, api: client.Client, settings: config.Config, network: networks.ClusterNetwork
    ) -> None:
        self._api = api
        self._settings = settings
        self._network = network

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """Return the power state of a node's server: one request. Raises `NotFound`."""
        return power(await self._server(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Return the metadata of a node's server. Raises `NotFound`.

        Sends one request; the first call sends another, for the network.
        """
        server = await self._server(node)
        return metadata(server, self._settings, await self._network.id())

    async def list_instances(self) -> cloud.InstanceListing:
        """Return all servers: one request per 50 servers, and at first one for the network."""
        is_new = self._settings.network and self._network.known_id is None
        network = await self._network.id()
        servers, requests = await self._network.servers()
        return cloud.InstanceListing(
            instances=[
                cloud.InstanceRecord(
                    name=server.name,
                    power=power(server),
                    metadata=metadata(server, self._settings, network),
                )
                async for server in in_slices(servers)
            ],
            requests=requests + bool(is_new),
        )

    async def _server(self, node: cloud.Node) -> client.Server:
        if node.provider_id:
            number = parse_id(node.provider_id)
            return await self._api.get(f"/servers/{number}", "server", client.Server)
        server = await self._api.find_by_name("servers", client.Server, node.name)
        if server is None:
            raise cloud.NotFound(f"no server is named {node.name}")
        return server


def parse_id(provider_id: str) -> str:
    """Return the server ID in a provider ID.

    Raises:
        InvalidArgument: the provider ID is malformed, or belongs to another cloud or to a dedicated
            server.
    """
    if ROBOT_PATTERN.fullmatch(provider_id):
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is not of a server of the cloud; dedicated servers "
            "(Robot) have hrobot://<number>, and need ROBOT_USER and ROBOT_PASSWORD"
        )
    number = cloud.parse_provider_id(provider_id, SCHEME)
    if not _ID.fullmatch(number):
        # A request would return "not found", and the caller would take the server for deleted.
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is malformed; expected {SCHEME}://<number>"
        )
    return number


def power(server: client.Server) -> cloud.Power:
    """Return SHUTDOWN for a server that is off, else RUNNING, also for an unknown status."""
    return cloud.Power.SHUTDOWN if server.status == "off" else cloud.Power.RUNNING


def metadata(
    server: client.Server, settings: config.Config, network: int | None
) -> cloud.InstanceMetadata:
    """Return the metadata of a server."""
    zone = ZONES.get(server.location_name, server.location_name)
    return cloud.InstanceMetadata(
        provider_id=cloud.format_provider_id(SCHEME, str(server.id)),
        instance_type=server.server_type.name,
        addresses=addresses(server, settings.instances_address_family, network),
        zone=zone if settings.instances_zone_label_enabled else "",
        region=server.location_name,
        additional_labels={PROVIDED_BY: "cloud"},
    )


def addresses(
    server: client.Server, family: config.Family, network: int | None
) -> Sequence[cloud.NodeAddress]:
    """Return name, public addresses of the families, and the address in `network`, if any."""
    node_addresses = [cloud.address("Hostname", server.name)]
    v4, v6 = server.public_net.ipv4, server.public_net.ipv6
    if family != "ipv6" and v4 and v4.ip:
        node_addresses.append(cloud.address("ExternalIP", v4.ip))
    if family != "ipv4" and v6 and v6.ip:
        node_addresses.append(cloud.address("ExternalIP", first_address(v6.ip)))
    node_addresses += [
        cloud.address("InternalIP", net.ip)
        for net in server.private_net
        if net.ip and net.network == network
    ]
    return tuple(node_addresses)


def first_address(ip_range: str) -> str:
    """Return a server's own address in its IPv6 range: the one after the network address."""
    start = ipaddress.ip_network(ip_range, strict=False).network_address
    return str(type(start)(int(start) | 1))
