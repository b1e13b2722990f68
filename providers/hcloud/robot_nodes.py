"""Instances of a cluster that has dedicated servers (Robot) besides servers of the cloud.

A dedicated server is looked up by its number, and its name must be that of the node. A node without
provider ID is looked up by its name in both APIs. Bulk listings contain the cloud's servers only,
because the addresses of a dedicated server also come from its node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ccm import cloud

from . import client, config, instances, names, networks, robot

_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_.-]")
"""Characters that are invalid in the label with the instance type."""


class MixedInstances(instances.HcloudInstances):
    """Instances of both APIs.

    Args:
        api: calls of the cloud's API.
        settings: settings.
        network: the private network.
        robot: client of the Robot web service; None without credentials.
        warn: emits a Warning event.
    """

    def __init__(
        self,
        api: client.Client,
        settings: config.Config,
        network: networks.ClusterNetwork,
        robot: robot.RobotClient | None,
        warn: names.Warn,
    ) -> None:
        super().__init__(api, settings, network)
        self._robot = robot
        self._warn = warn
        self._dropped: dict[str, str] = {}
        """UID of a node -> message of the last event about dropped addresses."""

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """Return the power state of a node's server: one request, two for a dedicated server.

        Raises:
            NotFound: the API of the node's provider ID denies the server. Never for a node without
                provider ID: it may be a dedicated server that has another name.
        """
        try:
            server = await self._find(node)
        except cloud.NotFound as error:
            if node.provider_id:
                raise
            raise cloud.FailedPrecondition(
                f"{error}; the node is kept, as it may be a dedicated server with another name"
            ) from error
        if isinstance(server, client.Server):
            return instances.power(server)
        assert self._robot is not None
        return await self._robot.power(server.number)

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Return the metadata of a node's server. Raises `NotFound`.

        Sends one request for a server of the cloud; the first call sends another, for the network.
        A dedicated server takes none while the listing is recent.
        """
        server = await self._find(node)
        if isinstance(server, client.Server):
            return instances.metadata(server, self._settings, await self._network.id())
        zone = (server.datacenter or "").lower()
        product = _NOT_IN_LABEL.sub("", (server.product or "").replace(" ", "-"))
        return cloud.InstanceMetadata(
            provider_id=_provider_id(server),
            instance_type=product[:63].strip("-_."),
            addresses=self._addresses(server, node),
            zone=zone if self._settings.instances_zone_label_enabled else "",
            region=zone.partition("-")[0],
            additional_labels={instances.PROVIDED_BY: "robot"},
        )

    async def list_instances(self) -> cloud.InstanceListing:
        """Return all servers of the cloud.

        A server whose name a dedicated server may have too is listed without name: a node without
        provider ID must be looked up in both APIs.
        """
        listing = await super().list_instances()
        if self._robot is None:
            return listing
        try:
            taken = {server.name for server in (await self._robot.servers()).values()}
        except cloud.CloudError:
            taken = {record.name for record in listing.instances}
        records = [
            replace(record, name="" if record.name in taken else record.name)
            for record in listing.instances
        ]
        return replace(listing, instances=records)

    async def _find(self, node: cloud.Node) -> client.Server | robot.DedicatedServer:
        number = robot.find_number(node.provider_id)
        if self._robot is not None and number is not None:
            server = await self._robot.get(number)
            if server.name != node.name:
                text = (
                    f"server {server.number} of Robot is named {server.name!r}, not {node.name!r}; "
                    "rename it, or delete the node if it is no longer that server"
                )
                self._warn(node.reference, names.POSSIBLE_NODE_DELETION, text)
                raise cloud.FailedPrecondition(f"{text}. The node is left unchanged")
            return server
        if self._robot is None or node.provider_id:
            return await self._server(node)
        return await self._find_by_name(node, self._robot)

    async def _find_by_name(
        self, node: cloud.Node, robot_client: robot.RobotClient
    ) -> client.Server | robot.DedicatedServer:
        server = await self._api.find_by_name("servers", client.Server, node.name)
        found: list[client.Server | robot.DedicatedServer] = [server] if server else []
        try:
            found += await robot_client.named(node.name)
        except cloud.CloudError:
            # Without any listing of Robot, the name proves nothing, but a common address does.
            is_known = robot_client.known is not None
            if server is None or not (is_known or await self._has_address(server, node)):
                raise
        if not found:
            raise cloud.NotFound(f"neither the cloud nor Robot has a server named {node.name}")
        if len(found) > 1:
            ids = ", ".join(map(_provider_id, found))
            text = f"several servers are named {node.name}: {ids}; rename all but one"
            self._warn(node.reference, names.INSTANCE_LOOKUP_FAILED, text)
            raise cloud.FailedPrecondition(text)
        return found[0]

    async def _has_address(self, server: client.Server, node: cloud.Node) -> bool:
        """Return whether the node reports an IP address of the server."""
        own = instances.addresses(server, "dualstack", await self._network.id())
        reported = {entry.address for entry in node.addresses if entry.type != "Hostname"}
        return any(entry.address in reported for entry in own)

    def _addresses(
        self, server: robot.DedicatedServer, node: cloud.Node
    ) -> Sequence[cloud.NodeAddress]:
        """Return name, public addresses of the families, and internal addresses of the node.

        IPv6 comes before IPv4, as in hcloud-cloud-controller-manager.
        """
        family = self._settings.instances_address_family
        external = []
        if family != "ipv4" and server.ipv6_net:
            external.append(instances.first_address(server.ipv6_net))
        if family != "ipv6" and server.ip:
            external.append(server.ip)
        result = [cloud.address("Hostname", node.name)]
        result += [cloud.address("ExternalIP", text) for text in external]
        faults = []
        for entry in node.addresses if self._settings.robot_forward_internal_ips else ():
            if entry.type != "InternalIP":
                continue
            if entry.address in external:
                faults.append(f"{entry.address} is the public address, correct --node-ip")
            elif family == ("ipv4" if ":" in entry.address else "ipv6"):
                faults.append(f"{entry.address}: HCLOUD_INSTANCES_ADDRESS_FAMILY is {family}")
            else:
                result.append(entry)
        text = f"InternalIPs of the kubelet dropped: {'; '.join(faults)}" if faults else ""
        if text and self._dropped.get(node.uid) != text:
            self._warn(node.reference, names.MISCONFIGURED_INTERNAL_IP, text)
        self._dropped[node.uid] = text
        return result


def _provider_id(server: client.Server | robot.DedicatedServer) -> str:
    if isinstance(server, client.Server):
        return cloud.format_provider_id(instances.SCHEME, str(server.id))
    return cloud.format_provider_id(robot.SCHEME, str(server.number))
