"""Servers for machines beyond the contract: orders, ports, failures, regions and owners."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.cloud.journal import PART_RECORDER
from ccm.cloud.machines import Phase, partial_info
from ccm.testing import machine_probes
from ccm.testing.fake_api import Exchange, Fault
from ccm.testing.machine_probes import Machines
from providers.openstack import machines
from providers.openstack.machines import MARKS
from providers.openstack.testing import compute, floating, network
from providers.openstack.testing.state import REGION
from tests.openstack.harness import FLAVOR, OpenStackHarness

SERVER = "70bb02f3-c11b-4321-bd78-8f8f4460f1b3"


def of(harness: OpenStackHarness, project: cloud.Cloud | None = None, /, **spec: Any) -> Machines:
    """Machines of a class without ports of ours; a field that is None is left out."""
    found = machine_probes.machines_of(project or harness.project, harness)
    given = {**harness.machine_spec(), "podNetworkCIDRs": None, **spec}
    found.spec = {key: value for key, value in given.items() if value is not None}
    return found


def orders(seen: list[Exchange], operation: str = "POST /compute/servers") -> list[Any]:
    """The bodies of the requests of an operation."""
    return [msgspec.json.decode(one.request) for one in seen if one.operation == operation]


def calls(harness: OpenStackHarness) -> dict[str, int]:
    """The calls so far, without requests for tokens; starts to count anew."""
    found = {name: count for name, count in harness.service.calls.items() if "token" not in name}
    harness.service.calls.clear()
    return found


# --- orders -------------------------------------------------------------------------------------


async def test_a_minimal_spec_orders_a_server_with_marks_and_user_data(
    harness: OpenStackHarness, seen: list[Exchange]
) -> None:
    group = of(harness)
    who = group.identity()

    made = await group.create_once(who)

    (held,) = harness.service.cloud.servers.values()
    assert made.provider_id == f"openstack:///{held['id']}"
    assert (made.node_name, made.last_known_state) == (who.name, f"region={REGION}")
    assert made.phase is Phase.CREATING
    assert orders(seen) == [
        {
            "server": {
                "name": who.name,
                "flavorRef": harness.flavor["id"],
                "imageRef": harness.image["id"],
                "networks": [{"uuid": harness.network["id"]}],
                "user_data": base64.b64encode(machine_probes.USER_DATA).decode(),
                "tags": [machines.pool_tag(who.pool)],
                "metadata": {
                    "kube-ccm.cluster": who.cluster,
                    "kube-ccm.namespace": who.namespace,
                    "kube-ccm.pool": who.pool,
                    "kube-ccm.name": who.name,
                    "kube-ccm.uid": who.uid,
                },
            }
        }
    ]


OPTIONS: list[tuple[dict[str, Any], str, Any]] = [
    ({"availabilityZone": "az2"}, "availability_zone", "az2"),
    ({"keyName": "ops"}, "key_name", "ops"),
    ({"useConfigDrive": True}, "config_drive", True),
    ({"securityGroups": ["nodes"]}, "security_groups", [{"name": "nodes"}]),
    ({"imageID": None, "imageName": "ubuntu-24.04"}, "imageRef", "{image}"),
    ({"networkID": None, "networks": [{"name": "nodes"}]}, "networks", [{"uuid": "{network}"}]),
    ({"networkID": None, "networks": [{"portID": "{port}"}]}, "networks", [{"port": "{port}"}]),
    (
        {"rootDiskSize": 40},
        "block_device_mapping_v2",
        [
            {
                "boot_index": 0,
                "uuid": "{image}",
                "source_type": "image",
                "destination_type": "volume",
                "volume_size": 40,
                "delete_on_termination": True,
            }
        ],
    ),
]


def filled(harness: OpenStackHarness, value: Any) -> Any:
    """The value, in which IDs stand for words in braces."""
    text = msgspec.json.encode(value).decode()
    for word, thing in (
        ("image", harness.image),
        ("network", harness.network),
        ("port", next(iter(harness.service.cloud.ports.values()))),
    ):
        text = text.replace(f"{{{word}}}", thing["id"])
    return msgspec.json.decode(text)


@pytest.fixture
def furnished(harness: OpenStackHarness) -> OpenStackHarness:
    """A project with a key pair, a security group, a server group and a free port."""
    world = harness.service.cloud
    world.ports.clear()
    network.new_port(world, harness.network["id"])["name"] = "given"
    world.keypairs["ops"] = {"name": "ops"}
    floating.new_security_group(world, "nodes")
    world.new("server_groups", "apart", policies=["anti-affinity"], members=[])
    return harness


@pytest.mark.parametrize(("spec", "key", "value"), OPTIONS, ids=[str(one[0]) for one in OPTIONS])
@pytest.mark.row("openstack-machine-01")
async def test_each_spec_option_is_part_of_the_order(
    furnished: OpenStackHarness,
    seen: list[Exchange],
    spec: dict[str, Any],
    key: str,
    value: Any,
) -> None:
    group = of(furnished, **filled(furnished, spec))

    made = await group.create(who := group.identity())
    await group.initialize(who, made.provider_id)

    (order,) = orders(seen)
    assert order["server"][key] == filled(furnished, value)
    usual = {"name", "flavorRef", "imageRef", "networks", "user_data", "tags", "metadata"}
    if "rootDiskSize" in spec:
        usual -= {"imageRef"}
    assert order["server"].keys() == usual | {key}
    await group.delete(who, made.provider_id)
    assert len(await furnished.beside_vms()) == 1  # the port that was there before


async def test_tags_become_metadata_and_never_replace_the_marks(
    harness: OpenStackHarness, seen: list[Exchange]
) -> None:
    group = of(harness, tags={"kubernetes.io-role-node": "1"})
    await group.create(who := group.identity())

    (order,) = orders(seen)
    assert order["server"]["metadata"] == {
        "kubernetes.io-role-node": "1",
        **MARKS.to_labels(who),
    }


async def test_a_server_group_is_a_hint_for_the_scheduler(
    furnished: OpenStackHarness, seen: list[Exchange]
) -> None:
    (number,) = furnished.service.cloud.server_groups
    group = of(furnished, serverGroupID=number)

    await group.create(group.identity())

    assert [one["os:scheduler_hints"] for one in orders(seen)] == [{"group": number}]


async def test_a_type_of_the_boot_volume_needs_a_newer_nova(
    harness: OpenStackHarness, seen: list[Exchange]
) -> None:
    group = of(harness, rootDiskSize=40, rootDiskType="ssd")
    await group.create(group.identity())
    (order,) = orders(seen)
    assert order["server"]["block_device_mapping_v2"][0]["volume_type"] == "ssd"

    harness.service.settings.microversion = "2.60"
    with pytest.raises(cloud.FailedPrecondition, match=r"a type of the boot volume needs .*2\.67"):
        await group.create(group.identity())
    harness.service.settings.microversion = "2.42"
    group.spec = of(harness).spec
    with pytest.raises(cloud.FailedPrecondition, match=r"the creation of servers needs .*2\.52"):
        await group.create(group.identity())


async def test_a_boot_volume_goes_with_its_server(harness: OpenStackHarness) -> None:
    group = of(harness, rootDiskSize=40)
    await group.create(who := group.identity())
    assert len(harness.service.cloud.volumes) == 1

    await group.delete(who)

    assert await harness.beside_vms() == []


async def test_user_data_beyond_the_limit_of_nova_are_refused(harness: OpenStackHarness) -> None:
    group, most = of(harness), machines.MAX_USER_DATA
    for size, is_right in ((most, True), (most + 1, False)):
        req = group.request(group.identity(), user_data=b"x" * size)
        if is_right:
            await group.driver.create_machine(req)
        else:
            with pytest.raises(cloud.InvalidArgument, match=f"userData has {size} bytes"):
                await group.driver.create_machine(req)
    assert len(await harness.vms()) == 1


async def test_names_of_more_than_a_host_name_are_refused(harness: OpenStackHarness) -> None:
    group = of(harness)
    for name in ("n" * 64, "a_b", "-a"):
        with pytest.raises(cloud.InvalidArgument, match="not a host name"):
            await group.create(group.identity(name))
    assert harness.service.requests == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flavorName", "m1.none"),
        ("imageName", "none"),
        ("networks", [{"name": "none"}]),
        ("networks", [{"name": "nodes", "subnet": "none"}]),
    ],
)
async def test_a_name_that_does_not_exist_stops_the_creation(
    harness: OpenStackHarness, field: str, value: Any
) -> None:
    absent = {"imageName": "imageID", "networks": "networkID"}.get(field, "keyName")
    group = of(harness, **{absent: None, field: value})

    with pytest.raises(cloud.InvalidArgument, match=f"{field}: .*none' does not exist"):
        await group.create(group.identity())

    assert harness.service.writes == 0


async def test_a_name_of_several_resources_stops_the_creation(harness: OpenStackHarness) -> None:
    twin = network.new_network(harness.service.cloud, "nodes", ["10.9.0.0/16"])
    group = of(harness, networkID=None, networks=[{"name": "nodes"}])

    with pytest.raises(cloud.InvalidArgument, match=f"2 resources .*{twin['id']}; set an ID"):
        await group.create(group.identity())


# --- ports --------------------------------------------------------------------------------------


@pytest.mark.row("openstack-machine-02")
async def test_ports_that_nova_cannot_create_are_created_before_the_server(
    furnished: OpenStackHarness, seen: list[Exchange]
) -> None:
    world = furnished.service.cloud
    storage = network.new_network(world, "storage", ["10.8.0.0/16", "10.9.0.0/16"])
    (groups,) = world.security_groups
    networks = [
        {"id": furnished.network["id"], "podNetwork": True},
        {"name": "storage", "subnet": storage["subnets"][1]},
        {"id": furnished.public["id"]},
    ]
    cidrs = ["10.96.0.0/12", "fd00:96::/64"]
    group = of(
        furnished,
        networkID=None,
        networks=networks,
        podNetworkCIDRs=cidrs,
        securityGroups=["nodes"],
    )
    await group.create(who := group.identity())

    common = {"description": machines.describe_port(who), "security_groups": [groups]}
    first, second = orders(seen, "POST /network/v2.0/ports")
    assert first["port"] == {
        **common,
        "name": f"{who.name}-{furnished.network['id']}",
        "network_id": furnished.network["id"],
        "allowed_address_pairs": [{"ip_address": cidr} for cidr in cidrs],
    }
    assert second["port"] == {
        **common,
        "name": f"{who.name}-{storage['id']}",
        "network_id": storage["id"],
        "allowed_address_pairs": [],
        "fixed_ips": [{"subnet_id": storage["subnets"][1]}],
    }
    ports = {one["name"]: one["id"] for one in world.ports.values()}
    (order,) = orders(seen)
    assert order["server"]["networks"] == [
        {"port": ports[first["port"]["name"]]},
        {"port": ports[second["port"]["name"]]},
        {"uuid": furnished.public["id"]},
    ]
    await group.delete(who)
    assert [one["name"] for one in world.ports.values()] == ["given"]


async def test_a_single_network_with_a_subnet_gets_a_port(
    harness: OpenStackHarness, seen: list[Exchange]
) -> None:
    group = of(harness, subnetID=harness.network["subnets"][0])

    await group.create(group.identity())

    (order,) = orders(seen, "POST /network/v2.0/ports")
    assert order["port"]["fixed_ips"] == [{"subnet_id": harness.network["subnets"][0]}]
    assert "security_groups" not in order["port"]  # Neutron sets the default group


async def test_a_subnet_is_one_of_its_network(
    harness: OpenStackHarness, seen: list[Exchange]
) -> None:
    """Names of subnets are often the same in several networks."""
    for one in harness.service.cloud.subnets.values():
        one["name"] = f"v{one['ip_version']}"
    networks = [{"name": "nodes", "subnet": "v4"}]
    group = of(harness, networkID=None, networks=networks)
    driver: Any = group.driver
    req = group.request(group.identity())
    assert await driver.validate_spec(req.provider_spec, req.credentials, live=True) == []

    await group.create(group.identity())

    (order,) = orders(seen, "POST /network/v2.0/ports")
    assert order["port"]["fixed_ips"] == [{"subnet_id": harness.network["subnets"][0]}]


@pytest.mark.row("openstack-machine-02")
async def test_a_port_of_a_failed_creation_is_used_again(harness: OpenStackHarness) -> None:
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    who = group.identity()
    await harness.fail(Fault(code="unavailable", operation="POST /compute/servers", count=1))
    with pytest.raises(cloud.Unavailable) as caught:
        await group.create_once(who)
    assert partial_info(caught.value).last_known_state == f"region={REGION}"
    before = await harness.beside_vms()

    await group.create(who)

    assert await harness.beside_vms() == before
    assert len(before) == 1


@pytest.mark.parametrize(
    "change",
    [{"podNetworkCIDRs": ["10.0.0.0/8"]}, {"subnetID": "{subnet}"}, {"securityGroups": ["nodes"]}],
    ids=["cidrs", "subnet", "groups"],
)
async def test_a_port_is_replaced_if_the_class_was_changed(
    harness: OpenStackHarness, change: dict[str, Any]
) -> None:
    floating.new_security_group(harness.service.cloud, "nodes")
    subnet = network.new_network(harness.service.cloud, "more", ["10.9.0.0/16"])["subnets"][0]
    harness.service.cloud.subnets[subnet]["network_id"] = harness.network["id"]
    harness.network["subnets"].append(subnet)
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"], subnetID=harness.network["subnets"][0])
    who = group.identity()
    await harness.fail(Fault(code="unavailable", operation="POST /compute/servers", count=1))
    with pytest.raises(cloud.Unavailable):
        await group.create_once(who)
    before = await harness.beside_vms()
    changed = {key: subnet if "subnet" in key else value for key, value in change.items()}
    group.spec = {**(group.spec or {}), **changed}

    await group.create(who)

    after = await harness.beside_vms()
    assert (len(after), before == after) == (1, False)


async def test_calls_of_a_machine(harness: OpenStackHarness) -> None:
    """Creation, boot, status and deletion: as few calls as the guide says."""
    plain, pods = of(harness), of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    await plain.list_vms()  # opens the client
    calls(harness)
    for group, ports in ((plain, 0), (pods, 1)):
        made = await group.create_once(who := group.identity())
        assert calls(harness) == {
            "GET /compute/servers/detail": 1,
            "GET /compute/flavors": 1,
            "POST /compute/servers": 1,
            **({"GET /network/v2.0/ports": 1, "POST /network/v2.0/ports": 1} if ports else {}),
        }
        req = group.request(who, made.provider_id)
        await group.driver.initialize_machine(req)
        await group.driver.get_machine_status(req)
        assert calls(harness) == {"GET /compute/servers/{id}": 2}
        with pytest.raises(cloud.RetryAfter):
            await group.driver.delete_machine(req)
        assert calls(harness) == {
            "GET /compute/servers/{id}": 1,
            "DELETE /compute/servers/{id}": 1,
            "GET /network/v2.0/ports": 1,
            **({"DELETE /network/v2.0/ports/{id}": 1} if ports else {}),
        }
        await group.driver.delete_machine(req)
        assert calls(harness) == {"GET /compute/servers/{id}": 1, "GET /network/v2.0/ports": 1}


@pytest.mark.parametrize(("write", "left"), [(1, 0), (2, 1)])
@pytest.mark.row("openstack-machine-02")
async def test_each_port_is_announced_to_the_journal(
    harness: OpenStackHarness, write: int, left: int
) -> None:
    """It is found by its name and the identity of its machine, and deleted."""
    noted: list[Any] = []

    @asynccontextmanager
    async def recorder(kind: str, name: str, ephemeral: bool) -> AsyncIterator[Any]:
        noted.append((kind, name, ephemeral))

        class Part:
            def created(self, number: str) -> None:
                noted.append(number)

        yield Part()

    driver: Any = harness.project.machines
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    who = group.identity()
    await harness.lose_answer(write)
    token = PART_RECORDER.set(recorder)
    try:
        with pytest.raises(cloud.Unavailable):
            await group.create_once(who)
    finally:
        PART_RECORDER.reset(token)
    await harness.heal()

    (port,) = [one for one in harness.service.cloud.ports.values() if one["description"]]
    name = f"{who.name}-{harness.network['id']}"
    assert noted == [("port", name, False), *[port["id"]] * left]
    req = cloud.PartRequest(
        kind="port",
        name=name,
        identity=who,
        provider_spec=group.spec or {},
        credentials=group.request(who).credentials,
    )
    another = replace(req, identity=replace(who, uid="another"))
    assert await driver.find_part(req) == port["id"]
    assert await driver.find_part(another) is None
    await driver.delete_part(another)
    assert await driver.find_part(req) == port["id"]
    await driver.delete_part(req)
    assert await driver.find_part(req) is None
    with pytest.raises(cloud.Unimplemented, match="volume"):
        await driver.find_part(replace(req, kind="volume"))


# --- boot and failure ---------------------------------------------------------------------------


async def test_waits_for_the_server_return_retry_after(harness: OpenStackHarness) -> None:
    group = of(harness)
    await harness.slow_vms(slow=True)
    made = await group.create_once(who := group.identity())
    req = group.request(who, made.provider_id)
    with pytest.raises(cloud.RetryAfter) as waiting:
        await group.driver.initialize_machine(req)
    assert waiting.value.seconds == machines.RETRY_S
    with pytest.raises(cloud.Uninitialized) as caught:
        await group.driver.get_machine_status(req)
    assert partial_info(caught.value).provider_id == made.provider_id
    assert [one.initialized for one in await group.list_vms()] == [False]
    harness.service.cloud.settle(all_of_them=True)
    info = await group.driver.initialize_machine(req)
    assert (info.phase, len(info.addresses)) == (Phase.RUNNING, 2)

    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    before = harness.service.writes
    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(req)
    with pytest.raises(cloud.RetryAfter):
        await group.create_once(who)
    assert harness.service.writes == before  # it is being deleted, and not asked for again
    assert (await group.driver.get_machine_status(req)).phase is Phase.DELETING
    harness.service.cloud.settle(all_of_them=True)
    await group.driver.delete_machine(req)
    with pytest.raises(cloud.NotFound):
        await group.driver.initialize_machine(req)


NO_ADDRESS = (
    "Build of instance 9e4cc7b8-9d0a-4f39-abed-1c715f0f2206 aborted: Failed to allocate the "
    "network(s) with error No fixed IP addresses available for network: 1, not rescheduling."
)
"""Fault of a server whose network is exhausted, as in OpenStack 2026.1."""


@pytest.mark.row("openstack-machine-03")
async def test_a_server_that_failed_to_start_is_deleted(harness: OpenStackHarness) -> None:
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    harness.service.settings.boot_s = 60.0

    async def fail(message: str) -> cloud.MachineInfo:
        made = await group.create(who)
        (held,) = harness.service.cloud.servers.values()
        held.update({"status": "ERROR", "fault": {"message": message}})
        return made

    who, no_host = group.identity(), "No valid host was found. There are not enough hosts"
    made = await fail(no_host)
    with pytest.raises(cloud.ResourceExhausted, match="No valid host") as caught:
        await group.driver.initialize_machine(group.request(who, made.provider_id))
    assert partial_info(caught.value).phase is Phase.FAILED
    assert await harness.vms() == []

    await fail(no_host)
    with pytest.raises(cloud.ResourceExhausted):  # found by a later creation: the same
        await group.create_once(who)
    assert await harness.vms() == []
    await fail(NO_ADDRESS)
    with pytest.raises(cloud.ResourceExhausted, match="No fixed IP"):
        await group.create_once(who)
    await fail("the hypervisor fell over")
    with pytest.raises(cloud.Aborted, match="fell over"):
        await group.create_once(who)
    await group.delete(who)
    assert await harness.beside_vms() == []


@pytest.mark.row("openstack-machine-03")
async def test_a_server_that_has_run_is_kept_in_status_error(harness: OpenStackHarness) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held.update(status="ERROR", fault={"message": "resize failed"})
    req = group.request(who, made.provider_id)

    with pytest.raises(cloud.FailedPrecondition, match="resize failed") as caught:
        await group.driver.initialize_machine(req)
    assert partial_info(caught.value).phase is not Phase.FAILED
    status = await group.driver.get_machine_status(req)

    assert (status.phase, status.message) == (Phase.FAILED, "resize failed")
    assert len(await harness.vms()) == 1


async def test_an_imported_server_in_status_error_is_not_deleted(
    harness: OpenStackHarness,
) -> None:
    group = of(harness)
    given = await machine_probes.create_foreign_vm(group, "given", "nobody")
    (held,) = harness.service.cloud.servers.values()
    held.update({"status": "ERROR", "OS-SRV-USG:launched_at": None})

    request = group.request(group.identity(), given.provider_id, is_imported=True)
    with pytest.raises(cloud.FailedPrecondition, match="the server may hold data"):
        await group.driver.initialize_machine(request)
    assert len(await harness.vms()) == 1


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ("ACTIVE", Phase.RUNNING),
        ("SHUTOFF", Phase.STOPPED),
        ("SHELVED_OFFLOADED", Phase.STOPPED),
        ("ERROR", Phase.FAILED),
        ("HARD_REBOOT", Phase.UNKNOWN),
        ("HIBERNATING", Phase.UNKNOWN),
    ],
)
async def test_phase_of_a_status(harness: OpenStackHarness, status: str, phase: Phase) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held["status"] = status

    assert (await group.status(who, made.provider_id)).phase is phase


async def test_a_server_that_only_administrators_can_restore_counts_as_gone(
    harness: OpenStackHarness,
) -> None:
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    made = await group.create(who := group.identity())
    (held,) = harness.service.cloud.servers.values()
    held["status"] = "SOFT_DELETED"
    before = harness.service.calls["DELETE /compute/servers/{id}"]

    with pytest.raises(cloud.NotFound):
        await group.status(who, made.provider_id)
    await group.driver.delete_machine(group.request(who, made.provider_id))

    assert harness.service.calls["DELETE /compute/servers/{id}"] == before


@pytest.mark.parametrize(
    ("status", "code", "text", "kind"),
    [
        (400, "badRequest", "bad", cloud.InvalidArgument),
        (403, "forbidden", "no", cloud.PermissionDenied),
        (403, "forbidden", "Quota exceeded for cores", cloud.ResourceExhausted),
        (409, "conflictingRequest", "busy", cloud.Aborted),
        (413, "overLimit", "too many", cloud.ResourceExhausted),
        (429, "tooManyRequests", "slowly", cloud.RetryAfter),
        (500, "computeFault", "oh", cloud.Unavailable),
        (503, "unavailable", "oh", cloud.Unavailable),
        (504, "computeFault", "late", cloud.DeadlineExceeded),
        (418, "teapot", "tea", cloud.Unknown),
    ],
)
async def test_http_statuses_map_to_cloud_errors(
    harness: OpenStackHarness, status: int, code: str, text: str, kind: type[Exception]
) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    there = group.request(who, made.provider_id)
    fault = Fault(status=status, code=code, message=text, operation="* /compute*")
    harness.service.script.add(fault)

    asks: Mapping[str, Any] = {
        "create": lambda: group.create_once(group.identity()),
        "initialize": lambda: group.driver.initialize_machine(there),
        "status": lambda: group.driver.get_machine_status(there),
        "delete": lambda: group.driver.delete_machine(there),
        "list": lambda: group.driver.list_machines(group.list_request()),
    }
    for name, ask in asks.items():
        with pytest.raises(kind) as caught:
            await ask()
        assert type(caught.value) is kind, name


# --- owners -------------------------------------------------------------------------------------


async def test_of_two_servers_of_one_machine_the_older_stays(harness: OpenStackHarness) -> None:
    group = of(harness)
    made = await group.create(who := group.identity())
    twin = compute.new_server(harness.service.cloud, who.name, harness.flavor)
    twin.update(metadata=MARKS.to_labels(who), created="2999-01-01T00:00:00Z")

    again = await group.create(who)

    assert again.provider_id == made.provider_id
    assert await group.vm_provider_ids() == [made.provider_id]


async def test_ports_of_another_server_of_the_machine_stay(harness: OpenStackHarness) -> None:
    """The machine was given a server by import, and created one before."""
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    made = await group.create(who := group.identity())
    given = await machine_probes.create_foreign_vm(group, "given", "nobody")

    await group.delete(who, given.provider_id, is_imported=True)

    assert await group.vm_provider_ids() == [made.provider_id]
    assert len(await harness.beside_vms()) == 1


@pytest.mark.parametrize("failures", [0, 1])
async def test_ports_of_a_restored_machine_go_with_its_server(
    harness: OpenStackHarness, failures: int
) -> None:
    """Although its server is gone before the last call, and with it the former UID."""
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    made = await group.create(group.identity())
    await group.initialize(who := next(iter(group.known.values())), made.provider_id)
    restored = replace(who, uid="uid-of-the-restored")
    if failures:
        fault = Fault(code="unavailable", operation="DELETE /network/v2.0/ports/{id}", count=1)
        await harness.fail(fault)
        with pytest.raises(cloud.Unavailable):
            await group.driver.delete_machine(group.request(restored, made.provider_id))
        harness.service.cloud.settle(all_of_them=True)

    with pytest.raises(cloud.RetryAfter):
        await group.driver.delete_machine(group.request(restored, made.provider_id))
    await group.driver.delete_machine(group.request(restored, made.provider_id))

    assert await harness.beside_vms() == []


async def test_a_listing_has_the_servers_of_its_pool_also_without_filter(
    harness: OpenStackHarness,
) -> None:
    """A Nova without microversions ignores the filter."""
    group = of(harness)
    made = await group.create(group.identity())
    await group.create(group.identity(pool="another"))
    for one in harness.service.cloud.servers.values():
        one["tags"] = [machines.pool_tag(machine_probes.POOL)]

    (listed,) = await group.list_vms()

    assert listed.info.provider_id == made.provider_id
    assert listed.created is not None


@pytest.mark.parametrize(
    "provider_id",
    [
        "openstack://",
        "openstack:///",
        "openstack:///server",
        f"openstack://{SERVER}",
        f"openstack:///{SERVER}/more",
        f"aws:///{SERVER}",
        "invalid-format",
    ],
)
async def test_a_malformed_provider_id_is_refused_without_a_call(
    harness: OpenStackHarness, provider_id: str
) -> None:
    await harness.refuses_machine_id(provider_id)


# --- regions and credentials --------------------------------------------------------------------


async def test_provider_ids_have_the_region_if_asked(harness: OpenStackHarness) -> None:
    harness.variables = {"OS_CCM_REGIONAL": "true"}
    async with harness.open_machines() as opened:
        group = of(harness, opened)
        made = await group.create(who := group.identity())
        (held,) = harness.service.cloud.servers.values()
        assert made.provider_id == f"openstack://{REGION}/{held['id']}"
        group.spec = {**(group.spec or {}), "region": "elsewhere"}
        group.states.clear()

        await group.delete(who, made.provider_id)

    assert await harness.vms() == []


@pytest.mark.row("openstack-machine-04")
async def test_servers_are_found_after_their_class_changes_its_region(
    harness: OpenStackHarness,
) -> None:
    group = of(harness, podNetworkCIDRs=["10.96.0.0/12"])
    one, other = group.identity(), group.identity()
    made = await group.create(one)
    await group.create(other)
    there = of(harness, region="elsewhere")
    there.states = group.states

    assert (await there.status(one, made.provider_id)).provider_id == made.provider_id
    await there.delete(one, made.provider_id)
    await there.delete(other)

    assert (await harness.vms(), await harness.beside_vms()) == ([], [])


@pytest.mark.parametrize("region", ["elsewhere", "not valid"])
async def test_a_machine_of_an_unknown_region_can_be_deleted(
    harness: OpenStackHarness, region: str
) -> None:
    group = of(harness, region=region)
    who = group.identity()
    with pytest.raises((cloud.FailedPrecondition, cloud.InvalidArgument), match="region"):
        await group.create_once(who)

    with pytest.raises(cloud.NotFound):
        await group.status(who)
    await group.delete(who)


async def test_a_recorded_region_that_disappeared_stops_the_deletion(
    harness: OpenStackHarness,
) -> None:
    """Its server may still exist."""
    group = of(harness)
    await group.create(who := group.identity())
    group.states[who.uid] = "region=closed"
    group.spec = {**(group.spec or {}), "region": "closed"}

    with pytest.raises(cloud.FailedPrecondition, match="closed"):
        await group.delete(who)


async def test_a_region_may_be_left_out(harness: OpenStackHarness) -> None:
    group = of(harness, region=None)
    made = await group.create(who := group.identity())
    assert made.last_known_state == "region="
    await group.delete(who, made.provider_id)
    assert await harness.vms() == []


async def test_a_listing_in_an_invalid_region_is_refused(harness: OpenStackHarness) -> None:
    """Without servers, it would look as if all of them were gone."""
    group = of(harness, region="not valid")
    with pytest.raises(cloud.InvalidArgument, match="region"):
        await group.list_vms()
    with pytest.raises(cloud.InvalidArgument, match="region"):
        await group.status(group.identity(), f"openstack:///{SERVER}")


async def test_a_machine_of_an_invalid_secret_that_was_never_ordered_is_deleted(
    harness: OpenStackHarness,
) -> None:
    group = of(harness)
    group.credentials = {"authURL": b"nonsense"}
    who = group.identity()
    with pytest.raises(cloud.InvalidArgument, match="authURL is 'nonsense'"):
        await group.create_once(who)

    await group.delete(who)
    group.states[who.uid] = f"region={REGION}"
    with pytest.raises(cloud.InvalidArgument, match="authURL"):
        await group.delete(who)

    assert harness.service.requests == 0


async def test_clients_are_shared_by_credentials(harness: OpenStackHarness) -> None:
    group = of(harness)
    driver: Any = group.driver
    for user_data in (b"one", b"two"):
        group.credentials = {**harness.machine_credentials(), "userData": user_data}
        await group.list_vms()

    assert (len(driver.spi), harness.service.identity.issued) == (1, 1)


async def test_application_credentials_are_enough(harness: OpenStackHarness) -> None:
    number, secret = harness.service.identity.app_credential
    group = of(harness)
    group.credentials = {
        "authURL": harness.machine_credentials()["authURL"],
        "applicationCredentialID": number.encode(),
        "applicationCredentialSecret": secret.encode(),
    }

    await group.create(group.identity())

    assert len(await harness.vms()) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["caCert"], "caCert: not a valid certificate"),
        (["clientCert", "clientKey"], "clientCert with clientKey: not a valid certificate"),
    ],
)
async def test_certificates_of_the_secret_are_checked(
    harness: OpenStackHarness, keys: list[str], message: str
) -> None:
    group = of(harness)
    group.credentials = {**harness.machine_credentials(), **dict.fromkeys(keys, b"nonsense")}
    with pytest.raises(cloud.InvalidArgument, match=message):
        await group.list_vms()


def test_files_of_a_secret_are_readable_while_they_are_needed() -> None:
    with machines._files({"caCert": b"authority", "clientKey": b"key", "other": b"x"}) as paths:
        contents = [(name, Path(path).read_bytes()) for name, path in [*paths.items()] * 2]
    assert contents == [("ca_file", b"authority"), ("key_file", b"key")] * 2


@pytest.mark.parametrize("region", ["a b", 10**5000, ["a"]], ids=["text", "number", "list"])
def test_a_wrong_region_of_a_class_is_one_error_whatever_its_type(region: object) -> None:
    with pytest.raises(cloud.InvalidArgument, match=r"region of the class is .*; use no"):
        machines._region_of_class({"region": region})


# --- validation ---------------------------------------------------------------------------------

GOOD = {"flavorName": FLAVOR, "imageID": SERVER, "networkID": SERVER}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"region": "a b"}, "region: 'a b' must not contain spaces or slashes"),
    ({"region": 1}, "region: Expected `str`, got `int`"),
    ({"flavorName": ""}, "flavorName: is missing; set the name of a flavor"),
    ({"imageID": "ubuntu"}, "imageID: 'ubuntu' must be a UUID"),
    ({"imageID": None}, "imageID: is missing; set the ID of an image, or imageName"),
    ({"networkID": "nodes"}, "networkID: 'nodes' must be a UUID"),
    ({"networkID": None}, "networks: needs exactly one of networks and networkID"),
    ({"networks": [{"name": "a"}]}, "networks: needs exactly one of networks and networkID"),
    (
        {"networkID": None, "networks": [{}]},
        "networks: [0] needs exactly one of id, name and portID",
    ),
    (
        {"networkID": None, "networks": [{"name": "a", "id": SERVER}]},
        "networks: [0] needs exactly one of id, name and portID",
    ),
    (
        {"networkID": None, "networks": [{"name": "a"}, {"id": "b"}]},
        "networks: [1].id 'b' must be a UUID",
    ),
    (
        {"networkID": None, "networks": [{"portID": "b"}]},
        "networks: [0].portID 'b' must be a UUID",
    ),
    (
        {"networkID": None, "networks": [{"portID": SERVER, "podNetwork": True}]},
        "networks: [0].portID excludes subnet and podNetwork; set them on the port itself",
    ),
    (
        {"networkID": None, "networks": [{"name": "a"}, {"name": "a"}]},
        "networks: a is listed twice; list each network once",
    ),
    ({"networks": "nodes"}, "networks: Expected `array`, got `str`"),
    ({"subnetID": "a"}, "subnetID: 'a' must be a UUID"),
    (
        {"networkID": None, "networks": [{"name": "a"}], "subnetID": SERVER},
        "subnetID: needs networkID; with networks, set their field subnet",
    ),
    (
        {"podNetworkCIDRs": ["10.0.0.1"]},
        "podNetworkCIDRs: [0] '10.0.0.1' must be a CIDR such as 10.0.0.0/24",
    ),
    ({"securityGroups": [""]}, "securityGroups: must not contain an empty string"),
    ({"serverGroupID": "apart"}, "serverGroupID: 'apart' must be a UUID"),
    ({"rootDiskSize": -1}, "rootDiskSize: -1 must be at least 0 (GB)"),
    ({"rootDiskSize": "big"}, "rootDiskSize: Expected `int`, got `str`"),
    (
        {"rootDiskType": "ssd"},
        "rootDiskType: needs rootDiskSize, the size of the boot volume in GB",
    ),
    ({"useConfigDrive": "yes"}, "useConfigDrive: Expected `bool`, got `str`"),
    ({"keyName": 7}, "keyName: Expected `str`, got `int`"),
    ({"tags": {"a/b": ""}}, "tags: 'a/b' must be at most 255 characters from"),
    ({"tags": {"kube-ccm.uid": "x"}}, "tags: 'kube-ccm.uid' must be"),
    ({"tags": {"a": "x" * 256}}, "tags: 'a' must be"),
    ({"tags": {"a": 1}}, "tags: Expected `str`, got `int` - at `$[...]`"),
    ({"flavour": "x"}, "flavour: unknown field; known are region"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[one[1] for one in WRONG])
@pytest.mark.row("openstack-machine-01")
def test_each_wrong_value_has_one_clear_message(change: dict[str, Any], message: str) -> None:
    (fault,) = machines._find_spec_problems({**GOOD, **change})
    assert str(fault).startswith(message)


def test_null_means_the_default() -> None:
    fields = dict.fromkeys(("region", "networks", "tags", "rootDiskSize", "useConfigDrive"))
    assert machines.parse_spec({**GOOD, **fields}) == machines.parse_spec(GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"authURL": b""}, "authURL is missing"),
        ({"authURL": b"keystone"}, "authURL is 'keystone'; it must look like https://host/v3"),
        ({"username": b""}, "username is missing; set it, or userID, or applicationCredentialID"),
        ({"password": b""}, "password is missing"),
        ({"domainName": b""}, "username needs a domain; set userDomainName, or userID"),
        ({"tenantName": b""}, "tenantID is missing; set it, or tenantName"),
        ({"applicationCredentialID": b"a"}, "applicationCredentialSecret is missing"),
        ({"clientCert": b"a"}, "clientCert and clientKey: only one is set"),
        ({"insecure": b"maybe"}, "insecure is 'maybe'; it must be true or false"),
        ({"endpointType": b"private"}, "endpointType is 'private'; it must be one of admin"),
    ],
)
def test_faults_of_a_secret_name_its_keys(change: dict[str, bytes], message: str) -> None:
    good = {
        "authURL": b"https://keystone/v3",
        "username": b"me",
        "password": b"hidden",
        "domainName": b"Default",
        "tenantName": b"k8s",
    }
    machines.parse_credentials(good, "")
    (fault,) = machines.problems(GOOD, {**good, **change})
    assert fault.field == "secretRef"
    assert message in fault.message
    assert "hidden" not in fault.message


@pytest.mark.row("openstack-machine-01")
async def test_live_validation_reports_missing_objects_and_bad_credentials(
    furnished: OpenStackHarness,
) -> None:
    driver: Any = furnished.project.machines
    world = furnished.service.cloud
    good = cloud.Credentials(furnished.machine_credentials())
    spec = {
        **furnished.machine_spec(),
        "networkID": None,
        "networks": [
            {"name": "nodes", "subnet": "nodes-v4"},
            {"portID": next(iter(world.ports))},
        ],
        "imageID": None,
        "imageName": "ubuntu-24.04",
        "keyName": "ops",
        "securityGroups": ["nodes", next(iter(world.security_groups))],
        "serverGroupID": next(iter(world.server_groups)),
    }
    assert await driver.validate_spec(spec, good, live=True) == []

    absent = {
        **spec,
        "flavorName": "m1.none",
        "imageName": "none",
        "networks": [
            {"name": "none"},
            {"name": "nodes", "subnet": "public-v4"},  # of another network
            {"portID": SERVER},
        ],
        "keyName": "none",
        "securityGroups": ["none"],
        "serverGroupID": SERVER,
    }
    found = await driver.validate_spec(absent, good, live=True)
    assert [one.field for one in found] == [
        *("flavorName", "imageName", "networks", "networks", "networks"),
        *("securityGroups", "serverGroupID", "keyName"),
    ]
    assert await driver.validate_spec(absent, good, live=False) == []
    elsewhere = await driver.validate_spec({**spec, "region": "elsewhere"}, good, live=True)
    assert [one.field for one in elsewhere] == ["region"]
    bad = cloud.Credentials({**good, "password": b"wrong"})
    refused = await driver.validate_spec(spec, bad, live=True)
    assert [one.field for one in refused] == ["secretRef"]
    assert driver.machine_metrics_labels({"flavorName": FLAVOR, "availabilityZone": 7}) == {
        "size": FLAVOR,
        "zone": "",
    }


async def test_volume_ids_include_only_volumes_of_the_csi_driver(
    harness: OpenStackHarness,
) -> None:
    specs: list[dict[str, Any]] = [
        {"csi": {"driver": machines.OpenStackMachines.csi_driver, "volumeHandle": "v-1"}},
        {"csi": {"driver": "csi.else", "volumeHandle": "v-2"}},
        {"hostPath": {}},
    ]
    found = await harness.project.machines.get_volume_ids(cloud.GetVolumeIDsRequest(pv_specs=specs))

    assert found == ["v-1"]
