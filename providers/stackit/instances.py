"""Servers of STACKIT as instances, one by one and in bulk.

Node controllers of the vendor write `stackit://<server>`, its machine driver
`stackit://<project>/<server>`; both are read everywhere, and so is what OpenStack's wrote before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ccm import cloud

from . import config, iaas
from .marks import StackitProviderName

SCHEMES = (StackitProviderName, "openstack")
"""Of provider IDs. A promise to old clusters."""

SHUT_DOWN = frozenset({"INACTIVE", "DEALLOCATED"})
"""States of a server that is switched off, and not just on its way."""

_NO_LABEL = re.compile(r"[^-a-zA-Z0-9_.]+")


class ServerId(NamedTuple):
    """What a provider ID says; empty = it does not."""

    server: str
    project: str = ""
    region: str = ""


class StackitInstances(cloud.InstancesByPower):
    """`InstancesV2`, `InstanceStates` and `Inventory` in one."""

    def __init__(self, api: iaas.Client, settings: config.Config) -> None:
        self._api = api
        self._place = iaas.Place(settings.global_.project_id, settings.global_.region)
        self._settings = settings.instance

    async def instance_power(self, node: cloud.Node) -> cloud.Power:
        """One request. Raises NotFound."""
        return power(await self._server(node))

    async def instance_metadata(self, node: cloud.Node) -> cloud.InstanceMetadata:
        """One request. Raises NotFound, or Unavailable while it has no network card."""
        server = await self._server(node)
        if not server.nics:
            raise cloud.Unavailable(f"server {server.name} has no network card yet")
        return self._metadata(server)

    async def list_instances(self) -> cloud.InstanceListing:
        """One request. What has no network card yet is left out, and asked about by itself."""
        servers = await self._api.servers(self._place)
        return cloud.InstanceListing(
            instances=[
                cloud.InstanceRecord(
                    name=server.name, power=power(server), metadata=self._metadata(server)
                )
                for server in servers
                if server.nics
            ]
        )

    async def _server(self, node: cloud.Node) -> iaas.Server:
        project, region = self._place
        if node.provider_id:
            found = parse_id(node.provider_id)
            if found.project not in ("", project) or found.region not in ("", region):
                raise cloud.InvalidArgument(
                    f"provider ID {node.provider_id!r} is of another project or region than "
                    f"{project} in {region}, which the cloud config names"
                )
            return await self._api.server(self._place, found.server)
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
            zone=label(server.availability_zone or ""),
            region=self._place.region,
        )


def parse_id(provider_id: str) -> ServerId:
    """What a provider ID says of a server.

    Raises:
        InvalidArgument: it is none of ours, which is never an absence.
    """
    scheme, separator, rest = provider_id.partition("://")
    if not separator:
        scheme, rest = StackitProviderName, provider_id  # as the vendor reads it
    parts = rest.split("/")
    match scheme, parts:
        case "stackit", [server]:
            found = ServerId(server)
        case "stackit", [project, server] if config.UUID.fullmatch(project):
            found = ServerId(server, project=project.lower())
        case "openstack", [region, server]:
            found = ServerId(server, region=region)
        case _:
            found = ServerId("")
    if not config.UUID.fullmatch(found.server):
        # Asking would give "not found" for what never was an ID of this cloud.
        raise cloud.InvalidArgument(
            f"provider ID {provider_id!r} is not of this cloud; expected stackit://<server ID> or "
            "stackit://<project ID>/<server ID>"
        )
    return found._replace(server=found.server.lower())


def power(server: iaas.Server) -> cloud.Power:
    """Whether it is switched off."""
    return cloud.Power.SHUTDOWN if server.status in SHUT_DOWN else cloud.Power.RUNNING


def addresses(server: iaas.Server, default_network: str = "") -> Sequence[cloud.NodeAddress]:
    """Of every network card: those of the default network, then by the networks' names."""
    nics = sorted(server.nics or (), key=lambda one: one.network_name)
    nics.sort(key=lambda one: default_network not in (one.network_name, one.network_id))
    return tuple(dict.fromkeys(one for nic in nics for one in _addresses(nic)))


def _addresses(nic: iaas.ServerNic) -> Iterable[cloud.NodeAddress]:
    for kind, text in (
        ("InternalIP", nic.ipv4),
        ("InternalIP", nic.ipv6),
        ("ExternalIP", nic.public_ip),
    ):
        if text:
            yield cloud.address(kind, text)


def label(text: str) -> str:
    """A text as a label may have it."""
    return _NO_LABEL.sub("-", text).strip("-_.")[:63]
