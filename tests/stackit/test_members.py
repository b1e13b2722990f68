"""Members follow the nodes, whatever else is wrong; one bad node keeps out no other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, ensured, updated
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.stackit import service_annotations as ann
from tests.stackit.balancing import METRICS, OTHER_NETWORK, UID, balancer_of, only, service
from tests.stackit.harness import StackitHarness

SCTP = msgspec.structs.replace(DEFAULT_PORT, name="sctp", port=81, protocol="SCTP")

TYPED = {
    ann.INTERNAL: "perhaps",
    ann.EXTERNAL: "::1",
    ann.PROXY: "tcp",
    ann.PROXY_PORTS: "80,http",
    ann.TCP_TIMEOUT: "long",
    ann.UDP_TIMEOUT: "-5s",
    ann.PLAN: "p11",
    ann.IP_MODE: "VIP",
    ann.PERSISTENCE: "2",
    ann.LISTENER_NETWORK: "net",
    ann.OLD_EXTERNAL: "here",
    ann.OLD_RANGES: "everybody",
    ann.OLD_PROXY_PORTS: "70000",
    ann.FLAVOR: "s1a.1d",
}
"""Annotations with a form -> a text that does not have it."""

ASKED = [
    *({one.name: TYPED.get(one, "no such thing")} for one in ann.SCHEMA),
    {ann.PROXY.name: "true", ann.PROXY_PORTS.name: "http"},
    {ann.INTERNAL.name: "true"},
    {ann.INTERNAL.name: "true", ann.OLD_INTERNAL.name: "false"},
    {ann.EXTERNAL.name: "192.0.2.7"},
    {ann.LISTENER_NETWORK.name: OTHER_NETWORK},
]


def members(harness: StackitHarness) -> list[set[str]]:
    """The members of each pool."""
    return [
        {one["displayName"] for one in pool["targets"]} for pool in only(harness)["targetPools"]
    ]


def names(nodes: Sequence[cloud.Node]) -> set[str]:
    return {one.name for one in nodes}


@pytest.mark.row("stackit-balancer-25")
@pytest.mark.parametrize("asked", ASKED, ids=lambda one: ",".join(f"{k}={one[k]}" for k in one))
async def test_members_follow_the_nodes_while_ensure_fails(
    harness: StackitHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    """One goes and another comes after a bad annotation; a bad port where that is not refused."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(), nodes[:2])
    wanted = build_service(uid=UID, annotations=asked)
    try:
        await ensured(balancer, wanted, nodes[:2])
    except cloud.CloudError:
        pass
    else:
        wanted = build_service(uid=UID, annotations=asked, ports=[DEFAULT_PORT, SCTP])
        with pytest.raises(cloud.InvalidArgument):
            await ensured(balancer, wanted, nodes[:2])

    await updated(balancer, wanted, nodes[1:])

    assert members(harness) == [names(nodes[1:])]
    assert await balancer.get_load_balancer(CLUSTER, wanted) is not None


