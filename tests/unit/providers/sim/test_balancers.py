"""What the provider's load balancers do beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.model import Node, ServicePort
from ccm.testing import builders
from providers.sim import balancers, server, traffic, world_balancers

CLUSTER = "kubernetes"
WEB = builders.service()


@pytest.fixture
def load_balancers(provider: cloud.Cloud) -> balancers.SimBalancers:
    assert isinstance(provider.load_balancer, balancers.SimBalancers)
    return provider.load_balancer


def node(number: int) -> Node:
    addresses = [cloud.address("InternalIP", f"10.0.0.{number}")]
    return builders.node(f"n{number}", addresses=addresses)


def only(service: server.Service) -> world_balancers.Balancer:
    (found,) = service.worlds.balancers.list()
    return found


async def test_it_looks_once_and_then_makes_one_call_for_each_difference(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    changed = builders.service(ports=[ServicePort(port=443, node_port=30443)])
    with pytest.raises(cloud.NotFound):
        await load_balancers.update_load_balancer(CLUSTER, WEB, [node(1)])
    calls = []
    for wanted, nodes in ((WEB, [node(2), node(1)]), (WEB, [node(1), node(2)]), (changed, [])):
        service.calls.clear()
        await load_balancers.ensure_load_balancer(CLUSTER, wanted, nodes)
        calls.append(list(service.calls.counts))
    for nodes in ([node(1), node(2)], [node(2), node(1)]):
        service.calls.clear()
        await load_balancers.update_load_balancer(CLUSTER, WEB, nodes)
        calls.append(list(service.calls.counts))

    assert calls == [
        ["list_balancers", "create_balancer", "set_members"],
        ["list_balancers"],
        ["list_balancers", "change_balancer", "set_members"],
        ["list_balancers", "set_members"],
        ["list_balancers"],
    ]
    made = only(service)
    assert (made.name, made.cluster) == (cloud.default_load_balancer_name(WEB), CLUSTER)
    assert made.members == ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize("call", ["ensure_load_balancer", "update_load_balancer"])
async def test_a_refused_member_keeps_out_no_other(
    service: server.Service, load_balancers: balancers.SimBalancers, call: str
) -> None:
    bad = builders.node("bad", addresses=[cloud.address("InternalIP", "10.0.0.1/24")])
    await load_balancers.ensure_load_balancer(CLUSTER, WEB, [node(1)])
    ask = getattr(load_balancers, call)

    for _ in range(2):
        with pytest.raises(cloud.Aborted, match=r"10\.0\.0\.1/24") as caught:
            await ask(CLUSTER, WEB, [bad, node(2)])
        assert isinstance(caught.value.partial, cloud.Status)

    assert only(service).members == ("10.0.0.2",)


async def test_while_the_cloud_works_it_says_for_how_long(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    service.change_settings(traffic.Settings(provision_s=20.0))

    with pytest.raises(cloud.RetryAfter) as raised:
        await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    assert 19 < raised.value.seconds <= 20
    assert await load_balancers.get_load_balancer(CLUSTER, WEB) == cloud.Status()
    assert [one.digest for one in await load_balancers.list_load_balancers(CLUSTER)] == [""]


async def test_a_used_up_quota(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    service.change_settings(traffic.Settings(balancer_quota=1))
    await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    with pytest.raises(cloud.ResourceExhausted, match="quota of 1"):
        await load_balancers.ensure_load_balancer(CLUSTER, builders.service("other"), [])


async def test_the_balancer_of_another_cluster_is_out_of_reach(
    service: server.Service, load_balancers: balancers.SimBalancers
) -> None:
    await load_balancers.ensure_load_balancer("other", WEB, [])

    assert await load_balancers.get_load_balancer(CLUSTER, WEB) is None
    await load_balancers.ensure_load_balancer_deleted(CLUSTER, WEB)
    with pytest.raises(cloud.FailedPrecondition, match="another cluster"):
        await load_balancers.ensure_load_balancer(CLUSTER, WEB, [])

    assert only(service).cluster == "other"
