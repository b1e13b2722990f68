"""Our providers keep the contract of machine drivers with Kubermatic's provider specs, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.cloud.configvar import Reference
from ccm.cloud.kubermatic import MACHINE_UID, MADE_UP_ID, credentials_of
from ccm.testing.contract import Harness, HeldVM, MachineContract
from ccm.testing.machine_probes import Machines
from providers.hcloud.testing import server as hcloud
from providers.openstack.testing import server as openstack
from providers.sim import server as sim
from providers.sim import state
from providers.stackit.testing import server as stackit
from providers.stackit.testing.server import IMAGE, NETWORK, REGION
from tests.contract.test_sim import SimHarness
from tests.hcloud.harness import HcloudHarness
from tests.openstack.harness import FLAVOR, OpenStackHarness
from tests.stackit.harness import StackitHarness

SECRET = {"namespace": "kube-system", "name": "credentials"}


def reference(key: str) -> dict[str, Any]:
    return {"secretKeyRef": {**SECRET, "key": key}}


class Kubermatic:
    """Part of a harness: its machines have a spec of Kubermatic, and Secrets that it refers to."""

    spec: ClassVar[Mapping[str, Any]]
    keys: ClassVar[Mapping[str, str]]
    """Key of the credentials of the driver -> field of the spec."""

    @asynccontextmanager
    async def open_machines(self) -> AsyncIterator[cloud.Cloud]:
        async with super().open_machines() as found:  # type: ignore[misc]
            yield found.with_kubermatic()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[cloud.Cloud]:
        async with super().open() as found:  # type: ignore[misc]
            yield found.with_kubermatic()

    def machine_credentials(self) -> Mapping[str, bytes]:
        data = super().machine_credentials()  # type: ignore[misc]
        references = [Reference(kind="Secret", **SECRET, key=key) for key in data]
        return dict(credentials_of(dict.fromkeys(references, data)))

    def machine_spec(self) -> Mapping[str, Any]:
        fields = {field: reference(key) for key, field in self.keys.items()}
        return {
            "cloudProvider": "ours",
            "operatingSystem": "ubuntu",
            "cloudProviderSpec": {"labels": {"team": "a"}, **self.spec, **fields},
        }

    def labels(self) -> list[Mapping[str, str]]:
        """Labels of each VM."""
        raise NotImplementedError

    def bad_machine_spec(self) -> Mapping[str, Any]:
        good = self.machine_spec()
        return {**good, "cloudProviderSpec": {**good["cloudProviderSpec"], "unknown": 1}}


class KubermaticHcloud(Kubermatic, HcloudHarness):
    spec: ClassVar = {"serverType": "cx23", "location": "fsn1", "networks": ["k8s"]}
    keys: ClassVar = {"token": "token"}

    def labels(self) -> list[Mapping[str, str]]:
        return [dict(one["labels"]) for one in self.service.cloud.servers.values()]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        made = await super().foreign_vm(name, identity)
        if identity is not None:
            number = int(cloud.parse_provider_id(made.provider_id, "hcloud"))
            self.service.cloud.servers[number]["labels"][MACHINE_UID] = identity.uid
        return made


class KubermaticOpenStack(Kubermatic, OpenStackHarness):
    spec: ClassVar = {
        "region": "RegionOne",
        "flavor": FLAVOR,
        "image": "ubuntu-24.04",
        "network": "nodes",
        "subnet": "nodes-v4",
    }
    keys: ClassVar = {
        "authURL": "identityEndpoint",
        "username": "username",
        "password": "password",
        "domainName": "domainName",
        "tenantName": "projectName",
    }

    def machine_spec(self) -> Mapping[str, Any]:
        spec = dict(super().machine_spec())
        native = dict(spec["cloudProviderSpec"])
        return {**spec, "cloudProviderSpec": {"tags": native.pop("labels"), **native}}

    def labels(self) -> list[Mapping[str, str]]:
        return [dict(one["metadata"]) for one in self.service.cloud.servers.values()]

    async def foreign_vm(self, name: str, identity: cloud.Identity | None) -> HeldVM:
        made = await super().foreign_vm(name, identity)
        if identity is not None:
            number = made.provider_id.rpartition("/")[2]
            self.service.cloud.servers[number]["metadata"][MACHINE_UID] = identity.uid
        return made


class KubermaticStackit(Kubermatic, StackitHarness):
    spec: ClassVar = {
        "region": REGION,
        "machineType": "c2i.2",
        "imageId": IMAGE,
        "networkId": NETWORK,
        "allowedAddresses": ["10.96.0.0/12"],
    }
    keys: ClassVar = {"project-id": "projectId", "serviceaccount.json": "serviceAccountKey"}

    def labels(self) -> list[Mapping[str, str]]:
        return [dict(one["labels"]) for one in self.service.cloud.servers.values()]


class KubermaticSim(Kubermatic, SimHarness):
    # Without data volumes: their labels cannot be changed, so `migrate_uid` refuses such a VM.
    spec: ClassVar = {"machineType": "small", "allowedAddresses": ["10.96.0.0/12"]}
    keys: ClassVar = {"token": "token"}

    def labels(self) -> list[Mapping[str, str]]:
        return [dict(one.labels) for one in self._world.snapshot()]


class KubermaticContract(MachineContract):
    @pytest.mark.row("kubermatic-provider-08")
    async def test_new_uid_replaces_no_other_label(
        self, machines: Machines, harness: Harness
    ) -> None:
        assert isinstance(harness, Kubermatic)
        assert isinstance(machines.driver, cloud.UIDMigration)
        identity = machines.identity()
        await machines.create(identity)
        (before,) = harness.labels()

        restored = machines.request(replace(identity, uid="restored"))
        await machines.driver.migrate_uid(restored, identity.uid)

        (after,) = harness.labels()
        assert after.keys() == before.keys()
        changed = {key for key in before if before[key] != after[key]}
        assert {before[key] for key in changed} == {identity.uid}
        assert {after[key] for key in changed} == {"restored"}
        assert after["team"] == "a"

    @pytest.mark.row("kubermatic-machine-20")
    async def test_made_up_provider_id_is_kept_before_the_vm_is_initialized(
        self, machines: Machines
    ) -> None:
        identity, made_up = machines.identity(), f"{MADE_UP_ID}ours/uid"
        await machines.create(identity)

        assert (await machines.status(identity, made_up)).provider_id == made_up

    @pytest.mark.row("kubermatic-spec-06")
    async def test_missing_value_blocks_a_deletion_only_if_it_says_where_the_vm_is(
        self, machines: Machines, harness: Harness
    ) -> None:
        assert isinstance(harness, Kubermatic)
        driver: Any = machines.driver
        location = driver.spi.location_fields
        spec, identity = harness.machine_spec(), machines.identity()
        missing = {"configMapKeyRef": {**SECRET, "name": "missing", "key": "value"}}

        def without(*fields: str) -> dict[str, Any]:
            native = spec["cloudProviderSpec"] | dict.fromkeys(fields, missing)
            return {**spec, "cloudProviderSpec": native}

        vm = await machines.create(identity)
        for field in location:
            for ask in (machines.status, machines.delete):
                with pytest.raises(cloud.InvalidArgument, match="missing does not exist"):
                    await ask(identity, provider_spec=without(field))
        texts = {field for field, value in harness.spec.items() if isinstance(value, str)}
        rest = without(*(texts - location))
        with pytest.raises(cloud.InvalidArgument, match="missing does not exist"):
            await machines.create_once(identity, provider_spec=rest)

        found = await machines.status(identity, provider_spec=rest)
        assert found.provider_id == vm.provider_id
        await machines.delete(identity, provider_spec=rest)
        assert await harness.vms() == []

    @pytest.mark.row("kubermatic-spec-04")
    @pytest.mark.parametrize("system", ["beos", ""])
    async def test_unknown_operating_system_creates_no_vm(
        self, machines: Machines, harness: Harness, system: str
    ) -> None:
        spec = {**harness.machine_spec(), "operatingSystem": system}
        with pytest.raises(cloud.InvalidArgument, match=f"operatingSystem is '{system}'"):
            await machines.create_once(machines.identity(), provider_spec=spec)

        assert await harness.vms() == []


class TestKubermaticHcloud(KubermaticContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = hcloud.Service()
        async with hcloud.serve(service) as url:
            yield KubermaticHcloud(service, url)


class TestKubermaticOpenStack(KubermaticContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = openstack.Service()
        async with openstack.serve(service) as url:
            yield KubermaticOpenStack(service, url)


class TestKubermaticStackit(KubermaticContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = stackit.Service()
        async with stackit.serve(service) as url:
            yield KubermaticStackit(service, url)


class TestKubermaticSim(KubermaticContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        service = sim.Service(settings=state.Settings(transition_s=0.0))
        async with sim.serve(service) as url:
            yield KubermaticSim(service, url)
