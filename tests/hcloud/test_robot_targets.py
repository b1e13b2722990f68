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
        for _ in range(2):
            await ensured(balancer_of(project), private, [dedicated(number)])
            await updated(project, private, [dedicated(number)])
        event = ("Service", private.name, "InternalIPNotConfigured")
        assert (targets(harness), told.events) == ([], [event])
        await ensured(balancer_of(project), private, [bm])
        await ensured(balancer_of(project), private, [dedicated(number)])

    assert told.events == [event] * 2
    assert "internal IPv4 address: bm; set --node-ip" in told.messages[-1]


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
        assert targets(harness) == [server_id(made), "10.0.1.7"]
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


# --- changes of the kind of address -------------------------------------------------------------

PRIVATE = {"use_private_ip": "true", "disable_public_network": "true"}
PUBLIC = {"disable_public_network": "false"}
ADD = "POST /load_balancers/{id}/actions/add_target"


def both_kinds(robots: Robots, count: int) -> list[cloud.Node]:
    """Nodes of new dedicated servers, each with a public and an internal address."""
    nodes = []
    for index in range(count):
        number = robots.service.add_server(f"bm-{index}")
        public = robots.service.servers[number]["server_ip"]
        addresses = reports(ExternalIP=public, InternalIP=f"10.0.1.{index + 10}")
        nodes.append(dedicated(number, addresses, name=f"bm-{index}"))
    return nodes


def actions(harness: HcloudHarness) -> list[str]:
    """The actions on the load balancer since the last call, in order."""
    lines = [line.rpartition("/")[2] for line in harness.service.log if line.startswith("POST")]
    harness.service.log.clear()
    return lines


@pytest.mark.row("hcloud-balancer-11", "hcloud-balancer-13")
@pytest.mark.parametrize("count", [1, 3])
async def test_a_dedicated_server_gets_its_new_target_before_it_loses_the_old_one(
    harness: HcloudHarness, robots: Robots, count: int
) -> None:
    """Even a single one serves all the time; servers of the cloud follow one after the other."""
    vms, bms = await harness.nodes(2), both_kinds(robots, count)
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(), [*vms, *bms])
        public = targets(harness)
        for asked, wanted, switch in (
            (PRIVATE, [f"10.0.1.{index + 10}" for index in range(count)], "disable"),
            (PUBLIC, public[2:], "enable"),
        ):
            actions(harness)
            await ensured(balancer_of(project), service(**asked), [*vms, *bms])
            taken = actions(harness)
            assert taken.pop(-1 if switch == "disable" else 0) == f"{switch}_public_interface"
            moved = ["add_target", "remove_target"] * count
            assert taken == [*moved, *["remove_target", "add_target"] * 2]
            assert sorted(map(str, targets(harness))) == sorted(
                [*(str(server_id(vm)) for vm in vms), *wanted]
            )
            await harness.in_vain(service(**asked), [*vms, *bms], project=project)


@pytest.mark.row("hcloud-balancer-11", "hcloud-balancer-12", "hcloud-balancer-13")
async def test_a_full_load_balancer_changes_the_kind_of_address_one_target_at_a_time(
    harness: HcloudHarness, robots: Robots
) -> None:
    """It has no room for both targets of a server. A server without room for either stays out."""
    vms, bms = await harness.nodes(23), both_kinds(robots, 4)
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(), [*vms, *bms[:2]])
        actions(harness)
        await ensured(balancer_of(project), service(use_private_ip="true"), [*vms, *bms])

    assert actions(harness) == ["remove_target", "add_target"] * 25
    ips = [target for target in targets(harness) if isinstance(target, str)]
    assert (len(targets(harness)), ips) == (25, ["10.0.1.10", "10.0.1.11"])


@pytest.mark.row("hcloud-balancer-11", "hcloud-balancer-24")
@pytest.mark.parametrize(
    ("code", "kind"),
    [("ip_not_owned", cloud.Aborted), ("resource_limit_exceeded", cloud.ResourceExhausted)],
)
async def test_a_refused_new_address_keeps_all_old_targets(
    harness: HcloudHarness, robots: Robots, code: str, kind: type[cloud.CloudError]
) -> None:
    nodes = [*await harness.nodes(1), *both_kinds(robots, 2)]
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service(), nodes)
        before = targets(harness)
        harness.service.script.add(Fault(operation=ADD, code=code, status=422))
        with pytest.raises(kind, match=code):
            await ensured(balancer_of(project), service(**PRIVATE), nodes)
        assert targets(harness) == before
        assert only(harness)["public_net"]["enabled"]
        harness.service.heal()
        await ensured(balancer_of(project), service(**PRIVATE), nodes)

    assert set(targets(harness)) == {server_id(nodes[0]), "10.0.1.10", "10.0.1.11"}
    assert not only(harness)["public_net"]["enabled"]


@pytest.mark.row("hcloud-balancer-11")
@pytest.mark.parametrize("login", ["with credentials", "without credentials"])
async def test_the_public_interface_is_disabled_with_ip_targets_alone(
    harness: HcloudHarness, robots: Robots, login: str
) -> None:
    """Without credentials the targets are internal addresses whatever the annotation."""
    settings = {} if login == "with credentials" else NO_LOGIN
    asked = PRIVATE if login == "with credentials" else {"disable_public_network": "true"}
    bms = both_kinds(robots, 2)
    async with mixed(harness, robots, None, **settings) as project:
        await ensured(balancer_of(project), service(), bms)
        actions(harness)
        await ensured(balancer_of(project), service(**asked), bms)
        assert actions(harness)[-1] == "disable_public_interface"
        await harness.in_vain(service(**asked), bms, project=project)

    assert targets(harness) == ["10.0.1.10", "10.0.1.11"]
    assert not only(harness)["public_net"]["enabled"]


@pytest.mark.row("hcloud-balancer-12", "hcloud-balancer-13", "hcloud-balancer-20")
@pytest.mark.parametrize("vms", [2, 20])
async def test_the_order_of_mixed_targets_and_nodes_causes_no_write(
    harness: HcloudHarness, robots: Robots, vms: int
) -> None:
    """29 nodes fill a load balancer: it keeps the targets that it has, whatever their kind."""
    nodes = [*await harness.nodes(vms), *both_kinds(robots, 9)]
    order = [*nodes[vms:], *nodes[:vms]]
    async with mixed(harness, robots) as project:
        await ensured(balancer_of(project), service("uid-1"), order[:25])
    only(harness)["targets"].reverse()
    before = targets(harness)
    async with mixed(harness, robots) as project:
        balancer = balancer_of(project)
        (listed,) = await balancer.list_load_balancers(CLUSTER)
        for each in (nodes, nodes[::-1], order):
            assert listed.digest == balancer.load_balancer_digest(CLUSTER, service("uid-1"), each)
            await harness.in_vain(service("uid-1"), each, project=project)
            await updated(project, service("uid-1"), each)
        without = balancer.load_balancer_digest(CLUSTER, service("uid-1"), nodes[1:])
        assert listed.digest != without

    assert targets(harness) == before


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
        for _ in range(2):
            await ensured(balancer_of(project), service("uid-1"), nodes)
            await updated(project, service("uid-1"), nodes)

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
    refusal = Fault(operation=add, code="ip_not_owned", status=422, skip=1, count=1)
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
