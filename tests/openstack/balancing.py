"""A project with load balancers before the fake, and what the cloud holds of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ccm import cloud
from ccm.testing.builders import node as build_node
from ccm.testing.builders import service as build_service
from ccm.testing.contract import HeldBalancer
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.probes import CLUSTER
from providers.openstack import balancers, client, config
from providers.openstack import service_annotations as ann
from providers.openstack.testing import compute, network, server

UID = "0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d"
NAME = f"kube_service_{CLUSTER}_default_web"
OTHER = "2028e5d4-af4f-45e2-98df-502be37a4317"


def service(name: str = "web", /, *, uid: str = UID, **given: Any) -> cloud.Service:
    """A Service; `lb_method="SOURCE_IP"` is an annotation, `spec={...}` are fields."""
    spec = given.pop("spec", {})
    internal = given.pop("internal", None)
    annotations = {f"{ann.PREFIX}{key.replace('_', '-')}": text for key, text in given.items()}
    if internal is not None:
        annotations[ann.INTERNAL.name] = internal
    return build_service(name, uid=uid, annotations=annotations, **spec)


def annotated(asked: cloud.Service, **more: str) -> cloud.Service:
    """The Service with more annotations."""
    names = {f"{ann.PREFIX}{key.replace('_', '-')}": text for key, text in more.items()}
    meta = msgspec.structs.replace(asked.metadata, annotations={**asked.annotations, **names})
    return msgspec.structs.replace(asked, metadata=meta)


class Recorder:
    """Events, and requests to an API server that accepts all."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.patches: list[tuple[str, Any]] = []
        self.error: Exception | None = None

    def event(self, reference: cloud.ObjectReference, kind: str, reason: str, message: str) -> None:
        assert kind == "Warning"
        assert reference.kind == "Service"
        self.events.append((reason, message))

    def client(self, name: str) -> Recorder:
        assert name
        return self

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        assert (method, query, content_type) == ("PATCH", None, "application/merge-patch+json")
        if self.error is not None:
            raise self.error
        self.patches.append((path, msgspec.json.decode(body or b"")))
        return b"{}"

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]


class Project:
    """The fake with an internal and an external network, and the provider before it."""

    def __init__(self, fake: server.Service, url: str) -> None:
        self.fake, self.url = fake, url
        self.world = fake.cloud
        self.settings = fake.settings
        self.recorder = Recorder()
        self.internal = network.new_network(self.world, "nodes", ["10.0.0.0/24"])
        self.external = network.new_network(self.world, "public", ["203.0.113.0/24"], external=True)
        self.subnet: str = self.internal["subnets"][0]
        self.flavor = compute.new_flavor(self.world, "m1.small")
        self.balancer: Any = None

    @asynccontextmanager
    async def open(
        self, more: str = "", **keys: str
    ) -> AsyncIterator[balancers.OpenStackBalancers]:
        """The provider with settings of `[LoadBalancer]`, and the subnet unless it is given."""
        keys = {"subnet_id": self.subnet, **keys}
        lines = [f"{key.replace('_', '-')} = {text}" for key, text in keys.items() if text]
        text = f"""
[Global]
auth-url = {self.url}/identity
username = k8s
password = {self.fake.identity.password}
user-domain-name = Default
tenant-name = k8s
[LoadBalancer]
{chr(10).join(lines)}
{more}
"""
        context = cloud.Context(
            config=text.encode(),
            cluster_name=CLUSTER,
            events=self.recorder,
            clients=self.recorder,
        )
        settings, _ = config.read_all(context)
        async with client.open_client(settings.global_) as api:
            yield balancers.OpenStackBalancers(api, settings, context)

    def nodes(self, count: int, **labels: str) -> list[cloud.Node]:
        """Nodes of new servers."""
        result = []
        for _ in range(count):
            name = f"node-{len(self.world.servers) + 1}"
            made = compute.new_server(self.world, name, self.flavor, self.internal["id"])
            entry = network.addresses_of(self.world, made["id"])["nodes"][0]["addr"]
            result.append(
                build_node(
                    name,
                    provider_id=f"openstack:///{made['id']}",
                    labels=labels,
                    addresses=[cloud.address("InternalIP", entry)],
                )
            )
        return result

    async def ensured(
        self, asked: cloud.Service, nodes: Sequence[cloud.Node] = (), cluster: str = CLUSTER
    ) -> cloud.Status:
        return await ensured(self.balancer, asked, nodes, cluster=cluster)

    async def deleted(self, asked: cloud.Service) -> None:
        await deleted(self.balancer, asked)

    async def in_vain(self, asked: cloud.Service, nodes: Sequence[cloud.Node] = ()) -> None:
        """Prove that ensuring once more writes nothing."""
        before = self.fake.writes
        await self.ensured(asked, nodes)
        assert self.fake.writes == before

    def calls(self) -> list[str]:
        """The calls since the last time, without those of the session's start."""
        starts = ("POST /identity", "GET /load-balancer/ ")
        entries = [entry.operation for entry in self.fake.calls.entries]
        self.fake.calls.clear()
        return [entry for entry in entries if not f"{entry} ".startswith(starts)]

    @property
    def only(self) -> dict[str, Any]:
        """The only load balancer."""
        held: dict[str, Any]
        (held,) = self.world.balancers.values()
        return held

    @property
    def listener(self) -> dict[str, Any]:
        held: dict[str, Any]
        (held,) = self.world.listeners.values()
        return held

    @property
    def pool(self) -> dict[str, Any]:
        held: dict[str, Any]
        (held,) = self.world.pools.values()
        return held

    @property
    def monitor(self) -> dict[str, Any]:
        held: dict[str, Any]
        (held,) = self.world.monitors.values()
        return held

    @property
    def ips(self) -> list[tuple[str, str | None, str]]:
        """Address, port and description of the floating IPs."""
        return [
            (entry["floating_ip_address"], entry["port_id"], entry["description"])
            for entry in self.world.floating_ips.values()
        ]

    def left_over(self) -> list[str]:
        """What load balancers leave behind."""
        world = self.world
        parts = ["listeners", "pools", "monitors", "members"]
        tables = ["balancers", *parts, "floating_ips", "security_groups"]
        left = [f"{table} {number}" for table in tables for number in getattr(world, table)]
        return left + [p["id"] for p in world.ports.values() if p["device_owner"] == "Octavia"]


