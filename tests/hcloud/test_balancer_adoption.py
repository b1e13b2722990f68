"""Load balancers that were there before their Services are adopted by name, and never deleted."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from ccm import cloud
from ccm.testing.builders import DEFAULT_PORT
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import HTTPS, deleted, ensured
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from ccm.testing.probes import nodes as make_nodes
from providers.hcloud import service_annotations as ann
from tests.hcloud.balancing import CHECK, UID, balancer_of, only, service, settled
from tests.hcloud.conftest import Told, in_cluster, opened
from tests.hcloud.harness import HcloudHarness

ADOPTED, RELEASED = "LoadBalancerAdopted", "LoadBalancerReleased"
OWN: dict[str, Any] = {"env": "prod"}
"""Labels of the load balancer that was there before."""


def listener(port: int, node_port: int) -> dict[str, Any]:
    return {
        "protocol": "tcp",
        "listen_port": port,
        "destination_port": node_port,
        "health_check": {**CHECK, "port": node_port},
    }


@pytest.mark.row("hcloud-balancer-06")
async def test_an_adopted_one_is_released_with_its_service(harness: HcloudHarness) -> None:
    made, told = settled(harness, labels=OWN), Told()
    wanted = service("uid-1", name="theirs")
    async with in_cluster(harness, told, {}) as project:
        nodes = await make_nodes(project, harness, 2)
        await ensured(balancer_of(project), wanted, nodes)
        assert (len(made["services"]), len(made["targets"])) == (1, 2)

        await deleted(balancer_of(project), wanted)

        assert only(harness) is made
        assert made["labels"] == OWN
        assert (made["services"], made["targets"]) == ([], [])
        assert [reason for _, _, reason in told.events] == [ADOPTED, RELEASED]
        assert all("theirs" in message for message in told.messages)
        assert await balancer_of(project).get_load_balancer(CLUSTER, wanted) is None
        await ensured(balancer_of(project), service("uid-2", name="theirs"), nodes)

    assert made["labels"][UID] == "uid-2"


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("number", range(1, 7))
async def test_a_release_survives_a_crash_after_any_write(
    harness: HcloudHarness, number: int
) -> None:
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    async with harness.open() as project:
        nodes = await make_nodes(project, harness, 2)
        await ensured(balancer_of(project), wanted, nodes)
        await harness.lose_answer(number)
        with contextlib.suppress(cloud.CloudError):
            await deleted(balancer_of(project), wanted)
        await harness.heal()
    async with harness.open() as project:
        await deleted(balancer_of(project), wanted)

    assert (made["labels"], made["services"], made["targets"]) == (OWN, [], [])


@pytest.mark.row("hcloud-balancer-06")
async def test_a_release_waits_for_the_cloud(harness: HcloudHarness) -> None:
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    async with harness.open() as project:
        await ensured(balancer_of(project), wanted, await make_nodes(project, harness, 1))
        harness.service.settings.action_s = 60.0
        for _ in range(2):
            with pytest.raises(cloud.RetryAfter):
                await balancer_of(project).ensure_load_balancer_deleted(CLUSTER, wanted)
            assert made["labels"][UID] == "uid-1"
        harness.service.settings.action_s = 0.0
        harness.service.cloud.settle(all_of_them=True)
        await deleted(balancer_of(project), wanted)

    assert (made["labels"], made["services"]) == (OWN, [])


@pytest.mark.row("hcloud-balancer-06")
async def test_what_the_service_did_not_bring_stays(harness: HcloudHarness) -> None:
    """It goes before its load balancer could be changed: listeners and targets are another's."""
    theirs = [listener(443, 8443), listener(8080, 8080)]
    made, told = settled(harness, labels=OWN, services=theirs), Told()
    wanted = build_service(
        uid="uid-1",
        annotations={ann.NAME.name: "theirs", ann.TYPE.name: "lb99"},
        ports=[DEFAULT_PORT, HTTPS],
    )
    async with in_cluster(harness, told, {}) as project:
        (one,) = await make_nodes(project, harness, 1)
        number = int(one.provider_id.removeprefix("hcloud://"))
        made["targets"] = [{"type": "server", "server": {"id": number}, "use_private_ip": False}]
        before = [dict(one) for one in made["services"]]
        with pytest.raises(cloud.InvalidArgument, match="load balancer type not found"):
            await ensured(balancer_of(project), wanted, [one])
        assert made["labels"][UID] == "uid-1"

        await deleted(balancer_of(project), wanted)

    assert (made["labels"], made["services"]) == (OWN, before)
    assert len(made["targets"]) == 1
    assert "still listens on 443, 8080" in told.messages[-1]


