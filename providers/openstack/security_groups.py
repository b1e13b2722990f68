"""Security groups that open the node ports of a Service for its load balancer.

Each Service has one group, which is added to the ports of its nodes. It lets nothing out: nodes may
be in groups that restrict what they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Iterable, Sequence

import msgspec

from ccm import cloud

from . import client, neutron

PATH, RULES = "/v2.0/security-groups", "/v2.0/security-group-rules"


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rule of a security group; a wanted one has no ID."""

    id: str = ""
    direction: str
    ethertype: str = "IPv4"
    protocol: str | None = None
    port_range_min: int | None = None
    port_range_max: int | None = None
    remote_ip_prefix: str | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Security group with its rules."""

    id: str
    name: str = ""
    description: str | None = None
    security_group_rules: tuple[Rule, ...] = ()


_NAME = re.compile(r"lb-sg-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)")
"""Name of a group: UID, and namespace and name of the Service."""


def group_name(service: cloud.Service) -> str:
    """Return the name of a Service's group, as in the Go manager: never change it."""
    return f"lb-sg-{service.uid}-{service.namespace}-{service.name}"[:255]


def wanted_rules(ports: Iterable[tuple[str, int]], sources: Collection[str]) -> list[Rule]:
    """Return the rules that open the ports, given as protocol and number, for some CIDRs."""
    return [
        Rule(
            direction="ingress",
            ethertype="IPv6" if ":" in source else "IPv4",
            protocol=protocol.lower(),
            port_range_min=number,
            port_range_max=number,
            remote_ip_prefix=source,
        )
        for protocol, number in ports
        for source in sources
    ]


class SecurityGroups:
    """Security groups of the Services of one cluster."""

    def __init__(self, api: client.Client, context: cloud.Context) -> None:
        self._keystone = api.keystone
        self._api = api.network
        self._neutron = neutron.Neutron(api)
        self._context = context
        # Groups of a port are read and replaced, so that Services would undo each other's changes.
        self._lock = asyncio.Lock()

    async def ensure(
        self,
        service: cloud.Service,
        ports: Iterable[tuple[str, int]],
        sources: Collection[str],
        servers: Sequence[str],
    ) -> None:
        """Make a Service's group open some ports of some servers; create it if necessary.

        Sends three requests, and one or more for each change. Ports without port security are left
        out, because they can have no group.
        """
        name = group_name(service)
        async with self._context.journal.part("securitygroup", name) as part:
            group, *surplus = await self._find(name) or [await self._create(service)]
            part.created(group.id)
        await self._ensure_rules(group, wanted_rules(ports, sources))
        async with self._lock:
            listed, _ = await self._neutron.ports_of("device_id", servers)
            members = {port.id: port for port in listed if port.port_security_enabled}
            for port in await self._holders(group.id):
                if port.id not in members:
                    await self._set_groups(port, group.id, add=False)
            for port in members.values():
                if group.id not in port.security_groups:
                    await self._set_groups(port, group.id, add=True)
        for other in surplus:  # last, because it may be the one that opens the node ports
            await self._delete(other)

    async def remove(self, name: str) -> None:
        """Remove a group from all ports and delete it; send one request if it does not exist."""
        for group in await self._find(name):
            await self._delete(group)

    async def remove_of(self, namespace: str, name: str) -> None:
        """Remove the groups of a Service whose UID is unknown: one request to list all groups."""
        text = self._describe(f"{namespace}/{name}")
        for _, group in await self.of_services():
            if group.description == text:
                await self.remove(group.name)

    async def of_services(self) -> list[tuple[str, Group]]:
        """Return all groups of Services, with namespace and name joined by a dash."""
        matches = [(_NAME.fullmatch(group.name), group) for group in await self._list()]
        return [(match[1], group) for match, group in matches if match]

    async def _find(self, name: str) -> list[Group]:
        """Return the groups with a name, which contains the UID of a Service.

        There are two if a creation succeeded after its request had timed out.
        """
        return sorted(await self._list(name=name), key=lambda group: group.id)

    async def _list(self, **query: str) -> list[Group]:
        # An administrator would get those of all projects.
        query = {"project_id": await self._keystone.project_id(), **query}
        listed, _ = await self._api.list_all(PATH, "security_groups", Group, query)
        return listed

    async def _delete(self, group: Group) -> None:
        async with self._lock:
            for port in await self._holders(group.id):
                await self._set_groups(port, group.id, add=False)
        await self._api.delete(f"{PATH}/{group.id}")

    async def _create(self, service: cloud.Service) -> Group:
        order = {"name": group_name(service), "description": self._describe(service.key)}
        return await self._api.send("POST", PATH, "security_group", order, Group)

    def _describe(self, key: str) -> str:
        """Return the description of a Service's group, as in the Go manager: never change it."""
        cluster = self._context.cluster_name
        return f"Security Group for {key} Service LoadBalancer in cluster {cluster}"

    async def _ensure_rules(self, group: Group, wanted: Collection[Rule]) -> None:
        listed = group.security_group_rules  # a new group has two that let all traffic out
        held = {msgspec.structs.replace(rule, id=""): rule.id for rule in listed}
        if missing := [rule for rule in dict.fromkeys(wanted) if rule not in held]:
            bodies = map(msgspec.to_builtins, missing)
            order = [{"security_group_id": group.id, **body} for body in bodies]
            await self._api.call("POST", RULES, {"security_group_rules": order})
        for rule in held.keys() - set(wanted):
            await self._api.delete(f"{RULES}/{held[rule]}")

    async def _holders(self, group_id: str) -> list[neutron.Port]:
        """Return the ports that have a group."""
        # An old Neutron ignores the filter and lists all ports.
        listed, _ = await self._neutron.ports({"security_groups": group_id})
        return [port for port in listed if group_id in port.security_groups]

    async def _set_groups(self, port: neutron.Port, group_id: str, *, add: bool) -> None:
        """Add a group to a port, or remove it with the tag of older Go managers.

        The tag goes first: an interrupted change is found by the group and repeated.
        """
        groups = [entry for entry in port.security_groups if entry != group_id]
        tags = [tag for tag in port.tags if tag != group_id]
        path = f"/v2.0/ports/{port.id}"
        with contextlib.suppress(cloud.NotFound):  # the server was deleted
            if not add and group_id in port.tags:
                await self._api.call("PUT", f"{path}/tags", {"tags": tags})
            order = {"security_groups": [*groups, group_id] if add else groups}
            await self._api.send("PUT", path, "port", order, neutron.Port)
