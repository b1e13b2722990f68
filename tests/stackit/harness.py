"""Moves a fake of STACKIT from behind, for the contract suites and our own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from ccm import cloud
from ccm.testing.contract import HeldBalancer, HeldVM, Made
from providers import stackit
from providers.stackit import marks
from providers.stackit.testing import server, servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT, REGION
from tests.support import vendor
from tests.support.vendor import VendorHarness

ANY_CALL = "* /v2*"
"""Having a token is none."""


class StackitHarness(VendorHarness):
    """A project of STACKIT with a network and an image."""

    any_call = ANY_CALL
    any_write = "[!G]* /v2*"
    faults = vendor.faults(
        ANY_CALL,
        outage="unavailable",
        denied="forbidden",
        rate_limited="too_many_requests",
        quota="quota",
    )

    opt_outs: Mapping[str, str] = {
        "names_are_marks": "names are k8s-svc-<UID>-<name>, and the vendor's manager sets no label",
    }

    def __init__(self, service: server.Service, url: str) -> None:
        super().__init__(service, url)
        self.form = "short"
        self.extra: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self.events: list[tuple[str, str, str]] = []

    def event(self, reference: cloud.ObjectReference, kind: str, reason: str, message: str) -> None:
        """Take note of an event: the name of the object, reason and message."""
        assert kind == "Warning"
        self.events.append((reference.name, reason, message))

    def config(self) -> bytes:
        """A cloud config of the fake; `extra` adds to its sections."""
        found: dict[str, Any] = {
            "global": {
                "projectId": PROJECT,
                "region": REGION,
                "apiEndpoints": {
                    "iaasApi": f"{self.url}{server.IAAS}",
                    "loadBalancerApi": f"{self.url}{server.BALANCERS}",
                },
            },
            "loadBalancer": {"networkId": NETWORK},
            "instance": {"providerIdForm": self.form},
        }
        for section, more in self.extra.items():
            found[section] = {**found.get(section, {}), **more}
        return msgspec.json.encode(found)

    def environ(self) -> Mapping[str, str]:
        return {
            "STACKIT_SERVICE_ACCOUNT_KEY": self.service.account.key.decode(),
            "STACKIT_TOKEN_BASEURL": f"{self.url}/token",
            "STACKIT_IAAS_ENDPOINT": f"{self.url}{server.IAAS}",
            **self.variables,
        }

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return stackit.open_cloud(
            cloud.Context(config=self.config(), environ=self.environ(), events=self)
        )

    async def create(self) -> Made:
        self._made += 1
        world = self.service.cloud
        order = {
            "name": f"node-{self._made}",
            "machineType": "c2i.2",
            "networking": {"networkId": NETWORK},
        }
        made = servers.new_server(world, order)
        made.update(status="ACTIVE", launchedAt=world.now())
        (nic,) = made["nics"]
        nic["publicIp"] = f"203.0.113.{self._made}"
        addresses = {
            nic["ipv4"]: "InternalIP",
            nic["publicIp"]: "ExternalIP",
            made["name"]: "Hostname",
        }
        return Made(
            name=made["name"],
            provider_id=f"stackit://{made['id']}",
            instance_type="c2i.2",
            zone="eu01-1",
            region=REGION,
            addresses=[cloud.address(kind, text) for text, kind in addresses.items()],
        )

    async def stop(self, made: Made) -> None:
        servers.power(self.service.cloud, _id(made.provider_id), on=False)

    async def start(self, made: Made) -> None:
        servers.power(self.service.cloud, _id(made.provider_id), on=True)

    async def delete(self, made: Made) -> None:
        servers.remove(self.service.cloud, _id(made.provider_id))

    async def transition(self, made: Made) -> None:
        self.service.settings.power_s = 60.0
        await self.stop(made)

    async def requests(self) -> int:
        return int(self.service.requests)

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        names = {
            nic["ipv4"]: one["name"]
            for one in self.service.cloud.servers.values()
            for nic in one["nics"]
        }
        return [
            HeldBalancer(
                name=one["name"],
                ports=frozenset(
                    (
                        "UDP" if "UDP" in each["protocol"] else "TCP",
                        each["port"],
                        pools[each["targetPool"]]["targetPort"],
                    )
                    for each in one["listeners"]
                ),
                members=frozenset(
                    names.get(each["ip"], each["ip"])
                    for pool in pools.values()
                    for each in pool["targets"]
                ),
            )
            for one in self.service.cloud.balancers.values()
            for pools in [{pool["name"]: pool for pool in one["targetPools"]}]
        ]

    async def break_load_balancer(self, name: str, reason: str) -> None:
        held = self.service.cloud.balancers[name]
        held["status"] = "STATUS_ERROR"
        held["errors"] = [{"type": "TYPE_INTERNAL", "description": reason}]

    async def tamper(self, name: str) -> None:
        for pool in self.service.cloud.balancers[name]["targetPools"]:
            pool["targets"] = []

    async def protect(self, name: str, *, protected: bool) -> None:
        (set.add if protected else set.discard)(self.service.cloud.protected, name)

    async def rotate(self) -> None:
        self.service.account.rotate()

    # --- machines

    def open_machines(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return stackit.open_machines(cloud.Context(environ=self.environ()))

    def machine_credentials(self) -> Mapping[str, bytes]:
        return {
            "project-id": f"{PROJECT}\n".encode(),
            "serviceaccount.json": self.service.account.key,
        }

    def machine_spec(self) -> Mapping[str, Any]:
        return {
            "region": REGION,
            "machineType": "c2i.2",
            "imageId": IMAGE,
            "networking": {"networkId": NETWORK},
            "allowedAddresses": ["10.96.0.0/12"],
        }

    def bad_machine_spec(self) -> Mapping[str, Any]:
        return {"region": REGION, "machineType": "", "networking": {}}

    async def vms(self) -> Sequence[HeldVM]:
        return [self._vm(one) for one in self.service.cloud.servers.values()]

    def _vm(self, made: Mapping[str, Any]) -> HeldVM:
        project = self.service.cloud.places[made["id"]][0]
        return HeldVM(name=made["name"], provider_id=f"stackit://{project}/{made['id']}")

    async def beside_vms(self) -> Sequence[str]:
        return list(self.service.cloud.nics)

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        labels = {}
        if identity:
            labels = {
                marks.StackitMachineLabel: identity.name,
                marks.StackitMachineClassLabel: identity.pool,
                marks.CLUSTER: identity.cluster,
                marks.NAMESPACE: identity.namespace,
                marks.UID: identity.uid,
            }
        order = {"name": name, "machineType": "c2i.2", "labels": labels}
        made = servers.new_server(self.service.cloud, order)
        made["status"] = "ACTIVE"
        return self._vm(made)


def _id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]
