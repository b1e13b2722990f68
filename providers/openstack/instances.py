"""Instances and inventory of OpenStack, with the rules of openstack-cloud-controller-manager."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ccm import cloud
from ccm.base.tasks import in_slices
from ccm.cloud.helpers import is_label_value, sanitize_label_value
from ccm.model.ip import parse_ip

from . import config, neutron, nova

SCHEME = "openstack"
"""Scheme of provider IDs. Nodes store it: never change it."""

_PROVIDER_ID = re.compile(rf"(?:{SCHEME}://)?([^/]*)/([^/]*)")

ACTIVE, SHUTOFF, BUILD = "ACTIVE", "SHUTOFF", "BUILD"

HOSTNAME = "hostname"
"""Key of a server's metadata whose value becomes the address of type Hostname."""


Address = tuple[str, nova.Address]
"""Name of a network, and an address in it."""


class OpenStackInstances(cloud.InstancesByPower):
    """Implementation of `InstancesV2`, `InstanceStates` and `Inventory`.

    Args:
        compute: calls of Nova.
        network: calls of Neutron.
        settings: `cloud.conf`.
        is_regional: whether new provider IDs have the region.
    """

    def __init__(
        self,
        compute: nova.Nova,
        network: neutron.Neutron,
        settings: config.Config,
        *,
        is_regional: bool = False,
    ) -> None:
        self._compute = compute
        self._network = network
        self._settings = settings.networking
        self._region = settings.global_.region
        self._is_regional = is_regional

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """Return the power state of a node's server: one request. Raises `NotFound`."""
        return power(await self._server(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Return the metadata of a node's server.

        Sends two requests, or four if a port of the server is a trunk. The first server of a flavor
        whose name is no label value, or of an older Nova, takes one more.

        Raises:
            NotFound: the server does not exist.
            Unavailable: the server is being built and has no address yet.
        """
        server = await self._server(node)
        if is_unfinished(server):
            raise cloud.Unavailable(f"server {server.name} is being built, without address yet")
        ports, _ = await self._network.ports_of("device_id", [server.id])
        trunked, _ = await self._trunked(ports)
        return await self._metadata(server, ports, trunked)

    async def list_instances(self) -> cloud.InstanceListing:
        """Return all servers, except those that are being built and have no address yet.

        Sends one request for servers and one for ports, for each 1000 of them.
        """
        servers, requests = await self._compute.servers()
        servers = [server for server in servers if not is_unfinished(server)]
        ports, more = await self._ports_by_server(servers) if servers else ({}, 0)
        every_port = [port for some in ports.values() for port in some]
        trunked, still_more = await self._trunked(every_port)
        records = [
            cloud.InstanceRecord(
                name=server.name,
                power=power(server),
                metadata=await self._metadata(server, ports.get(server.id, ()), trunked),
            )
            async for server in in_slices(servers)
        ]
        return cloud.InstanceListing(instances=records, requests=requests + more + still_more)

    async def _ports_by_server(
        self, servers: Sequence[nova.Server]
    ) -> tuple[Mapping[str, list[neutron.Port]], int]:
        """Return the ports of servers, and the number of requests."""
        ports, requests = await self._network.project_ports()
        by_server: dict[str, list[neutron.Port]] = {}
        for port in ports:
            by_server.setdefault(port.device_id, []).append(port)
        # A port may belong to another project, that of a shared network for example.
        lacking = [
            server.id
            for server in servers
            if not {*server.fixed} <= {*_fixed(by_server.get(server.id, ()))}
        ]
        more, more_requests = await self._network.ports_of("device_id", lacking)
        for server_id in lacking:
            by_server[server_id] = [port for port in more if port.device_id == server_id]
        return by_server, requests + more_requests

    async def _trunked(
        self, ports: Iterable[neutron.Port]
    ) -> tuple[Mapping[str, Sequence[Address]], int]:
        """Return trunk port -> addresses of the ports that it carries, and number of requests."""
        carriers = {
            sub.port_id: port.id
            for port in ports
            if port.trunk_details
            for sub in port.trunk_details.sub_ports
        }
        sub_ports, requests = await self._network.ports_of("id", [*carriers])
        ids = sorted({port.network_id for port in sub_ports})
        networks, more = await self._network.by_values("networks", neutron.Named, "id", ids)
        names = {network.id: network.name for network in networks}
        trunked: dict[str, list[Address]] = {}
        for port in sub_ports:
            trunked.setdefault(carriers[port.id], []).extend(
                (names.get(port.network_id, ""), nova.Address(entry.ip_address))
                for entry in port.fixed_ips
            )
        return trunked, requests + more

    async def _server(self, node: cloud.Node) -> nova.Server:
        if node.provider_id:
            return await self._compute.server(parse_id(node.provider_id, self._region))
        servers = await self._compute.servers_named(node.name)
        if len(servers) > 1:
            ids = ", ".join(sorted(server.id for server in servers))
            text = f"several servers are named {node.name}: {ids}; rename or delete all but one"
            raise cloud.FailedPrecondition(text)
        if not servers:
            raise cloud.NotFound(f"no server is named {node.name}")
        return servers[0]

    async def _metadata(
        self,
        server: nova.Server,
        ports: Sequence[neutron.Port],
        trunked: Mapping[str, Sequence[Address]],
    ) -> cloud.InstanceMetadata:
        place = self._region if self._is_regional else ""
        more = [entry for port in ports for entry in trunked.get(port.id, ())]
        return cloud.InstanceMetadata(
            provider_id=cloud.format_provider_id(SCHEME, f"{place}/{server.id}"),
            instance_type=await self._type(server),
            addresses=addresses(server, ports, more, self._settings),
            zone=sanitize_label_value(server.zone or ""),
            region=self._region,
        )

    async def _type(self, server: nova.Server) -> str:
        """Return the flavor's name, or its ID if the name is no label value."""
        flavor = server.flavor
        if not (flavor.original_name and is_label_value(flavor.original_name)):
            flavor = await self._compute.flavor(flavor)
        names = (flavor.original_name, flavor.name, flavor.id)
        return next((name for name in names if name and is_label_value(name)), "")


def parse_id(provider_id: str, region: str) -> str:
    """Return the server ID in a provider ID.

    Raises:
        InvalidArgument: the provider ID is malformed, of another cloud or of another region; the
            server may exist.
    """
    # For other text Nova would answer "not found", and the server would count as deleted.
    match = _PROVIDER_ID.fullmatch(provider_id)
    if match is None or not config.is_uuid(match[2]):
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is not valid for this cloud; expected "
            "openstack:///<server ID> or openstack://<region>/<server ID>"
        )
    if match[1] not in ("", region):
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is outside of the cloud config's region {region!r}"
        )
    return match[2].lower()


