"""Dedicated servers as IP targets of load balancers."""

from __future__ import annotations

from typing import Any

import pytest

from ccm import cloud
from ccm.testing.builders import node
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from tests.hcloud.balancing import UID, only, service, settled
from tests.hcloud.harness import HcloudHarness, Told
from tests.hcloud.robots import Robots, dedicated, mixed
from tests.support.vendor import balancer_of

IP = {"type": "ip", "ip": {"ip": "192.0.2.7"}}
NO_LOGIN = {"ROBOT_USER": "", "ROBOT_PASSWORD": ""}


def targets(harness: HcloudHarness) -> list[Any]:
    """IDs of servers, and IP addresses, in order."""
    return [
        one["ip"]["ip"] if one["type"] == "ip" else one["server"]["id"]
        for one in only(harness)["targets"]
    ]


def server_id(made: cloud.Node) -> int:
    return int(made.provider_id.removeprefix("hcloud://"))


def reports(**addresses: str) -> list[cloud.NodeAddress]:
    """`reports(InternalIP="10.0.1.7")`: addresses of a node, of different types."""
    return [cloud.address(kind, text) for kind, text in addresses.items()]


async def updated(project: cloud.Cloud, asked: cloud.Service, nodes: list[cloud.Node]) -> None:
    await balancer_of(project).update_load_balancer(CLUSTER, asked, nodes)


@pytest.mark.row("hcloud-balancer-13")
@pytest.mark.parametrize("form", ["hrobot://{}", "hcloud://bm-{}"])
async def test_a_dedicated_server_is_a_target_by_its_address(
    harness: HcloudHarness, robots: Robots, form: str
) -> None:
    (made,) = await harness.nodes(1)
    number = robots.service.add_server("bm")
    address = robots.service.servers[number]["server_ip"]
    bm = node("bm", provider_id=form.format(number), addresses=reports(InternalIP="10.0.1.7"))
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(), [made, bm])
        assert targets(harness) == [server_id(made), address]
        await harness.in_vain(service(), [made, bm], project=project)
        await updated(project, service(), [bm])
        assert targets(harness) == [address]
        await updated(project, service(), [made, bm])
        assert targets(harness) == [address, server_id(made)]
        await updated(project, service(), [made])
        assert targets(harness) == [server_id(made)]

    assert robots.service.calls == {"GET /server": 1}
    ips = [one for one in only(harness)["targets"] if "ip" in one]
    assert not any("use_private_ip" in one for one in ips)


@pytest.mark.row("hcloud-balancer-13")
async def test_a_private_target_is_the_internal_address(
    harness: HcloudHarness, robots: Robots
) -> None:
    told, number = Told(), robots.service.add_server("bm")
    bm = dedicated(number, reports(ExternalIP="198.51.100.9", InternalIP="10.0.1.7"))
    private = service(use_private_ip="true")
    async with mixed(harness, robots, told) as project:
        await ensured(balancer_of(project), service(), [bm])
        await ensured(balancer_of(project), private, [bm])
        assert targets(harness) == ["10.0.1.7"]
        await harness.in_vain(private, [bm], project=project)
        assert told.events == [("Service", private.name, "LoadBalancerTypeUnconfigured")]
        del told.events[:]
        await ensured(balancer_of(project), private, [dedicated(number)])

    assert targets(harness) == []
    assert told.events == [("Service", private.name, "InternalIPNotConfigured")]


@pytest.mark.row("hcloud-balancer-13")
async def test_without_credentials_targets_are_internal_addresses(
    harness: HcloudHarness, robots: Robots
) -> None:
    """Dead targets are removed."""
    (made,) = await harness.nodes(1)
    settled(harness, labels={UID: "uid-1"}, targets=[IP])
    bm = dedicated(7, reports(ExternalIP="198.51.100.9", InternalIP="10.0.1.7"))
    async with mixed(harness, robots, None, **NO_LOGIN) as project:
        await ensured(balancer_of(project), service("uid-1"), [made, bm])
        assert targets(harness) == ["10.0.1.7", server_id(made)]
        await updated(project, service("uid-1"), [made])
        assert targets(harness) == [server_id(made)]

    assert robots.service.calls.total() == 0


@pytest.mark.row("hcloud-balancer-13")
async def test_ip_targets_count_against_the_limit_and_stay(
    harness: HcloudHarness, robots: Robots
) -> None:
    told, nodes = Told(), await harness.nodes(24)
    numbers = [robots.service.add_server(f"bm-{index}") for index in range(3)]
    bms = [dedicated(number, name=f"bm-{index}") for index, number in enumerate(numbers)]
    settings = {"HCLOUD_LOAD_BALANCERS_TYPE": "lb11"}
    async with mixed(harness, robots, told, **settings) as project:
        await ensured(balancer_of(project), service(), [*nodes[:22], *bms])
        whole = targets(harness)
        assert (len(whole), told.events) == (25, [])
        await updated(project, service(), [*nodes, *bms])
        assert sorted(map(str, targets(harness))) == sorted(map(str, whole))
        assert told.events == [("Service", service().name, "MaxTargetsReached")]
        await ensured(balancer_of(project), service(), [*nodes, *bms])
        assert sorted(map(str, targets(harness))) == sorted(map(str, whole))
        await updated(project, service(), [*nodes, bms[0]])

    assert len(targets(harness)) == 25
    assert [server_id(one) for one in nodes] == sorted(set(targets(harness)) - {targets_ip(robots)})


def targets_ip(robots: Robots) -> str:
    """The address of the first dedicated server."""
    return str(next(iter(robots.service.servers.values()))["server_ip"])


