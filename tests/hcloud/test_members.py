"""Members follow the nodes, whatever else is wrong; one bad node keeps out no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT, node
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import UDP, ensured
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import service_annotations as ann
from tests.hcloud.balancing import UID, balancer_of, only, service, settled
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness

TYPED = {
    ann.ALGORITHM: "best",
    ann.DISABLE_PUBLIC_NETWORK: "perhaps",
    ann.IPV6_DISABLED: "perhaps",
    ann.DISABLE_PRIVATE_INGRESS: "perhaps",
    ann.USE_PRIVATE_IP: "perhaps",
    ann.PRIVATE_IPV4: "::1",
    ann.PRIVATE_SUBNET: "10.0.0.0/x",
    ann.NODE_SELECTOR: "a in b",
    ann.PROTOCOL: "udp",
    ann.PROXYPROTOCOL: "perhaps",
    ann.COOKIE_LIFETIME: "long",
    ann.TIMEOUT_IDLE: "5s",
    ann.STICKY: "perhaps",
    ann.REDIRECT: "perhaps",
    ann.CERTIFICATE_TYPE: "own",
    ann.CHECK_PROTOCOL: "udp",
    ann.CHECK_PORT: "70000",
    ann.CHECK_INTERVAL: "often",
    ann.CHECK_TIMEOUT: "long",
    ann.CHECK_RETRIES: "-1",
    ann.CHECK_TLS: "perhaps",
    ann.STATUS_CODES: "2xx",
}
"""Annotations with a form -> a text that does not have it."""

HTTPS = {ann.PROTOCOL.name: "https"}

ASKED = [
    *({one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {ann.TYPE.name: "lb99"},
    {ann.USE_PRIVATE_IP.name: "true"},
    {ann.PRIVATE_IPV4.name: "192.0.2.1"},
    {ann.NODE_SELECTOR.name: "a=b=c"},
    *({**HTTPS, one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {**HTTPS, ann.CERTIFICATE_TYPE.name: "managed"},
]


def members(harness: HcloudHarness) -> set[int]:
    return {one["server"]["id"] for one in only(harness)["targets"]}


def ids(nodes: Sequence[cloud.Node]) -> set[int]:
    return {int(one.provider_id[9:]) for one in nodes}


@pytest.mark.row("hcloud-balancer-23")
@pytest.mark.parametrize(
    "asked", ASKED, ids=lambda one: ",".join(f"{k}={one[k]}" for k in one)[30:]
)
async def test_members_follow_the_nodes_while_ensure_fails(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    """One goes and another comes after a bad annotation; a bad port where that is not refused."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, build_service(), nodes[:2])
    wanted = build_service(annotations=asked)
    try:
        await ensured(balancer, wanted, nodes[:2])
    except cloud.CloudError:
        pass
    else:
        wanted = build_service(annotations=asked, ports=[DEFAULT_PORT, UDP])
        with pytest.raises(cloud.InvalidArgument):
            await ensured(balancer, wanted, nodes[:2])

    await balancer.update_load_balancer(CLUSTER, wanted, nodes[1:])

    assert members(harness) == ids(nodes[1:])
    assert await balancer.get_load_balancer(CLUSTER, wanted) is not None


@pytest.mark.row("hcloud-balancer-23")
async def test_an_unreadable_selector_takes_no_place_from_members(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 26)
    await ensured(balancer, service(), nodes[1:])
    held = members(harness)

    await balancer.update_load_balancer(CLUSTER, service(node_selector="a in b"), nodes)

    assert members(harness) == held == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-23")
