"""Servers of the Hetzner Cloud as instances, one by one and in bulk.

Dedicated servers (Robot) may be nodes of the same cluster: `hrobot://` is another scheme, and its
old spelling `hcloud://bm-` is recognised here. Nothing is asked about them, and nothing follows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from ccm import cloud

from . import client, config, networks

SCHEME = "hcloud"
"""Of provider IDs. A promise to old clusters."""

OLD_ROBOT = f"{SCHEME}://bm-"
"""What provider IDs of dedicated servers began with once; since then their scheme is another."""

ROBOT = re.compile(rf"hrobot://.*|{OLD_ROBOT}.*")
"""Provider IDs of dedicated servers."""

PROVIDED_BY = "instance.hetzner.cloud/provided-by"

ZONES = {
    "nbg1": "nbg1-dc3",
    "hel1": "hel1-dc2",
    "fsn1": "fsn1-dc14",
    "ash": "ash-dc1",
    "hil": "hil-dc1",
    "sin": "sin-dc1",
}
"""Location -> zone label. What nodes once got they keep, though locations have more parts now."""

_ID = re.compile(r"[1-9][0-9]{0,15}")


class HcloudInstances(cloud.InstancesByPower):
    """`InstancesV2`, `InstanceStates` and `Inventory` in one."""

    def __init__(
        self, api: client.Client, settings: config.Config, network: networks.Network
    ) -> None:
        self._api = api
        self._settings = settings
        self._network = network

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """One request. Raises NotFound."""
        return power(await self._server(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """One request, and once one for the network's ID. Raises NotFound."""
        server = await self._server(node)
        return metadata(server, self._settings, await self._network.id())

    async def list_instances(self) -> cloud.InstanceListing:
        """One request for each page of 50, and once one for the network's ID."""
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
                for server in servers
            ],
            requests=requests + bool(is_new),
        )

    async def _server(self, node: cloud.Node) -> client.Server:
        if node.provider_id:
            number = parse_id(node.provider_id)
            return await self._api.one(f"/servers/{number}", "server", client.Server)
        found = await self._api.named("servers", client.Server, node.name)
        if found is None:
            raise cloud.NotFound(f"no server is named {node.name}")
        return found


def parse_id(provider_id: str) -> str:
    """The server's ID in a provider ID.

    Raises:
        InvalidArgument: it is not one of ours, such as one of a dedicated server.
    """
    if ROBOT.fullmatch(provider_id):
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is of a dedicated server (Robot), which is left alone"
        )
    number = cloud.parse_provider_id(provider_id, SCHEME)
    if not _ID.fullmatch(number):
        # Asking would give "not found" for what never was an ID of this cloud.
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is malformed; expected {SCHEME}://<number>"
        )
    return number


def power(server: client.Server) -> cloud.Power:
    """Whether it is switched off."""
    return cloud.Power.SHUTDOWN if server.status == "off" else cloud.Power.RUNNING


def metadata(
    server: client.Server, settings: config.Config, network: int | None
) -> cloud.InstanceMetadata:
    """What Kubernetes is told about a server."""
    zone = ZONES.get(server.place, server.place)
    return cloud.InstanceMetadata(
        provider_id=cloud.format_provider_id(SCHEME, str(server.id)),
        instance_type=server.server_type.name,
        addresses=addresses(server, settings.instances_address_family, network),
        zone=zone if settings.instances_zone_label_enabled else "",
        region=server.place,
        additional_labels={PROVIDED_BY: "cloud"},
    )


def addresses(
    server: client.Server, family: config.Family, network: int | None
) -> Sequence[cloud.NodeAddress]:
    """Name, public addresses, and the private one in a network; None = in any."""
    found = [cloud.address("Hostname", server.name)]
    v4, v6 = server.public_net.ipv4, server.public_net.ipv6
    if family != "ipv6" and v4 and v4.ip:
        found.append(cloud.address("ExternalIP", v4.ip))
    if family != "ipv4" and v6 and v6.ip:
        found.append(cloud.address("ExternalIP", first_of(v6.ip)))
    found += [
        cloud.address("InternalIP", one.ip)
        for one in server.private_net
        if one.ip and one.network == network
    ]
    return tuple(found)


def first_of(ip_range: str) -> str:
    """The address that a server itself has in its range of IPv6."""
    start = ipaddress.ip_network(ip_range, strict=False).network_address
    return str(type(start)(int(start) | 1))