@pytest.mark.row("hcloud-balancer-13")
async def test_the_node_selector_selects_dedicated_servers(
    harness: HcloudHarness, robots: Robots
) -> None:
    numbers = [robots.service.add_server(name) for name in ("a", "b")]
    nodes = [
        node(name, provider_id=f"hrobot://{number}", labels={"pool": name})
        for name, number in zip(("a", "b"), numbers, strict=True)
    ]
    asked = service(node_selector="pool=b")
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), asked, nodes)
        assert targets(harness) == [robots.service.servers[numbers[1]]["server_ip"]]
        await updated(project, asked, nodes)

    assert targets(harness) == [robots.service.servers[numbers[1]]["server_ip"]]


@pytest.mark.row("hcloud-balancer-13", "hcloud-balancer-23")
async def test_an_invalid_annotation_keeps_the_kind_of_address(
    harness: HcloudHarness, robots: Robots
) -> None:
    numbers = [robots.service.add_server(name) for name in ("a", "b")]
    one, other = (
        dedicated(number, reports(InternalIP=f"10.0.1.{index}"), name=name)
        for index, (name, number) in enumerate(zip(("a", "b"), numbers, strict=True), start=1)
    )
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(use_private_ip="true"), [one, other])
        for wrong in (service(use_private_ip="perhaps"), service(node_selector="a in (")):
            await updated(project, wrong, [one, other])
            assert targets(harness) == ["10.0.1.1", "10.0.1.2"]
        await updated(project, service(use_private_ip="perhaps"), [one])

    assert targets(harness) == ["10.0.1.1"]


@pytest.mark.row("hcloud-robot-10")
async def test_targets_stay_while_robot_is_silent(harness: HcloudHarness, robots: Robots) -> None:
    """The address of a node that was initialised before is known without Robot."""
    numbers = [robots.service.add_server(name) for name in ("a", "b")]
    first, second = (robots.service.servers[number]["server_ip"] for number in numbers)
    bare = [dedicated(number, name=str(number)) for number in numbers]
    known = dedicated(numbers[0], reports(ExternalIP=first))
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(), bare)
    robots.service.script.add(Fault(code="RATE_LIMIT_EXCEEDED"))
    async with mixed(harness, robots) as project:
        for nodes, kept in (([known, bare[1]], {first, second}), ([known], {first})):
            await updated(project, service(), nodes)
            assert set(targets(harness)) == kept
            await ensured(balancer_of(project), service(), nodes)
            assert set(targets(harness)) == kept

    assert robots.service.calls["GET /server"] == 2


@pytest.mark.row("hcloud-balancer-13")
async def test_a_dedicated_server_without_address_emits_an_event(
    harness: HcloudHarness, robots: Robots
) -> None:
    told, number = Told(), robots.service.add_server("other")
    robots.service.servers[number]["server_ip"] = None
    settled(harness, labels={UID: "uid-1"}, targets=[IP])
    nodes = [dedicated(number, name="other"), dedicated(7, name="unknown")]
    async with mixed(harness, robots, told) as project:
        await ensured(balancer_of(project), service("uid-1"), nodes)

    assert targets(harness) == []
    assert told.events == [("Node", one.name, "ServerNotFound") for one in nodes]


@pytest.mark.row("hcloud-balancer-24")
async def test_a_refused_ip_target_blocks_no_other(harness: HcloudHarness, robots: Robots) -> None:
    (made,) = await harness.nodes(1)
    number = robots.service.add_server("bm")
    address = robots.service.servers[number]["server_ip"]
    bm = dedicated(number, reports(ExternalIP=address))
    settled(harness, labels={UID: "uid-1"})
    add = "POST /load_balancers/{id}/actions/add_target"
    refusal = Fault(operation=add, code="ip_not_owned", status=422, count=1)
    harness.service.script.add(refusal)
    async with mixed(harness, robots) as project:
        with pytest.raises(cloud.Aborted, match=rf"node bm \(server {address}\): .*ip_not_owned"):
            await ensured(balancer_of(project), service("uid-1"), [made, bm])

    assert targets(harness) == [server_id(made)]


@pytest.mark.row("hcloud-balancer-13", "hcloud-balancer-20")
async def test_a_start_with_ip_targets_needs_no_ensure(
    harness: HcloudHarness, robots: Robots
) -> None:
    """No request to Robot either: the digest is compared with the addresses of the nodes."""
    (made,) = await harness.nodes(1)
    number = robots.service.add_server("bm")
    address = robots.service.servers[number]["server_ip"]
    nodes = [made, dedicated(number, reports(ExternalIP=address, InternalIP="10.0.1.7"))]
    for asked in (service("uid-1"), service("uid-2", use_private_ip="true")):
        async with mixed(harness, robots) as project:
            await ensured(balancer_of(project), asked, nodes)
        robots.service.calls.clear()
        async with mixed(harness, robots) as project:
            balancer = balancer_of(project)
            listed = await balancer.list_load_balancers(CLUSTER)
            name = balancer.get_load_balancer_name(CLUSTER, asked)
            wanted = balancer.load_balancer_digest(CLUSTER, asked, nodes)
            assert wanted in [one.digest for one in listed if one.name == name]
        assert robots.service.calls.total() == 0


@pytest.mark.row("hcloud-balancer-06")
async def test_a_released_load_balancer_loses_its_ip_targets(
    harness: HcloudHarness, robots: Robots
) -> None:
    number = robots.service.add_server("bm")
    settled(harness, name="mine")
    asked = service("uid-1", name="mine")
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), asked, [dedicated(number)])
        assert len(targets(harness)) == 1
        await deleted(balancer_of(project), asked)

    assert targets(harness) == []