@pytest.mark.parametrize("text", ["true", "perhaps"])
async def test_an_update_keeps_the_way_to_targets(
    harness: HcloudHarness, project: cloud.Cloud, text: str
) -> None:
    """A load balancer may not be in the network yet, and would lose all targets."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(), nodes[:2])

    await balancer.update_load_balancer(CLUSTER, service(use_private_ip=text), nodes[1:])

    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [False, False]
    await ensured(balancer, service(use_private_ip="true"), nodes)
    await balancer.update_load_balancer(CLUSTER, service(use_private_ip="perhaps"), nodes[1:])
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [True, True]


@pytest.mark.row("hcloud-balancer-23")
async def test_the_first_targets_are_reached_as_the_service_says(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 1)
    await ensured(balancer, service(use_private_ip="true"), [])

    await balancer.update_load_balancer(CLUSTER, service(use_private_ip="true"), nodes)

    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [True]


@pytest.mark.row("hcloud-balancer-23")
async def test_members_follow_the_nodes_without_the_network_of_the_settings(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    settled(harness, labels={UID: "uid-1"})
    nodes = await make_nodes(project, harness, 1)
    async with opened(harness, HCLOUD_NETWORK="gone") as lost:
        await balancer_of(lost).update_load_balancer(CLUSTER, service("uid-1"), nodes)

    assert members(harness) == ids(nodes)


# --- one target is refused ----------------------------------------------------------------------


STALE = node("stale", provider_id="hcloud://999")


async def refused(
    harness: HcloudHarness, project: cloud.Cloud, why: str
) -> tuple[cloud.Node, dict[str, str], str]:
    """A node that is no target, what its Service asks for, and what the API says."""
    if why == "stale":
        return STALE, {}, "'999' not found"
    (outside,) = await make_nodes(project, harness, 1)
    (number,) = ids([outside])
    harness.service.cloud.servers[number]["private_net"] = []
    return outside, {"use_private_ip": "true"}, "share no network"


@pytest.mark.row("hcloud-balancer-24")
@pytest.mark.parametrize("why", ["stale", "outside"])
async def test_a_load_balancer_is_made_without_a_refused_target(
    harness: HcloudHarness, project: cloud.Cloud, why: str
) -> None:
    bad, asked, reason = await refused(harness, project, why)
    nodes = [bad, *await make_nodes(project, harness, 2)]

    for _ in range(2):
        with pytest.raises(cloud.Aborted, match=reason) as caught:
            await ensured(balancer_of(project), service(**asked), nodes)
        assert f"node {bad.name} (server {bad.provider_id[9:]})" in str(caught.value)
        assert isinstance(caught.value.partial, cloud.Status)
        assert caught.value.partial.ingress

    assert members(harness) == ids(nodes[1:])
    before = harness.service.writes
    await ensured(balancer_of(project), service(**asked), nodes[1:])
    assert harness.service.writes == before


@pytest.mark.row("hcloud-balancer-24")
@pytest.mark.parametrize("why", ["stale", "outside"])
async def test_a_refused_target_keeps_out_no_other(
    harness: HcloudHarness, project: cloud.Cloud, why: str
) -> None:
    bad, asked, reason = await refused(harness, project, why)
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(**asked), nodes[:1])

    with pytest.raises(cloud.Aborted, match=f"{bad.name}.*{reason}"):
        await balancer.update_load_balancer(CLUSTER, service(**asked), [bad, *nodes[1:]])

    assert members(harness) == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-24")
async def test_a_target_that_is_refused_in_the_end_keeps_out_no_other(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    """Its action holds up those about other targets, and then fails, each time."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 2)
    await ensured(balancer, service(), [])
    world, held = harness.service.cloud, only(harness)
    harness.service.settings.action_s = 60.0
    world.doomed["load_balancer", held["id"]] = "no route"
    with pytest.raises(cloud.RetryAfter):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)
    world.settle(all_of_them=True)
    world.doomed.clear()
    harness.service.settings.action_s = 0.0

    with pytest.raises(cloud.Aborted, match=f"{nodes[0].name} .*no route"):
        await balancer.update_load_balancer(CLUSTER, service(), nodes)

    assert members(harness) == ids(nodes[1:])


@pytest.mark.row("hcloud-balancer-24")
async def test_a_target_that_stays_keeps_no_other(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(), nodes)
    fault = Fault(operation="*remove_target", code="protected", status=423, count=1)
    harness.service.script.add(fault)

    with pytest.raises(cloud.Aborted):
        await balancer.update_load_balancer(CLUSTER, service(), nodes[2:])

    assert len(members(harness) - ids(nodes[2:])) == 1


async def test_a_target_that_is_there_already_is_as_good(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    """By a call whose answer was lost."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 1)
    await ensured(balancer, service(), [])
    code = "target_already_defined"
    harness.service.script.add(Fault(operation="*add_target", code=code, status=409, count=1))

    await balancer.update_load_balancer(CLUSTER, service(), nodes)


@pytest.mark.parametrize("asked", [{}, {"protocol": "http"}, {"health_check_retries": "0"}])
async def test_every_port_has_a_health_check(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    """The daemon leaves it to them which members are well."""
    await ensured(balancer_of(project), service(**asked), [])

    assert all(one["health_check"]["protocol"] for one in only(harness)["services"])
    assert project.load_balancers_check_health
