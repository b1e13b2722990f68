"""Moves a fake of OpenStack from behind, for the contract suites and our own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ccm import cloud
from ccm.model.cidr import parse_ranges
from ccm.testing.contract import HeldVM, Made
from providers import openstack
from providers.openstack import balancers, machines
from providers.openstack.testing import compute, creation, identity, network, server
from providers.openstack.testing.state import REGION
from tests.openstack.balancing import BalancerHooks
from tests.support import vendor
from tests.support.vendor import VendorHarness

ANY_CALL = "* /[!i]*"
"""Requesting a token is none."""

FLAVOR, ZONE, NETWORK = "m1.small", "az1", "nodes"


class OpenStackHarness(BalancerHooks, VendorHarness):
    """A project with a network of two IP families, a router and an external network.

    Attributes:
        network: network of the servers.
        router: router that gets the routes.
        public: external network.
        extra: section -> key -> further settings of `cloud.conf`; they replace those of `config`.
        variables: environment.
    """

    any_call = ANY_CALL
    any_write = "[!G]* /[!i]*"
    faults = vendor.faults(
        ANY_CALL,
        outage="unavailable",
        denied="forbidden",
        rate_limited="overLimit",
        quota="quota",
    )
    opt_outs: Mapping[str, str] = {
        "no_cluster_marks": "extra routes of a router say nothing but range and next hop",
    }

    def __init__(self, service: server.Service, url: str) -> None:
        super().__init__(service, url)
        # The fake changes load balancers at once, so that the contract need not wait.
        balancers.PAUSES_S = (0.0,) * 5
        world = service.cloud
        self.network = network.new_network(world, NETWORK, ["10.6.0.0/16", "fd00:6::/64"])
        self.public = network.new_network(world, "public", ["203.0.113.0/24"], external=True)
        self.router = network.new_router(world, "k8s", self.network["subnets"])
        self.flavor = compute.new_flavor(world, FLAVOR)
        self.image = creation.new_image(world, "ubuntu-24.04")
        self.extra: dict[str, dict[str, str]] = {}
        self.variables: dict[str, str] = {}

    def config(self) -> bytes:
        """A `cloud.conf` for the fake."""
        sections: dict[str, dict[str, str]] = {
            "Global": {
                "auth-url": f"{self.url}/identity/v3",
                "username": identity.USER,
                "password": self.service.identity.password,
                "user-domain-name": "Default",
                "tenant-name": "k8s",
                "tenant-domain-name": "Default",
                "region": REGION,
            },
            "Route": {"router-id": self.router["id"]},
            "LoadBalancer": {"subnet-id": self.network["subnets"][0]},
        }
        for name, more in self.extra.items():
            sections[name] = {**sections.get(name, {}), **more}
        return "\n".join(
            line
            for name, keys in sections.items()
            for line in (f"[{name}]", *(f"{key} = {text}" for key, text in keys.items()))
        ).encode()

    def context(self, **more: Any) -> cloud.Context:
        """The input of the provider."""
        return cloud.Context(config=self.config(), environ=self.variables, **more)

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return openstack.open_cloud(self.context())

    async def create(self) -> Made:
        self._made += 1
        world = self.service.cloud
        made = compute.new_server(
            world, f"node-{self._made}", self.flavor, self.network["id"], zone=ZONE
        )
        return Made(
            name=made["name"],
            provider_id=f"openstack:///{made['id']}",
            instance_type=FLAVOR,
            zone=ZONE,
            region=REGION,
            addresses=[cloud.address("InternalIP", ip) for ip in self.ips(made["id"])],
        )

    def ips(self, server_id: str) -> list[str]:
        """Addresses of a server in its network."""
        found = network.addresses_of(self.service.cloud, server_id)
        return [entry["addr"] for entry in found.get(NETWORK, ())]

    def port(self, server_id: str) -> dict[str, Any]:
        """The first port of a server."""
        ports = self.service.cloud.ports.values()
        found: dict[str, Any] = next(one for one in ports if one["device_id"] == server_id)
        return found

    async def stop(self, made: Made) -> None:
        self.service.cloud.servers[id_of(made)].update(
            {"status": "SHUTOFF", "OS-EXT-STS:vm_state": "stopped", "OS-EXT-STS:power_state": 4}
        )

    async def start(self, made: Made) -> None:
        self.service.cloud.servers[id_of(made)].update(
            {"status": "ACTIVE", "OS-EXT-STS:vm_state": "active", "OS-EXT-STS:power_state": 1}
        )

    async def delete(self, made: Made) -> None:
        compute.remove(self.service.cloud, id_of(made))

    async def transition(self, made: Made) -> None:
        """It is being shut down: only the task of the server shows that."""
        self.service.cloud.servers[id_of(made)]["OS-EXT-STS:task_state"] = "powering-off"

    async def requests(self) -> int:
        return int(self.service.requests)

    async def routes(self) -> Sequence[str]:
        return [one["destination"] for one in self.router["routes"]]

    async def foreign_route(self, cidr: str) -> None:
        self.router["routes"].append({"destination": cidr, "nexthop": "10.6.9.9"})

    async def rotate(self) -> None:
        self.service.identity.password = "rotated"
        self.service.identity.revoke()

    # --- machines

    def open_machines(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return openstack.open_machines(cloud.Context(environ=self.variables))

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {
            "authURL": f"{self.url}/identity/v3\n".encode(),
            "username": identity.USER.encode(),
            "password": self.service.identity.password.encode(),
            "domainName": b"Default",
            "tenantName": b"k8s",
        }

    def machine_spec(self) -> Mapping[str, Any]:
        """A spec with a port that Nova cannot create."""
        return {
            "region": REGION,
            "flavorName": FLAVOR,
            "imageID": self.image["id"],
            "networkID": self.network["id"],
            "podNetworkCIDRs": ["10.96.0.0/12"],
        }

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"region": REGION, "flavorName": "", "networks": []}

    async def vms(self) -> Sequence[HeldVM]:
        return [_vm(one) for one in self.service.cloud.servers.values()]

    async def beside_vms(self) -> Sequence[str]:
        world = self.service.cloud
        ports = [one["id"] for one in world.ports.values() if "router" not in one["device_owner"]]
        return [*ports, *world.volumes]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        made = compute.new_server(self.service.cloud, name, self.flavor)
        if identity:
            made["metadata"] = machines.MARKS.to_labels(identity)
            made["tags"] = [machines.pool_tag(identity.pool)]
        return _vm(made)


def _vm(made: Mapping[str, Any]) -> HeldVM:
    return HeldVM(name=made["name"], provider_id=f"openstack:///{made['id']}")


def id_of(made: Made) -> str:
    """ID of a server."""
    return made.provider_id.rpartition("/")[2]


@asynccontextmanager
async def opened(harness: OpenStackHarness, *, pods: str = "") -> AsyncIterator[cloud.Cloud]:
    """The provider with the settings in `harness.extra`, and the Pod ranges of a cluster."""
    ranges = parse_ranges(pods) if pods else ()
    async with openstack.open_cloud(harness.context(pod_ranges=ranges)) as found:
        yield found
