"""Instances and inventory of STACKIT.

The vendor's node controllers write `stackit://<server>`, its machine driver writes
`stackit://<project>/<server>`. Both forms are accepted, and also `openstack://<region>/<server>` of
older nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ccm import cloud
from ccm.base.tasks import in_slices
from ccm.cloud.helpers import sanitize_label_value

from . import config, iaas
from .marks import StackitProviderName

SCHEMES = (StackitProviderName, "openstack")
"""Schemes of provider IDs. Nodes store them: never change them."""

SHUT_DOWN = frozenset({"INACTIVE", "DEALLOCATED"})
"""States of a server that is shut down; transitional states are not included."""


class ServerId(NamedTuple):
    """Parts of a provider ID; empty = not in the ID."""

    server: str
    project: str = ""
    region: str = ""


class StackitInstances(cloud.InstancesByPower):
    """Implementation of `InstancesV2`, `InstanceStates` and `Inventory`."""

    def __init__(self, api: iaas.Client, settings: config.Config) -> None:
        self._api = api
        self._place = iaas.Place(settings.global_.project_id, settings.global_.region)
        self._settings = settings.instance

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """Return the power state of a node's server: one request. Raises `NotFound`."""
        return power(await self._server(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """Return the metadata of a node's server: one request.

        Raises:
            NotFound: the server does not exist.
            Unavailable: the server has no network interface yet.
        """
        server = await self._server(node)
        if not server.nics:
            raise cloud.Unavailable(f"server {server.name} has no network interface yet")
        return self._metadata(server)

    async def list_instances(self) -> cloud.InstanceListing:
        """Return all servers that have a network interface: one request.

        The daemon reads a server that is missing in the list with a separate call. For a server
        without network interface, `instance_metadata` then raises `Unavailable`.
        """
        servers = await self._api.servers(self._place)
        return cloud.InstanceListing(
            instances=[
                cloud.InstanceRecord(
                    name=server.name, power=power(server), metadata=self._metadata(server)
                )
                async for server in in_slices(servers)
                if server.nics
            ]
        )

    async def _server(self, node: cloud.Node) -> iaas.Server:
        project, region = self._place
        if node.provider_id:
            server_id = parse_id(node.provider_id)
            if server_id.project not in ("", project) or server_id.region not in ("", region):
                raise cloud.InvalidArgument(
                    f"provider ID {node.provider_id!r} is outside of the cloud config's project "
                    f"{project} and region {region}"
                )
            return await self._api.server(self._place, server_id.server)
        for server in await self._api.servers(self._place):
            if server.name == node.name:
                return server
        raise cloud.NotFound(f"no server is named {node.name}")

    def _metadata(self, server: iaas.Server) -> cloud.InstanceMetadata:
        whole = self._settings.provider_id_form == "project"
        path = f"{self._place.project}/{server.id}" if whole else server.id
        return cloud.InstanceMetadata(
            provider_id=cloud.format_provider_id(StackitProviderName, path),
            instance_type=server.machine_type or "",
            addresses=(
                *addresses(server, self._settings.default_network),
                cloud.address("Hostname", server.name),
            ),
            zone=sanitize_label_value(server.availability_zone or ""),
            region=self._place.region,
        )


def parse_id(provider_id: str) -> ServerId:
    """Return the parts of a provider ID.

    Raises:
        InvalidArgument: the provider ID is malformed or of another cloud; the server may exist.
    """
    scheme, separator, rest = provider_id.partition("://")
    if not separator:
        scheme, rest = StackitProviderName, provider_id  # as in the vendor's manager
    parts = rest.split("/")
    match scheme, parts:
        case "stackit", [server]:
            server_id = ServerId(server)
        case "stackit", [project, server] if config.UUID.fullmatch(project):
            server_id = ServerId(server, project=project.lower())
        case "openstack", [region, server]:
            server_id = ServerId(server, region=region)
        case _:
            server_id = ServerId("")
    if not config.UUID.fullmatch(server_id.server):
        # A request would return "not found", and the caller would take the server for deleted.
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is not valid for this cloud; expected "
            "stackit://<server ID> or stackit://<project ID>/<server ID>"
        )
    return server_id._replace(server=server_id.server.lower())


def power(server: iaas.Server) -> cloud.Power:
    """Return SHUTDOWN for a state in `SHUT_DOWN`, else RUNNING, also for an unknown state."""
    return cloud.Power.SHUTDOWN if server.status in SHUT_DOWN else cloud.Power.RUNNING


def addresses(server: iaas.Server, default_network: str = "") -> Sequence[cloud.NodeAddress]:
    """Return the addresses of all NICs: the default network's first, then by network name."""
    nics = sorted(server.nics or (), key=lambda entry: entry.network_name)
    nics.sort(key=lambda entry: default_network not in (entry.network_name, entry.network_id))
    return tuple(dict.fromkeys(entry for nic in nics for entry in _addresses(nic)))


def _addresses(nic: iaas.ServerNic) -> Iterable[cloud.NodeAddress]:
    for kind, text in (
        ("InternalIP", nic.ipv4),
        ("InternalIP", nic.ipv6),
        ("ExternalIP", nic.public_ip),
    ):
        if text:
            yield cloud.address(kind, text)
