"""Nodes: metadata, the order of addresses, provider IDs, and the number of calls."""

from __future__ import annotations

from typing import Any

import pytest

from ccm import cloud
from ccm.testing.builders import node
from providers.openstack import config, instances, neutron, nova
from providers.openstack.testing import compute, network
from providers.openstack.testing.state import PROJECT, REGION
from tests.openstack.harness import OpenStackHarness, id_of, opened

SERVER = "2028e5d4-af4f-45e2-98df-502be37a4317"


# --- provider IDs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider_id", "region"),
    [
        (f"openstack:///{SERVER}", ""),
        (f"openstack:///{SERVER.upper()}", REGION),
        (f"openstack://{REGION}/{SERVER}", REGION),
        (f"/{SERVER}", REGION),
        (f"{REGION}/{SERVER}", REGION),
    ],
)
@pytest.mark.row("openstack-node-01")
def test_all_forms_of_provider_ids_are_read(provider_id: str, region: str) -> None:
    assert instances.parse_id(provider_id, region) == SERVER


@pytest.mark.parametrize(
    "provider_id",
    [
        f"openstack://{SERVER}",
        f"openstack:///{SERVER}/x",
        "openstack:///",
        "openstack:///node-1",
        f"openstack:///{SERVER[:-1]}",
        f"openstack:///{SERVER.replace('-', '')}",
        f"openstack://{REGION}/a/{SERVER}",
        f"openstack://RegionTwo/{SERVER}",
        f"aws:///{SERVER}",
        SERVER,
    ],
)
@pytest.mark.row("openstack-node-01")
async def test_other_provider_ids_are_refused_without_a_call(
    harness: OpenStackHarness, provider_id: str
) -> None:
    """Nova would answer "not found", and the node would be deleted."""
    for ask in (
        harness.project.instances.instance_exists,
        harness.project.instances.instance_metadata,
    ):
        with pytest.raises(cloud.InvalidArgument, match=provider_id):
            await ask(node("n", provider_id=provider_id))

    assert harness.service.calls.total() == 0


@pytest.mark.row("openstack-node-05")
async def test_a_name_of_several_servers_is_refused(harness: OpenStackHarness) -> None:
    for _ in range(2):
        compute.new_server(harness.service.cloud, "twin", harness.flavor, harness.network["id"])

    with pytest.raises(cloud.FailedPrecondition, match=r"several servers are named twin: .*rename"):
        await harness.project.instances.instance_exists(node("twin"))
    assert not await harness.project.instances.instance_exists(node("absent"))


@pytest.mark.row("openstack-node-01")
async def test_regional_provider_ids_are_written_on_request(harness: OpenStackHarness) -> None:
    made = await harness.create()
    harness.variables["OS_CCM_REGIONAL"] = "true"
    async with opened(harness) as project:
        assert project.instances is not None
        found = await project.instances.instance_metadata(node(made.name))
        assert found is not None
        assert found.provider_id == f"openstack://{REGION}/{id_of(made)}"
        again = await project.instances.instance_exists(
            node("other", provider_id=found.provider_id)
        )

    assert again


# --- metadata -------------------------------------------------------------------------------------


@pytest.mark.row("openstack-node-04")
async def test_zone_and_flavor_become_valid_labels(harness: OpenStackHarness) -> None:
    world = harness.service.cloud
    odd = compute.new_flavor(world, "m1 large (old)")
    made = compute.new_server(world, "n", odd, harness.network["id"], zone="_az 1_")

    found = await harness.project.instances.instance_metadata(node("n"))
    (listed,) = (await harness.project.inventory.list_instances()).instances

    assert (found.instance_type, found.zone) == (odd["id"], "az-1")
    assert listed.metadata == found
    del world.flavors[odd["id"]]
    world.flavors["other"] = {**odd, "name": "x"}
    made["flavor"] = "other"
    assert (await harness.project.instances.instance_metadata(node("n"))).instance_type == "x"


async def test_server_without_address_is_not_ready_while_it_is_built(
    harness: OpenStackHarness,
) -> None:
    made = await harness.create()
    world = harness.service.cloud
    world.servers[id_of(made)]["status"] = "BUILD"
    world.ports.clear()

    assert (await harness.project.inventory.list_instances()).instances == []
    with pytest.raises(cloud.Unavailable, match="being built"):
        await harness.project.instances.instance_metadata(node(made.name))
    assert await harness.project.instances.instance_exists(node(made.name))


@pytest.mark.parametrize(
    ("status", "power"),
    [
        ("ACTIVE", cloud.Power.RUNNING),
        ("SHUTOFF", cloud.Power.SHUTDOWN),
        ("REBOOT", cloud.Power.RUNNING),
        ("ERROR", cloud.Power.RUNNING),
        ("SOMETHING_NEW", cloud.Power.RUNNING),
    ],
)
@pytest.mark.row("openstack-node-03")
def test_only_shutoff_is_shut_down(status: str, power: cloud.Power) -> None:
    assert instances.power(nova.Server(id="1", name="n", status=status)) is power


def entries(*texts: str) -> tuple[nova.Address, ...]:
    return tuple(
        nova.Address(addr=text.lstrip("*"), kind="floating" if text[0] == "*" else "fixed")
        for text in texts
    )


def port(*ips: str, number: str = "1", status: str = "ACTIVE") -> neutron.Port:
    return neutron.Port(
        id=number, status=status, fixed_ips=tuple(neutron.FixedIp(ip) for ip in ips)
    )


