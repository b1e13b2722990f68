"""Kubermatic's machines in the Hetzner Cloud: specs, labels, and servers of the Go program."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ccm import cloud
from ccm.app import options
from ccm.base import redact
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
from ccm.doctor.start_forecast import run_in_forecast_thread
from ccm.kubermatic import crds, names
from ccm.planning import changes
from ccm.planning.changes import VM, Forecast
from ccm.planning.forecast import forecast
from providers.hcloud import kubermatic, machines
from providers.hcloud.testing import extras, servers
from providers.hcloud.testing.state import Call
from tests.hcloud.harness import HcloudHarness
from tests.unit.controllers.machines import DEFINITIONS, NODES_PATH
from tests.unit.controllers.memory_server import MemoryServer

TOKEN = Reference(kind="Secret", namespace="kube-system", name="hetzner", key="token")
SPEC = {
    "token": {"secretKeyRef": {"namespace": "kube-system", "name": "hetzner", "key": "token"}},
    "serverType": "cx23",
    "location": "fsn1",
    "networks": ["k8s"],
    "firewalls": None,
    "labels": {"team": "a", "machine-uid": "not-this"},
    "assignPublicIPv4": None,
}
DATA = ProviderData()
Status = cloud.KubermaticInstanceStatus


def config(system: str = "ubuntu", **fields: Any) -> dict[str, Any]:
    """`spec.providerSpec.value` of a machine."""
    spec = {"cloudProvider": "hetzner", "operatingSystem": system, "operatingSystemSpec": {}}
    return {**spec, "cloudProviderSpec": {**SPEC, **fields}}


def machine(uid: str = "uid-1", name: str = "worker-1", **fields: Any) -> KubermaticMachine:
    spec = KubermaticMachineSpec(provider_spec=config(**fields))
    return KubermaticMachine(name=name, namespace="kube-system", uid=uid, spec=spec)


def made_by_go(harness: HcloudHarness, uid: str, name: str = "worker-1") -> dict[str, Any]:
    """A server as Kubermatic's machine-controller leaves it."""
    labels = {"machine-uid": uid, "team": "a"}
    order = {"server_type": "cx23", "image": "ubuntu-24.04", "labels": labels}
    made = servers.new_server(harness.service.cloud, name, order)
    harness.service.cloud.servers[made["id"]] = made
    return made


@pytest.fixture
async def driver(harness: HcloudHarness) -> AsyncIterator[kubermatic.KubermaticMachines]:
    async with machines.open_clients(harness.url) as clients:
        yield kubermatic.KubermaticMachines(clients)


@pytest.fixture
def provider(driver: kubermatic.KubermaticMachines, harness: HcloudHarness) -> ToKubermatic:
    data = {"token": harness.service.token.encode()}
    return to_kubermatic(driver, lambda _: data, {}, cluster="c1")


def native(system: str = "ubuntu", **fields: Any) -> Mapping[str, Any]:
    """The provider spec of the driver."""
    given = {key: value for key, value in {**SPEC, **fields}.items() if value != "absent"}
    resolver = Resolver(lambda _: {"token": b"from secret"}, {})
    spec = ProviderConfig(operating_system=system, cloud_provider_spec=given)
    return kubermatic.KubermaticMachines(None).kubermatic_spec(spec, resolver, strict=True)  # type: ignore[arg-type]


# --- specs --------------------------------------------------------------------------------------


@pytest.mark.row("kubermatic-hetzner-02")
@pytest.mark.parametrize(
    ("system", "image"), [("ubuntu", "ubuntu-24.04"), ("rockylinux", "rocky-9")]
)
def test_operating_system_selects_the_image(system: str, image: str) -> None:
    assert native(system)["image"] == image
    assert native("flatcar", image="my-image")["image"] == "my-image"


@pytest.mark.row("kubermatic-hetzner-02")
@pytest.mark.parametrize("system", ["flatcar", "centos", "coreos", "rhel", "amzn2", ""])
def test_operating_system_without_image_is_not_supported(system: str) -> None:
    with pytest.raises(OSNotSupported, match="operatingSystem to one of ubuntu, rockylinux"):
        native(system)


