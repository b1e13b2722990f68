"""Services before real services: each annotation, and what a deletion leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ccm import cloud
from ccm.testing import probes
from ccm.testing.contract_balancers import deleted, ensured
from providers import openstack
from tests.openstack.balancing import OTHER, annotated, service
from tests.openstack.lab.harness import LabHarness
from tests.openstack.test_balancers import CHANGES, PORTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("openstack-lab")]

PLACES = {"listener": "listeners", "pool": "pools", "monitor": "healthmonitors"}
NO_STORE = "default_tls_container_ref"
"""Needs Barbican, which the lab lacks."""


async def left_over(harness: LabHarness) -> Sequence[str]:
    """What load balancers leave in the project."""
    lab = harness.lab
    ports = [one for one in await lab.own("ports") if "octavia" in one["name"]]
    groups = [one for one in await lab.own("security-groups") if one["name"] != "default"]
    found = [*await lab.balancers(), *await lab.own("floatingips"), *groups, *ports]
    return [f"{one['id']} {one.get('name')}" for one in found]


async def only(harness: LabHarness, kind: str = "loadbalancers") -> dict[str, Any]:
    (found,) = await harness.lab.parts(kind)
    return found


def is_stored(stored: Any, value: Any) -> bool:
    """Whether a field has the value; an object may have more fields."""
    if isinstance(value, dict):
        return bool(stored.items() >= value.items())
    return bool(stored == value)


async def test_each_change_is_stored_applied_once_and_undone(harness: LabHarness) -> None:
    nodes = await probes.nodes(harness.project, harness, 2)
    await ensured(harness.balancer, service(), nodes)
    number = (await only(harness))["id"]

    faults = []
    for changed, place, field, value in CHANGES:
        if any(NO_STORE.replace("_", "-") in name for name in changed.annotations):
            continue
        await ensured(harness.balancer, changed, nodes)
        stored = (await only(harness, PLACES[place]))[field]
        if not is_stored(stored, value):
            faults.append(f"{field}: {stored}, not {value}")
        before = harness.service.writes
        await ensured(harness.balancer, changed, nodes)
        if harness.service.writes > before:
            faults.append(f"{field}: repeated: {harness.service.log[-6:]}")
        await ensured(harness.balancer, service(), nodes)
    assert faults == []
    assert (await only(harness))["id"] == number

    await deleted(harness.balancer, service())

    assert await left_over(harness) == []


async def test_timeouts_and_health_checks_are_those_of_the_annotations(
    harness: LabHarness,
) -> None:
    nodes = await probes.nodes(harness.project, harness, 1)
    timeouts = {
        "timeout_client_data": 41000,
        "timeout_member_connect": 4200,
        "timeout_member_data": 43000,
        "timeout_tcp_inspect": 44,
    }
    checks = {"delay": 9, "timeout": 4, "max_retries": 5, "max_retries_down": 6}
    given = {
        **timeouts,
        **{f"health_monitor_{key}": value for key, value in checks.items()},
        "enable_health_monitor": "true",
    }
    for protocol, stored in (("true", "PROXY"), ("v1", "PROXY"), ("v2", "PROXYV2")):
        texts = {key: str(value) for key, value in given.items()}
        asked = service(**texts, proxy_protocol=protocol)
        await ensured(harness.balancer, asked, nodes)
        assert is_stored(await only(harness, "listeners"), timeouts)
        assert is_stored(await only(harness, "healthmonitors"), checks)
        assert (await only(harness, "pools"))["protocol"] == stored
    await deleted(harness.balancer, asked)

    assert await left_over(harness) == []


async def test_members_are_the_nodes_of_the_selector_and_addresses_those_of_the_family(
    harness: LabHarness,
) -> None:
    nodes = await probes.nodes(harness.project, harness, 2)
    meta = msgspec.structs.replace(nodes[0].metadata, labels={"tier": "edge"})
    labelled = [msgspec.structs.replace(nodes[0], metadata=meta), nodes[1]]
    of_ipv6 = {"internal": "true", "subnet_id": harness.state.subnets[1]}
    families: dict[str, Any] = {"ip_families": ["IPv6"]}
    for asked in (
        service(node_selector="tier=edge"),
        service(node_selector="tier=edge", **of_ipv6, spec=families),
    ):
        await ensured(harness.balancer, asked, labelled)
        pool = (await only(harness, "pools"))["id"]
        (member,) = await harness.lab.parts(f"pools/{pool}/members")
        is_ipv6 = asked.spec.ip_families == ["IPv6"]
        assert member["name"] == nodes[0].name
        vip = (await only(harness))["vip_address"]
        assert {":" in member["address"], ":" in vip} == {is_ipv6}
        await deleted(harness.balancer, asked)

    assert await left_over(harness) == []


async def test_a_class_selects_the_networks(harness: LabHarness) -> None:
    state = harness.state
    (external, *_) = await harness.lab.listed(
        "network", "/v2.0/subnets", "subnets", network_id=state.public["id"]
    )
    harness.extra["LoadBalancer"] = {"floating-network-id": harness.state.network["id"]}
    harness.extra['LoadBalancerClass "edge"'] = {
        "floating-network-id": state.public["id"],
        "floating-subnet-id": external["id"],
        "subnet-id": state.subnets[0],
        "member-subnet-id": state.subnets[0],
    }
    harness.extra['LoadBalancerClass "inner"'] = {"network-id": state.network["id"]}
    async with openstack.open_cloud(harness.context()) as project:
        balancer: Any = project.load_balancer
        edge = service(**{"class": "edge"})
        await ensured(balancer, edge, [])
        (ip,) = await harness.lab.own("floatingips")
        assert ip["floating_network_id"] == state.public["id"]
        assert (await only(harness))["vip_subnet_id"] == state.subnets[0]
        await deleted(balancer, edge)
        inner = service(**{"class": "inner"}, internal="true")
        await ensured(balancer, inner, [])
        assert (await only(harness))["vip_network_id"] == state.network["id"]
        await deleted(balancer, inner)
        with pytest.raises(cloud.InvalidArgument, match="known classes: edge, inner"):
            await ensured(balancer, service(**{"class": "none"}), [])

    assert await left_over(harness) == []


@pytest.mark.parametrize(
    ("kind", "key", "field", "word"),
    [
        ("flavors", "flavors", "flavor_id", "id"),
        ("availabilityzones", "availability_zones", "availability_zone", "name"),
    ],
)
async def test_flavor_and_availability_zone_are_those_of_annotation_and_file(
    harness: LabHarness, kind: str, key: str, field: str, word: str
) -> None:
    """Only administrators create them, with their profiles: those of the lab are in its seed."""
    offered = await harness.lab.listed("load-balancer", f"/v2/lbaas/{kind}", key)
    values = [one[word] for one in offered if one["enabled"]]
    if not values:
        pytest.skip(f"Octavia has no {kind}; an administrator creates them with their profiles")
    value = values[-1]
    harness.extra["LoadBalancer"] = {field.replace("_", "-"): value}
    async with openstack.open_cloud(harness.context()) as project:
        of_file: Any = project.load_balancer
        for balancer, asked in (
            (harness.balancer, service(internal="true", **{field: value})),
            (of_file, service(internal="true")),
        ):
            await ensured(balancer, asked, [])
            assert (await only(harness))[field] == value
            await deleted(balancer, asked)
        with pytest.raises(cloud.InvalidArgument, match=r"Invalid (flavor_id|availability zone)"):
            await ensured(harness.balancer, service(internal="true", **{field: OTHER}), [])

    assert await left_over(harness) == []


async def test_networks_and_floating_ips_are_those_of_the_annotations(harness: LabHarness) -> None:
    state = harness.state
    nodes = await probes.nodes(harness.project, harness, 1)
    (external, *_) = await harness.lab.listed(
        "network", "/v2.0/subnets", "subnets", network_id=state.public["id"]
    )
    port = {"port": {"network_id": state.network["id"], "name": "vip"}}
    port["port"]["fixed_ips"] = [{"subnet_id": state.subnets[0]}]
    vip = (await harness.lab.call("network", "POST", "/v2.0/ports", port))["port"]
    cases: list[tuple[dict[str, str], bool]] = [
        ({"floating_network_id": state.public["id"]}, True),
        ({"floating_subnet_id": external["id"]}, True),
        ({"floating_subnet": external["name"]}, True),
        *(({"floating_subnet_tags": tag}, True) for tag in external["tags"]),
        ({"internal": "true"}, False),
        ({"internal": "true", "network_id": state.network["id"]}, False),
        ({"internal": "true", "subnet_id": state.subnets[0]}, False),
        ({"internal": "true", "member_subnet_id": state.subnets[0]}, False),
        ({"internal": "true", "port_id": vip["id"]}, False),
        ({"hostname": "web.example.com"}, True),
    ]
    for given, is_public in cases:
        asked = service(**given)
        status = await ensured(harness.balancer, asked, nodes)
        held = await only(harness)
        ips = await harness.lab.own("floatingips")
        assert [one["port_id"] for one in ips] == [held["vip_port_id"]] * is_public, given
        address = ips[0]["floating_ip_address"] if ips else held["vip_address"]
        (entry,) = status.ingress
        assert (entry.hostname or entry.ip) == given.get("hostname", address)
        if "port_id" in given:
            assert held["vip_port_id"] == vip["id"]
        await deleted(harness.balancer, asked)
        assert [one for one in await left_over(harness) if vip["id"] not in one] == []


async def test_a_floating_ip_is_kept_and_used_again(harness: LabHarness) -> None:
    kept = service(keep_floatingip="true")
    status = await ensured(harness.balancer, kept, [])
    await deleted(harness.balancer, kept)
    (ip,) = await harness.lab.own("floatingips")
    assert (ip["port_id"], status.ingress[0].ip) == (None, ip["floating_ip_address"])

    again = service(spec={"load_balancer_ip": ip["floating_ip_address"]})
    assert await ensured(harness.balancer, again, []) == status
    other = service("other", uid=OTHER, spec={"load_balancer_ip": ip["floating_ip_address"]})
    with pytest.raises(cloud.FailedPrecondition, match="in use by port"):
        await ensured(harness.balancer, other, [])
    await deleted(harness.balancer, other)
    await deleted(harness.balancer, again)

    assert await left_over(harness) == []


async def test_two_services_share_a_load_balancer(harness: LabHarness) -> None:
    nodes = await probes.nodes(harness.project, harness, 1)
    first = service()
    await ensured(harness.balancer, first, nodes)
    number = (await only(harness))["id"]
    second = service("dns", uid=OTHER, load_balancer_id=number, spec={"ports": PORTS["ports"][1:]})
    await ensured(harness.balancer, second, nodes)

    assert len((await only(harness))["tags"]) == 2
    assert len(await harness.lab.parts("listeners")) == 2
    clash = service("clash", uid=OTHER, load_balancer_id=number)
    with pytest.raises(cloud.FailedPrecondition):
        await ensured(harness.balancer, clash, nodes)
    await deleted(harness.balancer, annotated(first, load_balancer_id=number))
    assert [one["protocol_port"] for one in await harness.lab.parts("listeners")] == [443]
    await deleted(harness.balancer, second)

    assert await left_over(harness) == []


async def test_security_groups_open_the_node_ports_and_go(harness: LabHarness) -> None:
    nodes = await probes.nodes(harness.project, harness, 2)
    harness.extra["LoadBalancer"] = {"manage-security-groups": "true"}
    asked = service(spec=PORTS)
    async with openstack.open_cloud(harness.context()) as project:
        balancer: Any = project.load_balancer
        await ensured(balancer, asked, nodes)
        groups = [g for g in await harness.lab.own("security-groups") if g["name"] != "default"]
        (group,) = groups
        rules = [one for one in group["security_group_rules"] if one["direction"] == "ingress"]
        assert sorted(one["port_range_min"] for one in rules) == [30080, 30443]
        holders = await harness.lab.listed(
            "network", "/v2.0/ports", "ports", security_groups=group["id"]
        )
        assert len(holders) == 2
        before = harness.service.writes
        await ensured(balancer, asked, nodes)
        assert harness.service.writes == before
        await ensured(balancer, asked, nodes[:1])
        await deleted(balancer, asked)

    assert await left_over(harness) == []


async def test_parts_one_after_the_other(harness: LabHarness) -> None:
    """Serial creation, and a deletion without cascade."""
    nodes = await probes.nodes(harness.project, harness, 2)
    harness.extra["LoadBalancer"] = {
        "provider-requires-serial-api-calls": "true",
        "cascade-delete": "false",
    }
    asked = service(spec=PORTS, enable_health_monitor="true")
    async with openstack.open_cloud(harness.context()) as project:
        balancer: Any = project.load_balancer
        await ensured(balancer, asked, nodes)
        before = harness.service.writes
        await ensured(harness.balancer, asked, nodes)
        assert harness.service.writes == before, harness.service.log[-6:]
        await deleted(balancer, asked)

    assert await left_over(harness) == []
