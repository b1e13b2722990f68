"""The provider's load balancers, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.model import Node, ServicePort
from ccm.testing import builders
from providers import sim
from providers.sim import balancers, faults, server, traffic, world_balancers

CLUSTER = "kubernetes"
WEB = builders.service()


@pytest_asyncio.fixture
async def provider(url: str) -> AsyncIterator[balancers.SimBalancers]:
    context = cloud.Context(config=f"url: {url}\ntoken: secret\ntimeout: 2s".encode())
    async with sim.open_cloud(context) as found:
        assert isinstance(found.load_balancer, balancers.SimBalancers)
        yield found.load_balancer


def node(number: int) -> Node:
    addresses = [cloud.address("InternalIP", f"10.0.0.{number}")]
    return builders.node(f"n{number}", addresses=addresses)


def only(service: server.Service) -> world_balancers.Balancer:
    (found,) = service.worlds.balancers.list()
    return found


async def test_a_balancer_is_made_and_a_second_ensure_only_looks(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    status = await provider.ensure_load_balancer(CLUSTER, WEB, [node(2), node(1)])

    made = only(service)
    assert (made.name, made.cluster) == (cloud.default_load_balancer_name(WEB), CLUSTER)
    assert made.members == ("10.0.0.1", "10.0.0.2")
    assert [one.ip for one in status.ingress] == [one.ip for one in made.ingress]
    service.calls.clear()
    assert await provider.ensure_load_balancer(CLUSTER, WEB, [node(1), node(2)]) == status
    assert service.calls.counts == {"list_balancers": 1}


async def test_a_change_is_one_call_and_members_another(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer(CLUSTER, WEB, [node(1)])
    changed = builders.service(ports=[ServicePort(port=443, node_port=30443)])
    service.calls.clear()

    await provider.ensure_load_balancer(CLUSTER, changed, [node(2)])

    assert service.calls.counts == {
        "list_balancers": 1,
        "change_balancer": 1,
        "set_members": 1,
    }
    assert [one.port for one in only(service).listeners] == [443]
    assert only(service).members == ("10.0.0.2",)


async def test_an_update_touches_the_members_only(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    with pytest.raises(cloud.NotFound):
        await provider.update_load_balancer(CLUSTER, WEB, [node(1)])
    await provider.ensure_load_balancer(CLUSTER, WEB, [node(1)])
    service.calls.clear()

    await provider.update_load_balancer(CLUSTER, WEB, [node(1), node(2)])
    await provider.update_load_balancer(CLUSTER, WEB, [node(2), node(1)])

    assert service.calls.counts == {"list_balancers": 2, "set_members": 1}


async def test_while_the_cloud_works_it_says_for_how_long(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    service.change_settings(traffic.Settings(provision_s=20.0))

    with pytest.raises(cloud.RetryAfter) as raised:
        await provider.ensure_load_balancer(CLUSTER, WEB, [])

    assert 19 < raised.value.seconds <= 20
    assert await provider.get_load_balancer(CLUSTER, WEB) == cloud.Status()
    assert [one.digest for one in await provider.list_load_balancers(CLUSTER)] == [""]


async def test_a_failure_has_the_reason_of_the_cloud(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer(CLUSTER, WEB, [])
    service.worlds.balancers.interfere(
        only(service).id, world_balancers.Interference(state="error", reason="amphora is lost")
    )

    with pytest.raises(cloud.Aborted, match="amphora is lost"):
        await provider.ensure_load_balancer(CLUSTER, WEB, [])


async def test_a_used_up_quota(service: server.Service, provider: balancers.SimBalancers) -> None:
    service.change_settings(traffic.Settings(balancer_quota=1))
    await provider.ensure_load_balancer(CLUSTER, WEB, [])

    with pytest.raises(cloud.ResourceExhausted, match="quota of 1"):
        await provider.ensure_load_balancer(CLUSTER, builders.service("other"), [])


async def test_deleting_is_silent_when_nothing_is_there(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer(CLUSTER, WEB, [])

    await provider.ensure_load_balancer_deleted(CLUSTER, WEB)
    await provider.ensure_load_balancer_deleted(CLUSTER, WEB)

    assert service.worlds.balancers.list() == []
    assert await provider.get_load_balancer(CLUSTER, WEB) is None


async def test_protection_is_told(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer(CLUSTER, WEB, [])
    service.worlds.balancers.interfere(
        only(service).id, world_balancers.Interference(protected=True)
    )

    with pytest.raises(cloud.FailedPrecondition, match="protected"):
        await provider.ensure_load_balancer_deleted(CLUSTER, WEB)


async def test_the_balancer_of_another_cluster_is_out_of_reach(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer("other", WEB, [])

    assert await provider.get_load_balancer(CLUSTER, WEB) is None
    await provider.ensure_load_balancer_deleted(CLUSTER, WEB)
    with pytest.raises(cloud.FailedPrecondition, match="another cluster"):
        await provider.ensure_load_balancer(CLUSTER, WEB, [])

    assert only(service).cluster == "other"


async def test_digests_agree_until_somebody_interferes(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    await provider.ensure_load_balancer(CLUSTER, WEB, [node(1)])
    wanted = provider.load_balancer_digest(CLUSTER, WEB, [node(1)])
    (before,) = await provider.list_load_balancers(CLUSTER)
    made = only(service)

    service.worlds.balancers.interfere(made.id, world_balancers.Interference(members=("10.0.0.9",)))
    (after,) = await provider.list_load_balancers(CLUSTER)

    assert (before.name, before.digest) == (made.name, wanted)
    assert after.digest not in ("", wanted)


async def test_an_order_whose_answer_was_lost_is_adopted(
    service: server.Service, provider: balancers.SimBalancers
) -> None:
    service.script.add(
        faults.Fault(kind="drop", operation="create_balancer", count=1, applied=True)
    )
    with pytest.raises(cloud.Unavailable):
        await provider.ensure_load_balancer(CLUSTER, WEB, [node(1)])

    await provider.ensure_load_balancer(CLUSTER, WEB, [node(1)])

    assert only(service).members == ("10.0.0.1",)