DMZ, INSIDE = "198.51.100.7", "10.0.0.5"


@pytest.mark.parametrize(
    ("server", "ports", "settings", "expected"),
    [
        pytest.param(
            {"addresses": {"b": entries("10.2.0.1"), "a": entries("10.1.0.1", "*203.0.113.1")}},
            [],
            {},
            ["int 10.1.0.1", "ext 203.0.113.1", "int 10.2.0.1"],
            id="by the names of networks",
        ),
        pytest.param(
            {"addresses": {"a": entries("10.1.0.1"), "b": entries("10.2.0.1", "fd00::1")}},
            [port("10.2.0.1", "fd00::1", number="1"), port("10.1.0.1", number="2", status="DOWN")],
            {},
            ["int 10.2.0.1", "int fd00::1", "int 10.1.0.1"],
            id="active ports first",
        ),
        pytest.param(
            {
                "addresses": {"a": entries("10.1.0.1")},
                "access_ipv4": "203.0.113.9",
                "access_ipv6": "2001:db8::9",
                "metadata": {"hostname": "n.example.com"},
            },
            [port("10.1.0.1")],
            {},
            ["int 10.1.0.1", "ext 203.0.113.9", "ext 2001:db8::9", "name n.example.com"],
            id="access addresses and hostname",
        ),
        pytest.param(
            {"addresses": {"dmz": entries(DMZ), "nodes": entries(INSIDE)}},
            [port(DMZ), port(INSIDE, number="2")],
            {"public_network_name": ("dmz",)},
            [f"int {INSIDE}", f"ext {DMZ}"],
            id="a public network",
        ),
        pytest.param(
            {"addresses": {"dmz": entries(DMZ), "nodes": entries(INSIDE, "*203.0.113.1")}},
            [port(DMZ), port(INSIDE, number="2")],
            {"internal_network_name": ("nodes",)},
            [f"int {INSIDE}", "ext 203.0.113.1"],
            id="an internal network",
        ),
        pytest.param(
            {
                "addresses": {"a": entries("fd00::1", "10.1.0.1")},
                "access_ipv6": "2001:db8::9",
                "metadata": {"hostname": "a::b"},
            },
            [port("fd00::1", "10.1.0.1")],
            {"ipv6_support_disabled": True},
            ["int 10.1.0.1", "name a::b"],
            id="IPv4 only",
        ),
        pytest.param(
            {
                "addresses": {"a": entries("10.1.0.1", "10.2.0.1", "fd00::1", "*203.0.113.1")},
                "metadata": {"hostname": "n"},
            },
            [],
            {"address_sort_order": "fd00::/8, 10.2.0.0/16"},
            ["int fd00::1", "int 10.2.0.1", "name n", "int 10.1.0.1", "ext 203.0.113.1"],
            id="sorted by CIDR",
        ),
    ],
)
@pytest.mark.row("openstack-node-02")
def test_addresses_have_the_order_of_the_go_manager(
    server: dict[str, Any], ports: list[neutron.Port], settings: dict[str, Any], expected: list[str]
) -> None:
    kinds = {"InternalIP": "int", "ExternalIP": "ext", "Hostname": "name"}

    found = instances.addresses(
        nova.Server(id="1", name="n", **server), ports, (), config.Networking(**settings)
    )

    assert [f"{kinds[one.type]} {one.address}" for one in found] == expected


@pytest.mark.row("openstack-node-02")
async def test_addresses_of_ports_on_a_trunk_belong_to_the_server(
    harness: OpenStackHarness,
) -> None:
    made = await harness.create()
    world = harness.service.cloud
    other = network.new_network(world, "vlan7", ["10.7.0.0/24"])
    carried = network.new_port(world, other["id"])
    sub_ports = [{"port_id": carried["id"], "segmentation_id": 7}]
    harness.port(id_of(made))["trunk_details"] = {"trunk_id": "t", "sub_ports": sub_ports}

    found = await harness.project.instances.instance_metadata(node(made.name))
    listing = await harness.project.inventory.list_instances()

    assert [one.address for one in found.addresses] == [*harness.ips(id_of(made)), "10.7.0.10"]
    assert listing.instances[0].metadata == found
    assert listing.requests == 4


async def test_ports_of_other_projects_are_listed_too(harness: OpenStackHarness) -> None:
    made = await harness.create()
    await harness.create()
    foreign = harness.port(id_of(made))
    foreign["project_id"] = "another"

    listing = await harness.project.inventory.list_instances()

    assert listing.requests == 3
    found = {one.name: one.metadata for one in listing.instances}
    assert found[made.name] == await harness.project.instances.instance_metadata(node(made.name))
    assert foreign["project_id"] != PROJECT


# --- the number of calls --------------------------------------------------------------------------


@pytest.mark.row("openstack-call-01")
async def test_a_start_with_100_nodes_takes_three_calls(harness: OpenStackHarness) -> None:
    for _ in range(100):
        await harness.create()

    listing = await harness.project.inventory.list_instances()

    assert (len(listing.instances), listing.requests) == (100, 2)
    assert harness.service.calls.total() == 3, "with the token"


async def test_a_single_node_takes_two_calls(harness: OpenStackHarness) -> None:
    made = await harness.create()
    await harness.project.instances.instance_exists(node(made.name))
    before = harness.service.requests

    await harness.project.instances.instance_metadata(node(made.name))
    await harness.project.instances.instance_state(node("x", provider_id=made.provider_id))

    assert harness.service.requests - before == 3
