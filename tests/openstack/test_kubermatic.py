"""Kubermatic's machines in OpenStack: specs, credentials, and servers of the Go program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ccm import cloud
from ccm.cloud.configvar import Reference, Resolver
from ccm.cloud.kubermatic import (
    InstanceNotFound,
    KubermaticDriver,
    KubermaticMachine,
    KubermaticMachineSpec,
    OSNotSupported,
    ProviderConfig,
    ProviderData,
    TerminalError,
    ToKubermatic,
    to_kubermatic,
)
from providers.openstack import kubermatic, machines
from providers.openstack.testing import compute
from providers.openstack.testing.state import REGION
from tests.openstack.harness import FLAVOR, OpenStackHarness

NETWORK = "70bb02f3-c11b-4321-bd78-8f8f4460f1b3"
DATA = ProviderData()
SECRET = {
    name: {"secretKeyRef": {"namespace": "kube-system", "name": "openstack", "key": name}}
    for name in ("identityEndpoint", "username", "password", "domainName", "projectName")
}
SPEC: dict[str, Any] = {
    **SECRET,
    "region": REGION,
    "image": "ubuntu-24.04",
    "flavor": FLAVOR,
    "network": "nodes",
    "subnet": "nodes-v4",
    "tags": {"team": "a", "machine-uid": "not-this"},
    "trustDevicePath": False,
    "instanceReadyCheckPeriod": "5s",
}


def config(**fields: Any) -> dict[str, Any]:
    """`spec.providerSpec.value` of a machine; a field that is `absent` is left out."""
    spec = {key: value for key, value in {**SPEC, **fields}.items() if value != "absent"}
    whole = {"cloudProvider": "openstack", "operatingSystem": "ubuntu", "operatingSystemSpec": {}}
    return {**whole, "cloudProviderSpec": spec}


def machine(uid: str = "uid-1", name: str = "worker-1", **fields: Any) -> KubermaticMachine:
    spec = KubermaticMachineSpec(provider_spec=config(**fields))
    return KubermaticMachine(name=name, namespace="kube-system", uid=uid, spec=spec)


def made_by_go(harness: OpenStackHarness, uid: str, name: str = "worker-1") -> dict[str, Any]:
    """A server as Kubermatic's machine-controller leaves it."""
    made = compute.new_server(harness.service.cloud, name, harness.flavor, harness.network["id"])
    made["metadata"] = {"machine-uid": uid, "team": "a"}
    return made


@pytest.fixture
async def driver(harness: OpenStackHarness) -> AsyncIterator[kubermatic.KubermaticMachines]:
    async with machines.open_clients() as clients:
        yield kubermatic.KubermaticMachines(clients)


@pytest.fixture
def provider(driver: kubermatic.KubermaticMachines, harness: OpenStackHarness) -> ToKubermatic:
    given = harness.machine_credentials()
    data = {
        **{name: given[name] for name in ("username", "password", "domainName")},
        "identityEndpoint": given["authURL"],
        "projectName": given["tenantName"],
    }
    return to_kubermatic(driver, lambda _: data, {}, cluster="c1")


def native(environ: Mapping[str, str] | None = None, **fields: Any) -> Mapping[str, Any]:
    """The provider spec of the driver."""
    resolver = Resolver(lambda _: {}, environ or {})
    spec = config(**fields)["cloudProviderSpec"]
    given = ProviderConfig(operating_system="ubuntu", cloud_provider_spec=spec)
    return kubermatic.KubermaticMachines(None).kubermatic_spec(given, resolver, strict=True)  # type: ignore[arg-type]


async def _clean_up(provider: ToKubermatic, own: KubermaticMachine) -> None:
    for _ in range(5):
        if await provider.cleanup(own, DATA):
            return
    raise AssertionError("not deleted")


# --- specs --------------------------------------------------------------------------------------


def test_every_field_of_the_spec_has_its_place() -> None:
    assert native(
        image=NETWORK,
        network=NETWORK,
        networks=["more"],
        availabilityZone="az2",
        securityGroups=["nodes"],
        serverGroup=NETWORK,
        rootDiskSizeGB=40,
        rootDiskVolumeType="ssd",
        configDrive=True,
    ) == {
        "region": REGION,
        "flavorName": FLAVOR,
        "imageID": NETWORK,
        "networks": [{"id": NETWORK, "subnet": "nodes-v4"}, {"name": "more"}],
        "availabilityZone": "az2",
        "securityGroups": ["nodes"],
        "serverGroupID": NETWORK,
        "rootDiskSize": 40,
        "rootDiskType": "ssd",
        "useConfigDrive": True,
        "tags": SPEC["tags"],
    }
    assert native({"OS_REGION_NAME": "elsewhere"}, region="absent")["region"] == "elsewhere"
    machines.parse_spec(native())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"floatingIpPool": "public"}, "floatingIpPool is not supported; remove it"),
        ({"flavour": "m1"}, r"cloudProviderSpec\.flavour: unknown field"),
        ({"rootDiskSizeGB": "big"}, r"rootDiskSizeGB: 'big' is not a whole number"),
    ],
)
def test_invalid_spec_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cloud.InvalidArgument, match=message):
        native(**fields)


def test_operating_system_without_image_is_not_supported() -> None:
    with pytest.raises(OSNotSupported, match="operatingSystem 'ubuntu'; set image"):
        native(image="absent")