def power(server: nova.Server) -> cloud.Power:
    """Return SHUTDOWN for the status SHUTOFF, else RUNNING, also for an unknown status."""
    return cloud.Power.SHUTDOWN if server.status == SHUTOFF else cloud.Power.RUNNING


def is_unfinished(server: nova.Server) -> bool:
    """Return whether a server is being built and has no address yet."""
    return server.status == BUILD and not server.addresses


def _fixed(ports: Iterable[neutron.Port]) -> Iterable[str]:
    return (entry.ip_address for port in ports for entry in port.fixed_ips)


def addresses(
    server: nova.Server,
    ports: Sequence[neutron.Port],
    trunked: Sequence[Address],
    settings: config.Networking,
) -> Sequence[cloud.NodeAddress]:
    """Return the addresses of a server, in the order in which nodes have them.

    Args:
        server: the server, with its addresses.
        ports: its ports; the addresses of active ones are first.
        trunked: addresses of the ports that its trunks carry.
        settings: names of networks, IP families and order.
    """
    found: list[cloud.NodeAddress] = [
        cloud.address("InternalIP", entry.ip_address)
        for port in sorted(ports, key=lambda port: port.id)
        if port.status == ACTIVE
        for entry in port.fixed_ips
    ]
    found += [
        cloud.address("ExternalIP", ip) for ip in (server.access_ipv4, server.access_ipv6) if ip
    ]
    if name := server.metadata.get(HOSTNAME):
        found.append(cloud.address("Hostname", name))
    for network, entry in sorted([*server.listed, *trunked], key=lambda one: one[0]):
        ip, is_floating = entry.addr, entry.kind == "floating"
        is_public = network in settings.public_network_name
        is_internal = (
            not settings.internal_network_name or network in settings.internal_network_name
        )
        if not is_floating and (is_public or not is_internal):
            found = [entry for entry in found if entry.address != ip]
        if is_floating or is_public or is_internal:
            kind = "ExternalIP" if is_floating or is_public else "InternalIP"
            found.append(cloud.address(kind, ip))
    if settings.ipv6_support_disabled:
        found = [entry for entry in found if entry.type == "Hostname" or ":" not in entry.address]
    return tuple(_sorted(dict.fromkeys(found), settings.address_sort_order))


def _sorted(entries: Iterable[cloud.NodeAddress], sort_order: str) -> Sequence[cloud.NodeAddress]:
    """Return addresses in the order of the CIDRs that contain them; others are last."""
    cidrs = cloud.parse_cidrs(sort_order) or [] if sort_order else []

    def position(entry: cloud.NodeAddress) -> int:
        ip = parse_ip(entry.address)
        return next(
            (number for number, cidr in enumerate(cidrs) if ip is not None and ip in cidr),
            len(cidrs),
        )

    return sorted(entries, key=position)