class BalancerHooks:
    """Hooks of the contract about load balancers, for a harness with a `service`."""

    service: Any

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        world = self.service.cloud
        names = {
            entry["ip_address"]: made["name"]
            for made in world.servers.values()
            for port in world.ports.values()
            if port["device_id"] == made["id"]
            for entry in port["fixed_ips"]
        }
        return [_held(world, balancer, names) for balancer in world.balancers.values()]

    async def break_load_balancer(self, name: str, reason: str) -> None:
        for balancer in self.service.cloud.balancers.values():
            if balancer["name"] == name:
                balancer.update(provisioning_status="ERROR", operating_status=reason)

    async def tamper(self, name: str) -> None:
        world = self.service.cloud
        for pool in world.pools.values():
            if pool["name"].endswith(name):
                world.members[pool["id"]] = []
                pool["members"] = []

    async def protect(self, name: str, *, protected: bool) -> None:
        world = self.service.cloud
        for balancer in world.balancers.values():
            if balancer["name"] == name:
                (set.add if protected else set.discard)(world.protected, balancer["id"])

    async def unmarked_load_balancer(self, name: str) -> None:
        from providers.openstack.testing import balancers as fake
        from providers.openstack.testing.state import Call

        world = self.service.cloud
        subnet = next(iter(world.subnets))
        order = {"loadbalancer": {"name": name, "vip_subnet_id": subnet}}
        fake.create(world, Call(body=order))


def _held(world: Any, balancer: dict[str, Any], names: Mapping[str, str]) -> HeldBalancer:
    ports: set[tuple[str, int, int]] = set()
    members: set[str] = set()
    ranges: set[str] = set()
    for listener in world.listeners.values():
        if listener["loadbalancers"] != [{"id": balancer["id"]}]:
            continue
        listed = world.members.get(listener["default_pool_id"], [])
        node_ports = {member["protocol_port"] for member in listed}
        asked = min(node_ports) if node_ports else _node_port(listener)
        protocol = listener["protocol"] if listener["protocol"] in ("UDP", "SCTP") else "TCP"
        ports.add((protocol, listener["protocol_port"], asked))
        members |= {names.get(member["address"], member["address"]) for member in listed}
        ranges |= set(listener.get("allowed_cidrs") or ())
    return HeldBalancer(
        name=balancer["name"],
        ports=frozenset(ports),
        members=frozenset(members),
        source_ranges=frozenset(ranges - {"0.0.0.0/0"}),
    )


_NODE_PORTS = {80: 30080, 443: 30443, 5353: 30953, 2905: 30290}


def _node_port(listener: Mapping[str, Any]) -> int:
    """The node port of a port of the contract; without members, the cloud does not know it."""
    return _NODE_PORTS.get(listener["protocol_port"], 0)
