"""The machine controllers with providers and drivers that serve Kubermatic's machines."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.base import clock
from ccm.cloud.machines import find_record
from ccm.kubermatic import names
from ccm.testing.clock import advance
from tests.unit.controllers.machines import FakeDriver
from tests.unit.kubermatic.test_machines import ALL, BASE, SECRETS, WEB, Kubermatic, value

pytestmark = pytest.mark.virtual_time

GOOD, BAD = b"secret", b"expired"


class Provider:
    """A provider with Kubermatic's interface; its cloud is a `FakeDriver`."""

    def __init__(self, account: FakeDriver, resolver: cloud.Resolver) -> None:
        self._account = account
        self._resolver = resolver

    def add_defaults(self, spec: cloud.KubermaticMachineSpec) -> cloud.KubermaticMachineSpec:
        return spec

    async def validate(self, spec: cloud.KubermaticMachineSpec) -> None:
        self._account.calls["validate"] += 1
        native = cloud.decode_config(spec.provider_spec).cloud_provider_spec
        if self._resolver.get_credential(native, "token", "") == BAD:
            raise cloud.TerminalError(cloud.ErrorReason.INVALID_CONFIGURATION, "token is expired")

    async def get(self, machine: cloud.KubermaticMachine) -> cloud.KubermaticInstance:
        record = find_record(self._account.vms.values(), _identity(machine))
        if record is None:
            raise cloud.InstanceNotFound
        info = record.info
        return cloud.KubermaticInstance(name=info.node_name, provider_id=info.provider_id)

    def get_cloud_config(self, spec: cloud.KubermaticMachineSpec) -> tuple[str, str]:
        return "", ""

    async def create(
        self, machine: cloud.KubermaticMachine, data: cloud.ProviderData, userdata: str
    ) -> cloud.KubermaticInstance:
        self._account.calls["create"] += 1
        if machine.name in self._account.hides:
            raise cloud.TerminalError(cloud.ErrorReason.CREATE, "the name is taken")
        self._account.add(_identity(machine))
        return await self.get(machine)

    async def cleanup(self, machine: cloud.KubermaticMachine, data: cloud.ProviderData) -> bool:
        record = find_record(self._account.vms.values(), _identity(machine))
        if record is not None:
            del self._account.vms[record.info.provider_id]
        return record is None

    async def migrate_uid(self, machine: cloud.KubermaticMachine, uid: str) -> None:
        record = find_record(self._account.vms.values(), _identity(machine))
        if record is not None:
            moved = replace(record, identity=replace(record.identity, uid=uid))
            self._account.vms[record.info.provider_id] = moved

    def machine_metrics_labels(self, machine: cloud.KubermaticMachine) -> Mapping[str, str]:
        return {"size": "small"}

    def set_metrics_for_machines(self, machines: Sequence[cloud.KubermaticMachine]) -> None:
        pass


def _identity(machine: cloud.KubermaticMachine) -> cloud.Identity:
    return cloud.Identity(cluster="all", pool="", name=machine.name, uid=machine.uid)