@pytest.mark.row("kubermatic-hetzner-01")
@pytest.mark.parametrize(
    ("datacenter", "location"), [("nbg1-dc3", "nbg1"), ("fsn1-dc14", "fsn1"), ("ash-dc1", "ash")]
)
def test_datacenter_becomes_its_location(
    driver: kubermatic.KubermaticMachines, datacenter: str, location: str
) -> None:
    given = {"serverType": "cx23", "datacenter": datacenter}
    defaulted = driver.add_kubermatic_defaults(ProviderConfig(cloud_provider_spec=given))

    assert defaulted.cloud_provider_spec == {"serverType": "cx23", "location": location}
    spec = machines.parse_spec(native(datacenter=datacenter, location=""))
    assert spec.effective_location == location


@pytest.mark.row("kubermatic-hetzner-01")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"datacenter": "4"}, "datacenter is '4'; it must be a name such as fsn1-dc14"),
        ({"datacenter": "-dc1"}, "datacenter is '-dc1'"),
        ({"datacenter": "fsn1-dc14", "location": "fsn1"}, "location and datacenter are both set"),
        ({"serverTyp": "cx23"}, r"cloudProviderSpec\.serverTyp: unknown field"),
    ],
)
def test_invalid_spec_gets_no_defaults(
    driver: kubermatic.KubermaticMachines, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(cloud.InvalidArgument, match=message):
        driver.add_kubermatic_defaults(ProviderConfig(cloud_provider_spec=fields))


@pytest.mark.row("kubermatic-hetzner-01")
def test_datacenter_in_a_secret_is_kept(driver: kubermatic.KubermaticMachines) -> None:
    given = ProviderConfig(cloud_provider_spec={"datacenter": SPEC["token"], "location": "fsn1"})

    assert driver.add_kubermatic_defaults(given) == given


@pytest.mark.row("kubermatic-hetzner-07")
def test_token_comes_from_the_spec_or_the_environment(
    driver: kubermatic.KubermaticMachines,
) -> None:
    environ = {"HZ_TOKEN": "from env"}
    found = Resolver(lambda _: {"token": b"from secret"}, environ)
    read = driver.kubermatic_credentials

    assert dict(read(SPEC, found)) == {"token": b"from secret"}
    assert dict(read({}, found)) == {"token": b"from env"}
    with pytest.raises(cloud.InvalidArgument, match="token: Secret kube-system/hetzner does not"):
        read(SPEC, Resolver(lambda _: None, environ))
    with pytest.raises(cloud.InvalidArgument, match="token: expected a string"):
        read({"token": []}, found)


@pytest.mark.row("kubermatic-hetzner-07")
async def test_missing_token_is_a_fault_of_the_spec(driver: kubermatic.KubermaticMachines) -> None:
    provider = to_kubermatic(driver, lambda _: {"token": b""}, {}, cluster="c1")

    with pytest.raises(
        TerminalError, match="lack the key `token`; set it to an API token"
    ) as raised:
        await provider.validate(machine().spec)

    assert raised.value.reason == "InvalidConfiguration"


@pytest.mark.row("kubermatic-config-10")
async def test_token_in_the_spec_itself_is_accepted_and_masked(
    driver: kubermatic.KubermaticMachines, harness: HcloudHarness
) -> None:
    harness.service.token = token = "in-the-spec-4f1c"
    provider = to_kubermatic(driver, lambda _: None, {}, cluster="c1")

    await provider.validate(machine(token=token).spec)

    assert redact.mask_for_api(f"refused: {token}") == f"refused: {redact.MASK}"


@pytest.mark.row("kubermatic-hetzner-12")
async def test_machines_with_the_same_token_share_a_client(
    provider: ToKubermatic, driver: kubermatic.KubermaticMachines, harness: HcloudHarness
) -> None:
    """And its rate limit. It is closed when the token is replaced."""
    made_by_go(harness, "uid-1")
    made_by_go(harness, "uid-2", "worker-2")
    former = [(await provider.get(machine(uid))).name for uid in ("uid-1", "uid-2")]
    assert (former, len(driver.spi)) == (["worker-1", "worker-2"], 1)

    harness.service.token = "renewed"
    renewed = to_kubermatic(driver, lambda _: {"token": b"renewed"}, {}, cluster="c1")
    await renewed.get(machine())

    assert len(driver.spi) == 1


@pytest.mark.row("kubermatic-hetzner-03")
async def test_invalid_names_are_found_before_the_creation(provider: ToKubermatic) -> None:
    """A missing location, image or network is noticed, too."""
    bad = machine(location="mars", image="beos", networks=["none"], serverType="")

    with pytest.raises(TerminalError) as raised:
        await provider.validate(bad.spec)
    assert "serverType" in raised.value.message
    with pytest.raises(TerminalError) as raised:
        await provider.validate(machine(location="mars", image="beos", networks=["none"]).spec)
    for name in ("'mars'", "'beos'", "'none'"):
        assert f"{name} does not exist in this project" in raised.value.message
    with pytest.raises(TerminalError) as raised:
        await provider.validate(machine(serverType="cx99", firewalls=["wall"]).spec)
    for name in ("'cx99'", "'wall'"):
        assert f"{name} does not exist in this project" in raised.value.message
    with pytest.raises(TerminalError, match="datacenter: conflicts with location"):
        await provider.validate(machine(datacenter="fsn1-dc14").spec)
    with pytest.raises(TerminalError, match=r"networks: is missing; set a network"):
        await provider.validate(
            machine(networks=[], assignPublicIPv4=False, assignPublicIPv6=False).spec
        )


@pytest.mark.row("kubermatic-hetzner-03")
async def test_deprecated_image_is_valid(provider: ToKubermatic) -> None:
    await provider.validate(machine(image="ubuntu-22.04").spec)


# --- servers ------------------------------------------------------------------------------------


@pytest.mark.row("kubermatic-hetzner-04")
async def test_server_lives_with_its_machine(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    await provider.validate(machine().spec)
    with pytest.raises(InstanceNotFound):
        await provider.get(machine())

    made = await provider.create(machine(), DATA, "#cloud-config")

    (server,) = harness.service.cloud.servers.values()
    assert server["labels"]["machine-uid"] == "uid-1"
    assert server["labels"]["team"] == "a"
    assert made.provider_id == f"hcloud://{server['id']}"
    assert await provider.get(machine()) == made
    assert "<nil>" not in made.addresses
    assert made.addresses[server["private_net"][0]["ip"]] == "InternalIP"
    assert made.addresses[server["public_net"]["ipv4"]["ip"]] == "ExternalIP"
    await _clean_up(provider, machine())
    assert harness.service.cloud.servers == {}
    assert await harness.beside_vms() == []


@pytest.mark.row("kubermatic-hetzner-08")
async def test_every_field_of_the_spec_reaches_the_server(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    world = harness.service.cloud
    _, wall = extras.create_firewall(world, Call(body={"name": "wall"}))
    assert wall is not None
    fields: dict[str, Any] = {
        "serverType": {"value": "cx23"},
        "image": "rocky-9",
        "location": "nbg1",
        "firewalls": ["wall"],
        "networks": [str(next(iter(world.networks)))],
        "placementGroupPrefix": "web",
        "assignPublicIPv4": False,
    }

    made = await provider.create(machine(**fields), DATA, "#cloud-config")

    (server,) = world.servers.values()
    assert server["server_type"]["name"] == "cx23"
    assert server["image"]["name"] == "rocky-9"
    assert server["datacenter"]["location"]["name"] == "nbg1"
    assert [one["id"] for one in server["public_net"]["firewalls"]] == [wall["firewall"]["id"]]
    assert server["placement_group"]["name"].startswith("web-")
    assert server["public_net"]["ipv4"] is None
    v6 = server["public_net"]["ipv6"]["ip"].removesuffix("/64") + "1"
    (private,) = server["private_net"]
    assert made.addresses == {
        "worker-1": "Hostname",
        v6: "ExternalIP",
        private["ip"]: "InternalIP",
    }
    await _clean_up(provider, machine(**fields))
    assert await harness.beside_vms() == []


@pytest.mark.row("kubermatic-hetzner-09")
async def test_placement_group_of_another_owner_is_neither_used_nor_deleted(
    provider: ToKubermatic, harness: HcloudHarness, driver: kubermatic.KubermaticMachines
) -> None:
    """A user, or Kubermatic's machine-controller, created it: it has no labels of ours."""
    theirs = {"name": "web-a1b2c", "type": "spread", "labels": {"team": "a"}}
    extras.create_placement_group(harness.service.cloud, Call(body=theirs))

    await provider.create(machine(placementGroupPrefix="web"), DATA, "")
    groups = harness.service.cloud.placement_groups
    sizes = {one["name"] == "web-a1b2c": len(one["servers"]) for one in groups.values()}
    assert sizes == {True: 0, False: 1}

    await _clean_up(provider, machine(placementGroupPrefix="web"))
    assert [one["name"] for one in groups.values()] == ["web-a1b2c"]
    assert not driver._groups, "no lock is kept"


@pytest.mark.row("kubermatic-hetzner-10")
@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("initializing", Status.CREATING),
        ("running", Status.RUNNING),
        ("deleting", Status.DELETING),
        ("off", Status.UNKNOWN),
        ("rebuilding", Status.UNKNOWN),
    ],
)
async def test_state_of_the_server_is_the_status(
    provider: ToKubermatic, harness: HcloudHarness, state: str, status: Status
) -> None:
    made_by_go(harness, "uid-1")["status"] = state

    assert (await provider.get(machine())).status is status


@pytest.mark.row("kubermatic-hetzner-11")
@pytest.mark.parametrize(
    ("fault", "reason"), [("denied", "InvalidConfiguration"), ("quota", "InsufficientResources")]
)
async def test_error_that_a_user_must_correct_is_terminal(
    provider: ToKubermatic, harness: HcloudHarness, fault: str, reason: str
) -> None:
    await provider.validate(machine().spec)
    await harness.fail(harness.faults[fault])

    with pytest.raises(TerminalError) as raised:
        await provider.create(machine(), DATA, "")

    assert raised.value.reason == reason


@pytest.mark.row("kubermatic-hetzner-11")
@pytest.mark.parametrize("fault", ["outage", "rate_limited"])
async def test_outage_is_transient(
    provider: ToKubermatic, harness: HcloudHarness, fault: str
) -> None:
    await harness.fail(harness.faults[fault])

    with pytest.raises(cloud.CloudError):
        await provider.get(machine())


async def _clean_up(provider: ToKubermatic, own: KubermaticMachine) -> None:
    for _ in range(5):
        if await provider.cleanup(own, DATA):
            return
    raise AssertionError("not deleted")


@pytest.mark.row("kubermatic-hetzner-05")
async def test_server_of_the_go_program_is_taken_over_without_a_write(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    server = made_by_go(harness, "uid-1")
    before = dict(server["labels"])

    found = await provider.get(machine())
    again = await provider.create(machine(), DATA, "")

    assert found.provider_id == again.provider_id == f"hcloud://{server['id']}"
    assert server["labels"] == before
    assert len(harness.service.cloud.servers) == 1
    own = machine()
    own.spec.provider_id = found.provider_id
    await _clean_up(provider, own)
    assert harness.service.cloud.servers == {}


@pytest.mark.row("kubermatic-machine-20")
async def test_made_up_provider_id_is_kept_and_the_server_is_found(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    made_by_go(harness, "uid-1")
    made_by_go(harness, "uid-2", "worker-2")
    own = machine()
    own.spec.provider_id = "kubermatic://hetzner/uid-1"

    found = await provider.get(own)
    assert (found.provider_id, found.name) == ("kubermatic://hetzner/uid-1", "worker-1")
    await _clean_up(provider, own)
    with pytest.raises(InstanceNotFound):
        await provider.get(own)
    assert [one["name"] for one in harness.service.cloud.servers.values()] == ["worker-2"]


@pytest.mark.row("kubermatic-hetzner-06")
async def test_server_with_another_uid_is_left_alone(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    server = made_by_go(harness, "uid-of-another")
    own = machine()

    with pytest.raises(InstanceNotFound):
        await provider.get(own)
    with pytest.raises(TerminalError) as raised:
        await provider.create(own, DATA, "")
    assert raised.value.reason == "CreateError"
    own.spec.provider_id = f"hcloud://{server['id']}"
    with pytest.raises(TerminalError, match="no labels or tags of a machine"):
        await provider.cleanup(own, DATA)
    assert list(harness.service.cloud.servers) == [server["id"]]
    assert await harness.beside_vms() == []


@pytest.mark.row("kubermatic-provider-08")
async def test_uid_is_migrated_and_user_labels_stay(
    provider: ToKubermatic, harness: HcloudHarness
) -> None:
    await provider.create(machine("uid-a"), DATA, "")
    go = made_by_go(harness, "uid-c", "worker-2")

    await provider.migrate_uid(machine("uid-a"), "uid-b")
    await provider.migrate_uid(machine("uid-c"), "uid-d")
    await provider.migrate_uid(machine("uid-none"), "uid-e")

    assert (await provider.get(machine("uid-b"))).name == "worker-1"
    with pytest.raises(InstanceNotFound):
        await provider.get(machine("uid-a"))
    assert go["labels"] == {"machine-uid": "uid-d", "team": "a"}
    await _clean_up(provider, machine("uid-b"))
    await _clean_up(provider, machine("uid-d", "worker-2"))
    assert harness.service.cloud.servers == {}
    assert await harness.beside_vms() == []


@pytest.mark.row("kubermatic-provider-09")
def test_metrics_labels_need_no_secret(driver: kubermatic.KubermaticMachines) -> None:
    wrapped = KubermaticDriver(driver, {})

    assert wrapped.machine_metrics_labels(config()) == {"size": "cx23", "location": "fsn1"}
    assert wrapped.machine_metrics_labels({}) == {"size": ""}


# --- take-over ------------------------------------------------------------------------------------

SYSTEM = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/kube-system"
FLAGS = (
    "--cloud-provider=hcloud",
    "--controllers=kubermaticmachine,kubermaticmachineset,kubermaticmachinedeployment",
)


def objects_of_go(harness: HcloudHarness) -> MemoryServer:
    """A deployment with one machine and its node and server, as the Go program leaves them."""
    server = MemoryServer()
    for one in crds.DEFINITIONS:
        server.put(DEFINITIONS, dict(one.to_manifest()))
    token = base64.b64encode(harness.service.token.encode()).decode()
    secret = {"metadata": {"name": "hetzner"}, "data": {"token": token}}
    server.put("/api/v1/namespaces/kube-system/secrets", secret)
    labels, marked = {"app": "web"}, {"app": "web", names.LABEL_TEMPLATE_HASH: "1"}
    spec = {"providerSpec": {"value": config()}, "versions": {"kubelet": "1.35.1"}}
    kept = {"finalizers": [names.FINALIZER_FOREGROUND]}

    def group(kind: str, name: str, of: dict[str, str], **metadata: Any) -> dict[str, Any]:
        whole = {
            "replicas": 1,
            "selector": {"matchLabels": of},
            "template": {"metadata": {"labels": of}, "spec": spec},
        }
        path = f"{SYSTEM}/{kind.lower()}s"
        made = server.put(path, {"metadata": {"name": name, **kept, **metadata}, "spec": whole})
        return {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": kind,
            "name": name,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }

    web = group("MachineDeployment", "web", labels)
    notes = {names.ANNOTATION_REVISION: "1"}
    owner = group(
        "MachineSet", "web-1", marked, ownerReferences=[web], annotations=notes, labels=marked
    )
    metadata = {
        "name": "web-1-a",
        "labels": marked,
        "ownerReferences": [owner],
        "finalizers": [names.FINALIZER_MACHINE, names.FINALIZER_NODE],
    }
    node = {"kind": "Node", "name": "web-1-a"}
    made = server.put(
        f"{SYSTEM}/machines",
        {"metadata": metadata, "spec": {**spec, "metadata": {"name": "web-1-a"}}}
        | {"status": {"nodeRef": node}},
    )
    uid = made["metadata"]["uid"]
    number = made_by_go(harness, uid, "web-1-a")["id"]
    labels = {names.LABEL_OWNED_BY: uid}
    notes = {names.ANNOTATION_NODE_MACHINE: "kube-system/web-1-a"}
    body = {"metadata": {"name": "web-1-a", "labels": labels, "annotations": notes}}
    server.put(NODES_PATH, {**body, "spec": {"providerID": f"hcloud://{number}"}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    server.patch(f"{NODES_PATH}/web-1-a/status", {"status": ready})
    return server


@pytest.mark.row("kubermatic-command-02", "kubermatic-takeover-01")
async def test_plan_after_the_go_program_has_no_cloud_change(harness: HcloudHarness) -> None:
    """There are no user data, and the labels of the server are those of the Go program only."""
    server, before = objects_of_go(harness), harness.service.writes

    async def find() -> Forecast:
        async with harness.open() as opened:
            return await forecast(options.parse(FLAGS), server.client(), opened)

    found = await run_in_forecast_thread(find)

    print(*changes.lines(found), changes.summary(found), sep="\n")
    assert [one for one in found.changes if one.what == VM] == []
    assert found.failures == []
    machine = {one.what: one.new for one in found.changes if one.subject.name == "web-1-a"}
    assert machine["spec.providerID"].startswith("hcloud://")  # type: ignore[union-attr]
    assert machine["status.phase"] == "Running"
    assert harness.service.writes == before