@pytest.mark.row("hcloud-balancer-06")
async def test_a_service_of_another_type_by_now_is_taken_off_too(harness: HcloudHarness) -> None:
    """It has lost its node ports when its load balancer goes."""
    made, wanted = settled(harness, labels=OWN), service("uid-1", name="theirs")
    async with harness.open() as project:
        await ensured(balancer_of(project), wanted, await make_nodes(project, harness, 1))
        plain = cloud.ServicePort(name="http", port=80, target_port=80)
        internal = build_service(uid="uid-1", type="ClusterIP", ports=[plain])
        await deleted(balancer_of(project), internal)

    assert (made["labels"], made["services"], made["targets"]) == (OWN, [], [])


@pytest.mark.row("hcloud-balancer-06")
async def test_an_adopted_orphan_is_not_deleted_by_name(harness: HcloudHarness) -> None:
    made = settled(harness)
    async with harness.open() as project:
        balancer = balancer_of(project)
        await ensured(balancer, service("uid-1", name="theirs"), [])
        await ensured(balancer, service("uid-2"), [])
        listed = {one.name: one.adopted for one in await balancer.list_load_balancers(CLUSTER)}
        with pytest.raises(cloud.FailedPrecondition, match="theirs was not made for a Service"):
            await balancer.delete_load_balancer(CLUSTER, "theirs")

    assert sorted(listed.values()) == [False, True]
    assert listed["theirs"]
    assert made["id"] in harness.service.cloud.load_balancers


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("asked", [{"name": "another"}, {}])
async def test_an_adopted_one_keeps_its_name(
    harness: HcloudHarness, project: cloud.Cloud, asked: dict[str, str]
) -> None:
    made = settled(harness, labels=OWN)
    await ensured(balancer_of(project), service("uid-1", name="theirs"), [])

    with pytest.raises(cloud.FailedPrecondition, match="load balancer theirs was there before"):
        await ensured(balancer_of(project), service("uid-1", **asked), [])
    await deleted(balancer_of(project), service("uid-1", **asked))

    assert (only(harness) is made, made["name"], made["labels"]) == (True, "theirs", OWN)


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("place", ["fsn1", ""])
async def test_adoption_can_be_forbidden(harness: HcloudHarness, place: str) -> None:
    made = settled(harness, labels=OWN)
    variables = {
        "HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME": "false",
        "HCLOUD_LOAD_BALANCERS_LOCATION": place,
    }
    wanted = service("uid-1", name="theirs")
    async with opened(harness, **variables) as project:
        before = harness.service.writes
        with pytest.raises(cloud.FailedPrecondition) as caught:
            await ensured(balancer_of(project), wanted, [])
        await deleted(balancer_of(project), wanted)
        assert harness.service.writes == before

    assert "load balancer theirs " in str(caught.value)
    assert "HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME" in str(caught.value)
    assert made["labels"] == OWN


@pytest.mark.row("hcloud-balancer-06")
async def test_who_takes_a_name_meanwhile_is_not_adopted_where_that_is_forbidden(
    harness: HcloudHarness,
) -> None:
    """The name that follows from the UID, which nobody asked for."""
    async with opened(harness, HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME="false") as project:
        balancer = balancer_of(project)
        made = settled(harness, name=balancer.get_load_balancer_name(CLUSTER, service("uid-1")))
        with pytest.raises(cloud.FailedPrecondition, match="ADOPT_BY_NAME"):
            await ensured(balancer, service("uid-1"), [])

    assert made["labels"] == {}


@pytest.mark.row("hcloud-balancer-18")
@pytest.mark.parametrize("allowed", ["true", "false"])
async def test_one_that_was_made_for_the_service_is_deleted_as_ever(
    harness: HcloudHarness, allowed: str
) -> None:
    """By the vendor's manager, or by ourselves with an answer that was lost."""
    settled(harness, labels={UID: "uid-1"})
    async with opened(harness, HCLOUD_LOAD_BALANCERS_ADOPT_BY_NAME=allowed) as project:
        await ensured(balancer_of(project), service("uid-1", name="theirs"), [])
        harness.service.script.add(Fault(kind="drop", operation="POST *", count=1, applied=True))
        with pytest.raises(cloud.CloudError):
            await ensured(balancer_of(project), service("uid-2", name="ours"), [])
        harness.service.heal()
        await ensured(balancer_of(project), service("uid-2", name="ours"), [])
        assert len(harness.service.cloud.load_balancers) == 2

        for uid in ("uid-1", "uid-2"):
            await deleted(balancer_of(project), service(uid))

    assert harness.service.cloud.load_balancers == {}
