"""Moves a fake of the Hetzner Cloud from behind, for the contract suites and our own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import Any

from ccm import cloud
from ccm.model.cidr import parse_ranges
from ccm.testing.contract import HeldBalancer, HeldVM, Made
from providers import hcloud
from providers.hcloud.testing import balancers, networks, server, servers
from providers.hcloud.testing.state import Call
from tests.support import vendor
from tests.support.vendor import VendorHarness


class HcloudHarness(VendorHarness):
    """A project of the Hetzner Cloud with a network `k8s`."""

    faults = vendor.faults(
        "*",
        outage="maintenance",
        denied="forbidden",
        rate_limited="rate_limit_exceeded",
        quota="resource_limit_exceeded",
    )
    opt_outs: Mapping[str, str] = {
        "no_cluster_marks": "routes of a network say nothing but range and gateway; that load "
        "balancers are kept apart by their labels is tested in tests/hcloud",
        "no_source_ranges": "load balancers of this cloud have no such filter",
        "protected_stay": "as with the vendor's manager; an event tells it",
        "tcp_only": "load balancers of this cloud know no other protocol; an event tells it",
    }

    def __init__(self, service: server.Service, url: str) -> None:
        super().__init__(service, url)
        order = {
            "name": "k8s",
            "ip_range": "10.0.0.0/16",
            "subnets": [{"type": "cloud", "ip_range": "10.0.0.0/24"}],
        }
        _, made = networks.create(service.cloud, Call(body=order))
        assert made is not None
        self.network: dict[str, Any] = made["network"]

    def environ(self) -> Mapping[str, str]:
        return {
            "HCLOUD_ENDPOINT": self.url,
            "HCLOUD_TOKEN": self.service.token,
            "HCLOUD_NETWORK": "k8s",
            "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
            "HCLOUD_INSTANCES_ADDRESS_FAMILY": "dualstack",
        }

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return hcloud.open_cloud(cloud.Context(environ=self.environ()))

    async def create(self) -> Made:
        self._made += 1
        order = {"server_type": "cx23", "image": "ubuntu-24.04", "location": "hel1"}
        world = self.service.cloud
        made = servers.new_server(world, f"node-{self._made}", order)
        world.servers[made["id"]] = made
        networks.join(world, self.network, made, "servers")
        made["status"] = "running"
        v6 = made["public_net"]["ipv6"]["ip"].removesuffix("/64") + "1"
        addresses = {
            made["name"]: "Hostname",
            made["public_net"]["ipv4"]["ip"]: "ExternalIP",
            v6: "ExternalIP",
            made["private_net"][0]["ip"]: "InternalIP",
        }
        return Made(
            name=made["name"],
            provider_id=f"hcloud://{made['id']}",
            instance_type="cx23",
            zone="hel1-dc2",
            region="hel1",
            additional_labels={"instance.hetzner.cloud/provided-by": "cloud"},
            addresses=[cloud.address(kind, text) for text, kind in addresses.items()],
        )

    async def stop(self, made: Made) -> None:
        servers.power(self.service.cloud, _id(made), on=False)

    async def start(self, made: Made) -> None:
        servers.power(self.service.cloud, _id(made), on=True)

    async def delete(self, made: Made) -> None:
        servers.remove(self.service.cloud, _id(made))

    async def transition(self, made: Made) -> None:
        self.service.settings.action_s = 60.0
        await self.stop(made)

    async def requests(self) -> int:
        return int(self.service.calls.total())

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        names = {one["id"]: one["name"] for one in self.service.cloud.servers.values()}
        return [
            HeldBalancer(
                name=one["name"],
                ports=frozenset(
                    ("TCP", each["listen_port"], each["destination_port"])
                    for each in one["services"]
                ),
                members=frozenset(names[each["server"]["id"]] for each in one["targets"]),
            )
            for one in self.service.cloud.load_balancers.values()
        ]

    def _balancer(self, name: str) -> dict[str, Any]:
        held = self.service.cloud.load_balancers.values()
        return next(one for one in held if one["name"] == name)

    async def break_load_balancer(self, name: str, reason: str) -> None:
        held = self._balancer(name)
        held["services"] = []
        self.service.cloud.failing_actions["load_balancer", held["id"]] = reason

    async def tamper(self, name: str) -> None:
        self._balancer(name)["targets"] = []

    async def protect(self, name: str, *, protected: bool) -> None:
        self._balancer(name)["protection"] = {"delete": protected}

    async def unmarked_load_balancer(self, name: str) -> None:
        order = {"name": name, "load_balancer_type": "lb11", "location": "fsn1"}
        balancers.create(self.service.cloud, Call(body=order))

    async def routes(self) -> Sequence[str]:
        return [one["destination"] for one in self.network["routes"]]

    async def foreign_route(self, cidr: str) -> None:
        self.network["routes"].append({"destination": cidr, "gateway": "10.0.9.9"})

    async def rotate(self) -> None:
        self.service.token = "renewed"

    # --- machines

    def open_machines(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return hcloud.open_machines(cloud.Context(environ={"HCLOUD_ENDPOINT": self.url}))

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {"token": f"{self.service.token}\n".encode()}

    def machine_spec(self) -> Mapping[str, Any]:
        return {"serverType": "cx23", "location": "fsn1", "networks": ["k8s"], "volumes": [10, 20]}

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"serverType": "", "location": "fsn1", "datacenter": "fsn1-dc14"}

    async def vms(self) -> Sequence[HeldVM]:
        return [
            HeldVM(name=one["name"], provider_id=f"hcloud://{one['id']}")
            for one in self.service.cloud.servers.values()
        ]

    async def beside_vms(self) -> Sequence[str]:
        world = self.service.cloud
        tables = (world.volumes, world.ssh_keys, world.placement_groups)
        return [one["name"] for table in tables for one in table.values()]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        labels = (
            {f"kube-ccm/{mark}": text for mark, text in asdict(identity).items()}
            if identity
            else {}
        )
        order = {"server_type": "cx23", "image": "ubuntu-24.04", "labels": labels}
        made = servers.new_server(self.service.cloud, name, order)
        self.service.cloud.servers[made["id"]] = made
        return HeldVM(name=name, provider_id=f"hcloud://{made['id']}")


def _id(made: Made) -> int:
    return int(cloud.parse_provider_id(made.provider_id, "hcloud"))


class Told:
    """A sink of events: kind and name of the object, and the reason."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.messages: list[str] = []

    def event(self, reference: cloud.ObjectReference, kind: str, reason: str, message: str) -> None:
        """Take note of one."""
        assert kind == "Warning"
        self.events.append((reference.kind, reference.name, reason))
        self.messages.append(message)


@asynccontextmanager
async def opened(harness: HcloudHarness, **settings: str) -> AsyncIterator[cloud.Cloud]:
    """The provider with other settings; an empty one is left out."""
    async with in_cluster(harness, Told(), settings) as found:
        yield found


@asynccontextmanager
async def in_cluster(
    harness: HcloudHarness, told: Told, settings: Mapping[str, str], *, pods: str = ""
) -> AsyncIterator[cloud.Cloud]:
    """The provider with other settings, and a cluster around it whose Pods have these ranges."""
    given = cloud.Context(
        environ={**harness.environ(), **settings},
        events=told,
        pod_ranges=parse_ranges(pods) if pods else (),
    )
    async with hcloud.open_cloud(given) as found:
        yield found