class Native(FakeDriver):
    """A driver with `KubermaticSpecs`."""

    location_fields = ()

    async def create_machine(self, req: cloud.MachineRequest) -> cloud.MachineInfo:
        self.calls["create"] += 1
        return await super().create_machine(req)

    async def validate_spec(
        self, spec: Mapping[str, Any], credentials: cloud.Credentials, live: bool
    ) -> Sequence[cloud.Problem]:
        self.calls["validate"] += 1
        bad = credentials["token"] == BAD
        return [cloud.Problem(field="token", message="is expired")] if bad else []

    def add_kubermatic_defaults(self, config: cloud.ProviderConfig) -> cloud.ProviderConfig:
        return config

    def kubermatic_spec(
        self, config: cloud.ProviderConfig, resolver: cloud.Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        return config.cloud_provider_spec

    def kubermatic_credentials(
        self, spec: Mapping[str, Any], resolver: cloud.Resolver
    ) -> cloud.Credentials:
        return cloud.Credentials({"token": resolver.get_credential(spec, "token", "")})

    async def migrate_uid(self, req: cloud.MachineRequest, former: str) -> None:
        raise NotImplementedError


class ProviderWorld(Kubermatic):
    def cloud(self) -> cloud.Cloud:
        driver = cloud.from_kubermatic(
            lambda resolver: Provider(self.driver, resolver), names=("fake",)
        )
        return cloud.Cloud(name="fake", machines=driver, has_cluster_id=True)


class NativeWorld(Kubermatic):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Native()

    def cloud(self) -> cloud.Cloud:
        driver = cloud.KubermaticDriver(self.driver, {})
        return cloud.Cloud(name="fake", machines=driver, has_cluster_id=True)


WORLDS = pytest.mark.parametrize("kind", [ProviderWorld, NativeWorld])


@pytest.mark.row("kubermatic-provider-01")
@WORLDS
async def test_deployment_of_a_provider_is_scaled_and_deleted(kind: type[Kubermatic]) -> None:
    """A provider cannot list its instances."""
    world = kind()
    world.deployment(3)
    async with world.running(*ALL):
        await world.settle()
        assert world.sizes() == ["small"] * 3
        world.edit(replicas=1)
        await world.settle()
        assert world.sizes() == ["small"]
        assert len(world.driver.vms) == 1
        world.server.drop(f"{BASE}/machinedeployments/web")
        await world.settle(300)

    assert world.objects("machines") == []
    assert world.driver.vms == {}
    assert world.driver.calls["create"] == 3
    assert world.driver.calls["validate"] == 1


@pytest.mark.row("kubermatic-provider-07")
async def test_unfinished_clean_up_is_shown_and_repeated_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ProviderWorld()
    world.deployment(1)
    called: list[float] = []

    async def never(*_: Any) -> bool:
        called.append(clock.monotonic())
        return False

    monkeypatch.setattr(Provider, "cleanup", never)
    async with world.running(*ALL):
        await world.settle()
        world.edit(replicas=0)
        await advance(60)
        (goes,) = world.objects("machines")

    assert "VM deletion is in progress" in goes["status"]["lastOperation"]["description"]
    assert {names.FINALIZER_MACHINE, names.FINALIZER_NODE} <= {*goes["metadata"]["finalizers"]}
    assert all(10 <= after - before < 15 for before, after in pairwise(called)), called
    assert len(called) > 3


@pytest.mark.row("kubermatic-provider-01")
async def test_provider_finds_the_instance_of_a_machine_without_provider_id() -> None:
    """Without user data, too: another program created the instance."""
    world = ProviderWorld()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
    (before,) = world.objects("machines")
    path = f"{BASE}/machines/{before['metadata']['name']}"
    world.server.patch(path, {"spec": {"providerID": None}, "status": {"phase": None}})
    world.user_data("another")

    async with world.running(*ALL):
        await world.settle()
        (after,) = world.objects("machines")

    assert after["spec"]["providerID"] == before["spec"]["providerID"]
    assert after["status"]["phase"] == "Running"
    assert world.driver.calls["create"] == 1


@pytest.mark.row("kubermatic-provider-10")
@WORLDS
async def test_invalid_spec_creates_no_instance_and_is_shown(kind: type[Kubermatic]) -> None:
    """The result counts for five minutes, and a corrected Secret at once."""
    world = kind()
    secret(world, BAD)
    world.deployment(3)
    async with world.running(*ALL):
        await world.settle(250)
        for machine in world.objects("machines"):
            status = machine["status"]
            assert status["errorReason"] == "InvalidConfiguration"
            assert "is expired" in status["errorMessage"]
            (condition,) = status["conditions"]
            assert (condition["type"], condition["status"]) == ("SpecValid", "False")
            assert condition["reason"] == "InvalidConfiguration"
            assert condition["message"] == status["errorMessage"]
            assert condition["lastTransitionTime"] == status["lastOperation"]["lastUpdated"]
        assert world.driver.calls["validate"] == 1
        assert world.driver.calls["create"] == 0
        assert world.driver.vms == {}

        secret(world, GOOD)
        await world.settle(250)
        assert world.sizes() == ["small"] * 3
        for machine in world.objects("machines"):
            assert "errorReason" not in machine["status"]
            assert [one["type"] for one in machine["status"]["conditions"]] == ["Ready"]
    assert world.driver.calls["validate"] == 2


@pytest.mark.row("kubermatic-names-01")
async def test_machine_of_another_cloud_gets_a_condition_and_nothing_else() -> None:
    world = ProviderWorld()
    world.deployment(1)
    template = (world.server.get(WEB) or {})["spec"]["template"]
    template["spec"]["providerSpec"]["value"]["cloudProvider"] = "aws"
    world.edit(template=template)
    async with world.running(*ALL):
        await world.settle()

    (machine,) = world.objects("machines")
    (condition,) = machine["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("SpecValid", "False")
    where = "spec.providerSpec.value.cloudProvider"
    assert f"{where} is 'aws', but the driver accepts 'fake'" in condition["message"]
    assert "MachineClass" not in condition["message"]
    assert "finalizers" not in machine["metadata"]
    assert not world.driver.calls
    assert world.driver.vms == {}


@pytest.mark.row("kubermatic-names-01")
@pytest.mark.parametrize("provider", ["aws", "fake-2", "packet"])
async def test_another_cloud_is_a_fault_of_the_configuration(provider: str) -> None:
    world = ProviderWorld()
    world.deployment(1)
    world.edit_template(providerSpec={"value": {**value(), "cloudProvider": provider}})
    async with world.running(*ALL):
        await world.settle(10)
        (before,) = world.objects("machines")
        await world.settle(600)

        assert world.objects("machines") == [before], "written once"
    (condition,) = before["status"]["conditions"]
    assert before["status"]["errorReason"] == condition["reason"] == "InvalidConfiguration"
    assert repr(provider) in before["status"]["errorMessage"]


@pytest.mark.row("kubermatic-provider-11")
async def test_terminal_error_of_a_creation_is_retried_seldom() -> None:
    world = ProviderWorld()
    world.deployment(1)
    async with world.running("machineset", "machinedeployment"):
        await world.settle(10)
    (machine,) = world.objects("machines")
    world.driver.hides.add(machine["metadata"]["name"])

    async with world.running(*ALL):
        await world.settle(120)
        assert world.driver.calls["create"] == 1
        status = world.objects("machines")[0]["status"]
        assert status["errorReason"] == "CreateError"
        assert "the name is taken" in status["errorMessage"]
        assert "conditions" not in status

        world.driver.hides.clear()
        await world.settle(600)
        assert world.sizes() == ["small"]
        assert world.driver.calls["create"] == 2


async def restored(world: Kubermatic, **status: Any) -> dict[str, Any]:
    """A Machine with an instance, as a restore of a backup leaves it."""
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
    (before,) = world.objects("machines")
    path = f"{BASE}/machines/{before['metadata']['name']}"
    world.server.unmake(path)
    meta = {key: before["metadata"][key] for key in ("name", "labels", "finalizers")}
    notes = {names.ANNOTATION_FORMER_UID: before["metadata"]["uid"]}
    body = {"metadata": {**meta, "annotations": notes}, "spec": {**before["spec"]}}
    world.server.put(f"{BASE}/machines", body)
    world.server.patch(path, {"status": status})
    return before


@pytest.mark.row("kubermatic-machine-09")
@pytest.mark.parametrize("phase", ["", "Running"])
async def test_machine_that_was_restored_with_its_status_keeps_its_instance(phase: str) -> None:
    world = ProviderWorld()
    before = await restored(world, phase=phase)

    async with world.running(*ALL):
        await world.settle()
        (after,) = world.objects("machines")

    (record,) = world.driver.vms.values()
    assert record.identity.uid == after["metadata"]["uid"] != before["metadata"]["uid"]
    assert names.ANNOTATION_FORMER_UID not in after["metadata"].get("annotations", {})
    assert after["status"]["phase"] == "Running"
    assert world.driver.calls["create"] == 1


@pytest.mark.row("kubermatic-machine-09")
async def test_restored_machine_that_is_deleted_at_once_leaves_no_instance() -> None:
    world = ProviderWorld()
    before = await restored(world)
    path = f"{BASE}/machines/{before['metadata']['name']}"
    world.server.patch(path, {"spec": {"providerID": None}})
    world.server.drop(path)

    async with world.running("machine"):
        await world.settle()

    assert world.objects("machines") == []
    assert world.driver.vms == {}


@pytest.mark.row("kubermatic-uid-02")
@pytest.mark.parametrize(("phase", "replicas"), [("", 1), ("Running", 1), ("Running", 0)])
async def test_machine_with_an_instance_does_not_get_a_second_one(
    phase: str, replicas: int
) -> None:
    """Neither while it is created, nor in use, nor deleted."""
    world = ProviderWorld()
    path = f"{BASE}/machines/{(await restored(world, phase=phase))['metadata']['name']}"
    machine = (world.server.get(path) or {})["metadata"]
    (former,) = world.driver.vms
    identity = cloud.Identity(cluster="all", pool="", name=machine["name"], uid=machine["uid"])
    world.driver.add(identity, cloud.MachineInfo(provider_id="fake:///own", node_name="own"))
    before = dict(world.driver.vms)
    world.edit(replicas=replicas)

    async with world.running(*ALL):
        await world.settle(60)

    assert world.driver.vms == before
    assert world.driver.calls["create"] == 1
    (now,) = world.objects("machines")
    assert now["metadata"]["annotations"][names.ANNOTATION_FORMER_UID]
    texts = {text for reason, text in world.events if reason == "UIDNotMigrated"}
    (text,) = texts
    assert f"names VM {former}, but VM fake:///own has the UID of the Machine" in text
    if not (phase and replicas):
        assert text in now["status"]["errorMessage"]


@pytest.mark.row("kubermatic-uid-01")
async def test_machine_cannot_take_the_instance_of_another_machine() -> None:
    world = ProviderWorld()
    world.deployment(2)
    async with world.running(*ALL):
        await world.settle()
        before = {key: one.identity.uid for key, one in world.driver.vms.items()}
        thief, other = world.objects("machines")
        path = f"{BASE}/machines/{thief['metadata']['name']}"
        notes = {names.ANNOTATION_FORMER_UID: other["metadata"]["uid"]}
        world.server.patch(path, {"metadata": {"annotations": notes}})
        with capture_logs() as lines:
            await world.settle(60)

    assert {key: one.identity.uid for key, one in world.driver.vms.items()} == before
    text = f"has the UID of Machine default/{other['metadata']['name']}; remove the annotation"
    assert any(text in str(line.get("error")) for line in lines), lines
    assert (world.server.get(path) or {})["status"]["phase"] == "Running"


def secret(world: Kubermatic, token: bytes) -> None:
    data = {"token": base64.b64encode(token).decode()}
    world.server.patch(f"{SECRETS}/acme", {"data": data})