@pytest.mark.row("stackit-balancer-25")
async def test_members_of_ports_that_are_to_go_follow_the_nodes(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    """As long as the change of ports fails, they have traffic."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    both = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, both, nodes[:2])

    await updated(balancer, build_service(uid=UID, ports=[HTTPS]), nodes[1:])

    assert members(harness) == [names(nodes[1:])] * 2


# --- one target is refused ----------------------------------------------------------------------


def refuse(harness: StackitHarness, *nodes: cloud.Node) -> None:
    """Have the cloud refuse them as targets."""
    for one in nodes:
        harness.service.cloud.unreachable |= {each.address for each in one.addresses}


@pytest.mark.row("stackit-balancer-26")
async def test_a_load_balancer_is_made_without_a_refused_target(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 4)
    refuse(harness, nodes[1])
    good = [nodes[0], *nodes[2:]]

    for _ in range(2):
        with pytest.raises(cloud.Aborted, match=f"{nodes[1].name}.*not in the network") as caught:
            await ensured(balancer, service(), nodes)
        assert isinstance(caught.value.partial, cloud.Status)
        assert caught.value.partial.ingress

    assert members(harness) == [names(good)]
    before = harness.service.writes
    await ensured(balancer, service(), good)
    assert harness.service.writes == before


@pytest.mark.row("stackit-balancer-26")
async def test_a_new_load_balancer_that_takes_time(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 2)
    refuse(harness, nodes[0])
    await harness.slow_load_balancers(slow=True)
    with pytest.raises(cloud.RetryAfter):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)
    await harness.slow_load_balancers(slow=False)

    with pytest.raises(cloud.Aborted, match=nodes[0].name):
        await balancer.ensure_load_balancer(CLUSTER, service(), nodes)

    assert members(harness) == [names(nodes[1:])]


@pytest.mark.row("stackit-balancer-26")
@pytest.mark.parametrize("call", ["ensure", "update"])
@pytest.mark.parametrize("bad", [[1], [3], [1, 2, 3], [1, 4], [1, 2, 3, 4]])
async def test_a_refused_target_keeps_out_no_other(
    harness: StackitHarness, project: cloud.Cloud, call: str, bad: list[int]
) -> None:
    """And keeps none that is gone, in the pool of each port."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 6)
    wanted = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, wanted, [nodes[0], nodes[5]])
    refuse(harness, *(nodes[each] for each in bad))
    act = ensured if call == "ensure" else updated

    with pytest.raises(cloud.Aborted) as caught:
        await act(balancer, wanted, nodes[:5])

    good = [one for at, one in enumerate(nodes[:5]) if at not in bad]
    assert members(harness) == [names(good)] * 2
    assert all((one.name in str(caught.value)) == (one not in good) for one in nodes[:5])


@pytest.mark.row("stackit-balancer-26")
async def test_a_gone_member_leaves_beside_a_refused_one(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(), nodes[:2])
    refuse(harness, nodes[2])

    with pytest.raises(cloud.Aborted):
        await updated(balancer, service(), nodes[1:])

    assert members(harness) == [names(nodes[1:2])]


@pytest.mark.row("stackit-balancer-26")
async def test_a_change_of_the_service_waits_for_no_refused_target(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    harness.variables = METRICS
    async with harness.open() as metered:
        nodes = await make_nodes(metered, harness, 2)
        await ensured(balancer_of(metered), service(), nodes[:1])
    harness.variables = {}
    refuse(harness, nodes[1])
    async with harness.open() as bare:
        with pytest.raises(cloud.Aborted, match=nodes[1].name):
            await ensured(balancer_of(bare), service(service_plan_id="p50"), nodes)

    assert only(harness)["planId"] == "p50"
    assert harness.service.cloud.credentials == {}
    assert members(harness) == [names(nodes[:1])]


@pytest.mark.row("stackit-balancer-26")
async def test_a_refusal_costs_one_call_again(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 3)
    await ensured(balancer, service(), nodes[:2])
    refuse(harness, nodes[2])

    for _ in range(2):
        before = harness.service.writes
        with pytest.raises(cloud.Aborted):
            await updated(balancer, service(), nodes)
        assert harness.service.writes == before + 1


@pytest.mark.row("stackit-balancer-26")
async def test_a_pool_that_is_refused_keeps_back_no_other(
    harness: StackitHarness, project: cloud.Cloud
) -> None:
    """No new target is to blame: it is not looked for one by one."""
    balancer, nodes = balancer_of(project), await make_nodes(project, harness, 4)
    wanted = build_service(uid=UID, ports=[DEFAULT_PORT, HTTPS])
    await ensured(balancer, wanted, nodes[:1])
    fault = Fault(operation="PUT *target-pools*", code="bad_request", count=2, message="as it is")
    harness.service.script.add(fault)
    before = harness.service.writes

    with pytest.raises(cloud.Aborted, match=f"pool {DEFAULT_PORT.name}: .*as it is"):
        await updated(balancer, wanted, nodes)

    assert members(harness) == [names(nodes[:1]), names(nodes)]
    assert harness.service.writes == before + 3


def test_the_daemon_has_to_know_which_nodes_are_well(project: cloud.Cloud) -> None:
    assert not project.load_balancers_check_health
