"""Moves a real cloud from behind, for the contract suites; faults are those of the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from ccm import cloud
from ccm.testing.contract import HeldBalancer, HeldVM, Made
from ccm.testing.fake_api import Fault, Witness, serve
from providers import openstack
from providers.openstack import machines
from tests.openstack import balancing
from tests.openstack.harness import ANY_CALL, OpenStackHarness, id_of
from tests.openstack.lab.gateway import LabGateway, urls_of
from tests.openstack.lab.project import NODE_PREFIX, LabProject, LabState, open_project
from tests.support.vendor import VendorHarness

DELETION = "DELETE /load-balancer/v2/lbaas/loadbalancers/{id}"


class LabHarness(VendorHarness):
    """The prepared project of a real cloud, before which the gateway stands.

    Attributes:
        lab: the project.
        extra: section -> key -> further settings of `cloud.conf`.
    """

    any_call = ANY_CALL
    any_write = OpenStackHarness.any_write
    faults = OpenStackHarness.faults
    opt_outs = OpenStackHarness.opt_outs
    patience_s = 60.0

    def __init__(self, gateway: LabGateway, url: str, lab: LabProject) -> None:
        super().__init__(gateway, url)
        self.lab = lab
        self.extra: dict[str, dict[str, str]] = {}

    @property
    def state(self) -> LabState:
        return self.lab.state

    def config(self) -> bytes:
        """A `cloud.conf` for the gateway."""
        sections: dict[str, dict[str, str]] = {
            "Global": {
                "auth-url": f"{self.url}/identity/v3",
                "application-credential-id": self.state.credential["id"],
                "application-credential-secret": self.state.credential["secret"],
                "region": self.state.settings.region,
            },
            "Route": {"router-id": self.state.router["id"]},
            "LoadBalancer": {"subnet-id": self.state.subnets[0]},
        }
        for name, more in self.extra.items():
            sections[name] = {**sections.get(name, {}), **more}
        return "\n".join(
            line
            for name, keys in sections.items()
            for line in (f"[{name}]", *(f"{key} = {text}" for key, text in keys.items()))
        ).encode()

    def context(self, **more: Any) -> cloud.Context:
        return cloud.Context(config=self.config(), **more)

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return openstack.open_cloud(self.context())

    # --- servers --------------------------------------------------------------------------------

    async def create(self) -> Made:
        held = await self.lab.take_server()
        fixed = [
            cloud.address("InternalIP", entry["ip_address"])
            for port in await self.lab.ports_of(held["id"])
            for entry in port["fixed_ips"]
        ]
        return Made(
            name=held["name"],
            provider_id=f"openstack:///{held['id']}",
            instance_type=self.state.flavor["name"],
            zone=held["OS-EXT-AZ:availability_zone"],
            region=self.state.settings.region,
            addresses=fixed,
        )

    async def stop(self, made: Made) -> None:
        await self.lab.power(id_of(made), on=False)

    async def start(self, made: Made) -> None:
        await self.lab.power(id_of(made), on=True)

    async def delete(self, made: Made) -> None:
        await self.lab.delete_servers(id_of(made))

    async def transition(self, made: Made) -> None:
        pytest.skip("a real server does not stay in a transitional state")

    async def requests(self) -> int:
        return int(self.service.requests)

    async def rotate(self) -> None:
        await self.lab.rotate()

    # --- load balancers and routes --------------------------------------------------------------

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        listed = await self.lab.balancers()
        if not listed:
            return []
        listeners, pools = await self.lab.parts("listeners"), await self.lab.parts("pools")
        members = {one["id"]: await self.lab.parts(f"pools/{one['id']}/members") for one in pools}
        names = {
            entry["addr"]: made["name"]
            for made in await self.lab.servers()
            for entries in made["addresses"].values()
            for entry in entries
        }
        world = SimpleNamespace(
            listeners={one["id"]: one for one in listeners if one["loadbalancers"]},
            members=members,
        )
        return [balancing._held(world, one, names) for one in listed]

    async def slow_load_balancers(self, *, slow: bool) -> None:
        pytest.skip("the time that real services take cannot be chosen")

    async def break_load_balancer(self, name: str, reason: str) -> None:
        pytest.skip("Octavia cannot be asked to put a load balancer into the state ERROR")

    async def tamper(self, name: str) -> None:
        for pool in await self.lab.parts("pools"):
            if pool["name"].endswith(name):
                path = f"/v2/lbaas/pools/{pool['id']}/members"
                await self.lab.call("load-balancer", "PUT", path, {"members": []})
                await self.lab.settled()

    async def protect(self, name: str, *, protected: bool) -> None:
        if protected:
            await self.fail(Fault(operation=DELETION, code="forbidden"))
        else:
            await self.heal()

    async def unmarked_load_balancer(self, name: str) -> None:
        order = {"name": name, "vip_subnet_id": self.state.subnets[0]}
        path = "/v2/lbaas/loadbalancers"
        await self.lab.call("load-balancer", "POST", path, {"loadbalancer": order})
        await self.lab.settled()

    async def routes(self) -> Sequence[str]:
        path = f"/v2.0/routers/{self.state.router['id']}"
        router = (await self.lab.call("network", "GET", path))["router"]
        return [one["destination"] for one in router["routes"]]

    async def foreign_route(self, cidr: str) -> None:
        path = f"/v2.0/routers/{self.state.router['id']}/add_extraroutes"
        routes = [{"destination": cidr, "nexthop": "10.7.9.9"}]
        await self.lab.call("network", "PUT", path, {"router": {"routes": routes}})

    # --- machines -------------------------------------------------------------------------------

    def open_machines(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return openstack.open_machines(cloud.Context())

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {
            "authURL": f"{self.url}/identity/v3\n".encode(),
            "applicationCredentialID": self.state.credential["id"].encode(),
            "applicationCredentialSecret": self.state.credential["secret"].encode(),
        }

    def machine_spec(self) -> Mapping[str, Any]:
        """A spec with a port that Nova cannot create."""
        return {
            "region": self.state.settings.region,
            "flavorName": self.state.flavor["name"],
            "imageID": self.state.image["id"],
            "networkID": self.state.network["id"],
            "podNetworkCIDRs": ["10.96.0.0/12"],
        }

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"region": self.state.settings.region, "flavorName": "", "networks": []}

    async def vms(self) -> Sequence[HeldVM]:
        return [
            HeldVM(name=one["name"], provider_id=f"openstack:///{one['id']}")
            for one in await self.lab.servers()
            if not one["name"].startswith(NODE_PREFIX) and one["status"] not in machines.GONE
        ]

    async def beside_vms(self) -> Sequence[str]:
        kept = {*self.state.spare, *self.state.used}
        return [
            one["id"]
            for one in await self.lab.own("ports")
            if one["device_id"] not in kept and one["device_owner"].startswith(("compute:", ""))
            if "router" not in one["device_owner"] and "dhcp" not in one["device_owner"]
        ]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        marks: dict[str, Any] = {}
        if identity:
            marks["metadata"] = machines.MARKS.to_labels(identity)
            marks["tags"] = [machines.pool_tag(identity.pool)]
        number = await self.lab.new_server(name, **marks)
        await self.lab.in_status(number, "ACTIVE")
        return HeldVM(name=name, provider_id=f"openstack:///{number}")

    async def slow_vms(self, *, slow: bool) -> None:
        pytest.skip("the time that real services take cannot be chosen")


@asynccontextmanager
async def open_lab(state: LabState, *, witness: Witness | None = None) -> AsyncIterator[LabHarness]:
    """The harness of an empty project; what a test leaves is removed afterwards."""
    async with open_project(state) as lab, aiohttp.ClientSession() as session:
        await lab.clean()
        urls = await urls_of(lab.api, state.settings.auth_url)
        gateway = LabGateway(urls, session, witness=witness)
        async with serve(gateway) as url:
            try:
                yield LabHarness(gateway, url, lab)
            finally:
                gateway.heal()
                await lab.clean()