def credentials(environ: Mapping[str, str], **spec: Any) -> Mapping[str, bytes]:
    """The credentials of the driver; the Secret has only a password."""

    def lookup(reference: Reference) -> Mapping[str, bytes] | None:
        return {"password": b"from secret"} if reference.key == "password" else {}

    resolver = Resolver(lookup, environ)
    return kubermatic.KubermaticMachines(None).kubermatic_credentials(spec, resolver)  # type: ignore[arg-type]


def test_credentials_of_the_spec_take_precedence_over_the_environment() -> None:
    environ = {
        "OS_AUTH_URL": "https://keystone/v3",
        "OS_USER_NAME": "me",
        "OS_PASSWORD": "other",
        "OS_DOMAIN_NAME": "Default",
        "OS_TENANT_NAME": "old",
        "OS_TENANT_ID": "42",
    }
    found = credentials(environ, password=SECRET["password"], projectName="k8s")
    assert dict(found) == {
        "authURL": b"https://keystone/v3",
        "username": b"me",
        "password": b"from secret",
        "domainName": b"Default",
        "tenantName": b"k8s",
        "tenantID": b"42",
    }
    assert machines.parse_credentials(found, "").tenant_name == "k8s"
    with pytest.raises(cloud.InvalidArgument, match="lacks the key username"):
        credentials({}, username=SECRET["username"])


# --- servers ------------------------------------------------------------------------------------


async def test_server_lives_with_its_machine(
    provider: ToKubermatic, harness: OpenStackHarness
) -> None:
    await provider.validate(machine().spec)
    with pytest.raises(InstanceNotFound):
        await provider.get(machine())

    made = await provider.create(machine(), DATA, "#cloud-config")

    (server,) = harness.service.cloud.servers.values()
    assert server["metadata"]["machine-uid"] == "uid-1"
    assert server["metadata"]["team"] == "a"
    assert made.provider_id == f"openstack:///{server['id']}"
    assert await provider.get(machine()) == made
    assert list(made.addresses.values()) == ["InternalIP"]  # of the subnet that the spec names
    await _clean_up(provider, machine())
    assert harness.service.cloud.servers == {}
    assert await harness.beside_vms() == []


async def test_invalid_names_are_found_before_the_creation(provider: ToKubermatic) -> None:
    with pytest.raises(TerminalError) as raised:
        await provider.validate(machine(flavor="m1.none", image="beos", network="none").spec)
    for name in ("'m1.none'", "'beos'", "'none'"):
        assert f"{name} does not exist in this project" in raised.value.message
    with pytest.raises(TerminalError, match="needs exactly one of networks and networkID"):
        await provider.validate(machine(network="", subnet="").spec)


async def test_server_of_the_go_program_is_taken_over_without_a_write(
    provider: ToKubermatic, harness: OpenStackHarness
) -> None:
    server = made_by_go(harness, "uid-1")
    before, writes = dict(server["metadata"]), harness.service.writes

    found = await provider.get(machine())
    again = await provider.create(machine(), DATA, "")

    assert found.provider_id == again.provider_id == f"openstack:///{server['id']}"
    assert (server["metadata"], harness.service.writes) == (before, writes)
    own = machine()
    own.spec.provider_id = found.provider_id
    await _clean_up(provider, own)
    assert harness.service.cloud.servers == {}
    assert await harness.beside_vms() == []


async def test_server_with_another_uid_is_left_alone(
    provider: ToKubermatic, harness: OpenStackHarness
) -> None:
    server = made_by_go(harness, "uid-of-another")
    own = machine()

    with pytest.raises(InstanceNotFound):
        await provider.get(own)
    with pytest.raises(TerminalError) as raised:
        await provider.create(own, DATA, "")
    assert raised.value.reason == "CreateError"
    own.spec.provider_id = f"openstack:///{server['id']}"
    with pytest.raises(TerminalError, match="no labels or tags of a machine"):
        await provider.cleanup(own, DATA)
    assert list(harness.service.cloud.servers) == [server["id"]]


async def test_uid_is_migrated_and_user_metadata_stay(
    provider: ToKubermatic, harness: OpenStackHarness
) -> None:
    await provider.create(machine("uid-a"), DATA, "")
    go = made_by_go(harness, "uid-c", "worker-2")

    await provider.migrate_uid(machine("uid-a"), "uid-b")
    await provider.migrate_uid(machine("uid-c", "worker-2"), "uid-d")
    await provider.migrate_uid(machine("uid-none"), "uid-e")

    assert (await provider.get(machine("uid-b"))).name == "worker-1"
    with pytest.raises(InstanceNotFound):
        await provider.get(machine("uid-a"))
    assert go["metadata"] == {"machine-uid": "uid-d", "team": "a"}
    await _clean_up(provider, machine("uid-b"))
    await _clean_up(provider, machine("uid-d", "worker-2"))
    assert harness.service.cloud.servers == {}
    assert await harness.beside_vms() == []


def test_metrics_labels_need_no_secret(driver: kubermatic.KubermaticMachines) -> None:
    wrapped = KubermaticDriver(driver, {})

    assert wrapped.machine_metrics_labels(config()) == {"size": FLAVOR, "zone": ""}
    assert wrapped.machine_metrics_labels({}) == {"size": ""}
