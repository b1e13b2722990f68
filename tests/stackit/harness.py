"""Moves a fake of STACKIT from behind, for the contract suites and our own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ccm import cloud
from ccm.testing.contract import Harness, HeldBalancer, HeldVM, Made
from ccm.testing.fake_api import Fault
from providers import stackit
from providers.stackit import marks
from providers.stackit.testing import server, servers
from providers.stackit.testing.server import IMAGE, NETWORK, PROJECT, REGION

ANY_WRITE = "[!G]* /v2*"
"""Calls that only read are GET, and having a token changes nothing."""

ANY_CALL = "* /v2*"


class StackitHarness(Harness):
    """Moves a fake of the cloud from behind, and never over its HTTP API."""

    faults: Mapping[str, Fault] = {
        "outage": Fault(kind="error", code="unavailable", operation=ANY_CALL),
        "drop": Fault(kind="drop", operation=ANY_CALL),
        "denied": Fault(kind="error", code="forbidden", operation=ANY_CALL),
        "rate_limited": Fault(kind="error", code="too_many_requests", operation=ANY_CALL),
        "quota": Fault(kind="error", code="quota", operation=ANY_CALL),
        "garbage": Fault(kind="garbage", operation=ANY_CALL),
        "empty": Fault(kind="empty", operation=ANY_CALL),
        "hang": Fault(kind="hang", operation=ANY_CALL),
    }

    opt_outs: Mapping[str, str] = {
        "names_are_marks": "names are k8s-svc-<UID>-<name>, and the vendor's manager sets no label",
    }

    def __init__(self, service: server.Service, url: str) -> None:
        self.service = service
        self.url = url
        self.form = "short"
        self.extra: dict[str, Any] = {}
        self.variables: dict[str, str] = {}
        self._made = 0

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
        import msgspec

        return msgspec.json.encode(found)

    def environ(self) -> Mapping[str, str]:
        return {
            "STACKIT_SERVICE_ACCOUNT_KEY": self.service.account.key.decode(),
            "STACKIT_TOKEN_BASEURL": f"{self.url}/token",
            "STACKIT_IAAS_ENDPOINT": f"{self.url}{server.IAAS}",
            **self.variables,
        }

    def open(self) -> AbstractAsyncContextManager[cloud.Cloud]:
        return stackit.open_cloud(cloud.Context(config=self.config(), environ=self.environ()))

    async def create(self) -> Made:
        self._made += 1
        world = self.service.cloud
        order = {
            "name": f"node-{self._made}",
            "machineType": "c2i.2",
            "networking": {"networkId": NETWORK},
        }
        made = servers.make(world, order)
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

    async def surprise(self, made: Made) -> None:
        await self.fail(Fault(kind="novelty", operation=ANY_CALL))

    async def fail(self, how: Fault) -> None:
        self.service.script.add(how)

    async def heal(self) -> None:
        self.service.heal()

    async def writes(self) -> int:
        return self.service.writes

    async def requests(self) -> int:
        return self.service.requests

    async def lose_answer(self, number: int) -> None:
        fault = Fault(kind="drop", operation=ANY_WRITE, skip=number - 1, count=1, applied=True)
        self.service.script.add(fault)

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

    async def slow_load_balancers(self, *, slow: bool) -> None:
        self.service.settings.balancer_s = 60.0 if slow else 0.0
        if not slow:
            self.service.cloud.settle(all_of_them=True)

    async def break_load_balancer(self, name: str, reason: str) -> None:
        held = self.service.cloud.balancers[name]
        held["status"] = "STATUS_ERROR"
        held["errors"] = [{"type": "TYPE_INTERNAL", "description": reason}]

    async def tamper(self, name: str) -> None:
        for pool in self.service.cloud.balancers[name]["targetPools"]:
            pool["targets"] = []

    async def protect(self, name: str, *, protected: bool) -> None:
        (set.add if protected else set.discard)(self.service.cloud.protected, name)

    async def shrink_pages(self, size: int) -> None:
        self.service.settings.page_size = size

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
        made = servers.make(self.service.cloud, order)
        made["status"] = "ACTIVE"
        return self._vm(made)

    async def slow_vms(self, *, slow: bool) -> None:
        settings = self.service.settings
        settings.boot_s = settings.removal_s = 300.0 if slow else 0.0
        if not slow:
            self.service.cloud.settle(all_of_them=True)


def _id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]
