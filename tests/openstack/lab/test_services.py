"""Services before real services: each annotation, and what a deletion leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        ({"internal": "true"}, False),
        ({"internal": "true", "network_id": state.network["id"]}, False),
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
