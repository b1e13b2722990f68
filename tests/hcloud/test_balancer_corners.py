"""What seldom happens to load balancers: somebody else's hands, things half done."""

from __future__ import annotations

import pytest

from ccm import cloud
from ccm.testing.builders import service as build_service
from ccm.testing.contract_balancers import deleted, ensured
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import networks as fake_networks
from providers.hcloud.testing.answers import Call
from tests.hcloud.balancing import UID, balancer_of, in_vain, only, service, settled
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness


@pytest.mark.row("hcloud-balancer-06")
@pytest.mark.parametrize("owner", ["", "uid-of-another"])
async def test_somebody_took_the_name_that_nobody_asked_for(
    harness: HcloudHarness, project: cloud.Cloud, owner: str
) -> None:
    """The name by default, which is looked for only when it turns out to be taken."""
    wanted = service("uid-1")
    name = balancer_of(project).get_load_balancer_name(CLUSTER, wanted)
    made = settled(harness, name=name, labels={UID: owner} if owner else {})

    if owner:
        with pytest.raises(cloud.FailedPrecondition, match=owner):
            await ensured(balancer_of(project), wanted, [])
    else:
        await ensured(balancer_of(project), wanted, [])

    assert only(harness) is made
    assert made["labels"][UID] == (owner or "uid-1")


async def test_a_name_that_is_taken_by_nobody(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """It was given up again between the refusal and the look."""
    fault = Fault(operation="POST /load_balancers", code="uniqueness_error", status=409, count=1)
    harness.service.script.add(fault)

    with pytest.raises(cloud.AlreadyExists):
        await ensured(balancer_of(project), service(), [])
    await ensured(balancer_of(project), service(), [])


@pytest.mark.row("hcloud-balancer-21")
async def test_one_in_another_network(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """It comes into ours; without one of ours it stays where somebody put it."""
    body = {"name": "other", "ip_range": "10.9.0.0/16", "subnets": [{"ip_range": "10.9.0.0/24"}]}
    _, answer = fake_networks.create(harness.service.cloud, Call(body=body))
    assert answer is not None
    other = answer["network"]["id"]
    settled(harness, labels={UID: "uid-1"}, network=other)

    async with opened(harness, HCLOUD_NETWORK="") as without:
        await ensured(balancer_of(without), service("uid-1"), [])
        assert [one["network"] for one in only(harness)["private_net"]] == [other]
        await in_vain(harness, without, service("uid-1"), [])
    await ensured(balancer_of(project), service("uid-1"), [])

    assert [one["network"] for one in only(harness)["private_net"]] == [harness.network["id"]]


@pytest.mark.row("hcloud-balancer-22")
@pytest.mark.parametrize("when", ["new", "changed", "by hand"])
async def test_one_that_nobody_could_reach_is_refused(harness: HcloudHarness, when: str) -> None:
    """Nothing is made, and it is not asked every second whether it has an address by now."""
    wanted = service("uid-1", disable_public_network="true")
    async with opened(harness, HCLOUD_NETWORK="") as project:
        if when != "new":
            settled(harness, labels={UID: "uid-1"}, public_interface=when != "by hand")
        wanted = service("uid-1") if when == "by hand" else wanted
        before = harness.service.writes
        with pytest.raises(cloud.InvalidArgument, match="HCLOUD_NETWORK"):
            await balancer_of(project).ensure_load_balancer(CLUSTER, wanted, [])

    assert harness.service.writes == before + 2 * (when == "by hand")  # name, listener


async def test_a_member_goes_by_somebody_elses_hand_meanwhile(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    nodes = await make_nodes(project, harness, 2)
    await ensured(balancer_of(project), service(), nodes)
    fault = Fault(operation="*remove_target", code="not_found", status=404, count=1, applied=True)
    harness.service.script.add(fault)

    await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes[:1])

    assert len(only(harness)["targets"]) == 1
    harness.service.script.add(Fault(operation="*add_target", code="not_found", status=404))
    with pytest.raises(cloud.Aborted, match=nodes[1].name):  # NotFound: there is no load balancer
        await balancer_of(project).update_load_balancer(CLUSTER, service(), nodes)


async def test_a_quota_that_no_member_uses_is_an_error(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    settled(harness, labels={UID: "uid-1"})
    fault = Fault(operation="*add_service", code="resource_limit_exceeded")
    harness.service.script.add(fault)

    with pytest.raises(cloud.ResourceExhausted):
        await ensured(balancer_of(project), service("uid-1"), [])


async def test_one_that_has_no_address_yet(harness: HcloudHarness, project: cloud.Cloud) -> None:
    """As after a restart in the middle of its making: no action of ours is known."""
    harness.service.settings.balancer_s = 60.0
    with pytest.raises(cloud.RetryAfter):
        await balancer_of(project).ensure_load_balancer(CLUSTER, service(), [])
    async with harness.open() as again:
        with pytest.raises(cloud.RetryAfter, match="no address yet"):
            await balancer_of(again).ensure_load_balancer(CLUSTER, service(), [])


async def test_an_orphan_goes_once(harness: HcloudHarness, project: cloud.Cloud) -> None:
    await ensured(balancer_of(project), service(), [])
    name = only(harness)["name"]

    for _ in range(2):
        await balancer_of(project).delete_load_balancer(CLUSTER, name)

    assert harness.service.cloud.load_balancers == {}


@pytest.mark.parametrize("code", ["failed", "gone"])
async def test_a_deletion_that_fails(
    harness: HcloudHarness, project: cloud.Cloud, code: str
) -> None:
    """Its action fails; or somebody else was faster."""
    await ensured(balancer_of(project), service(), [])
    number = only(harness)["id"]
    if code == "failed":
        harness.service.settings.told_deletions = True
        harness.service.cloud.doomed["load_balancer", number] = "no way"
        with pytest.raises(cloud.Aborted, match="no way"):
            await deleted(balancer_of(project), service())
    else:
        fault = Fault(operation="DELETE /load_balancers/*", code="not_found", status=404)
        harness.service.script.add(fault)
        await deleted(balancer_of(project), service())


@pytest.mark.row("hcloud-balancer-17")
@pytest.mark.parametrize("private", ["true", "false"])
async def test_a_place_of_its_own_in_the_network_comes_first(
    harness: HcloudHarness, project: cloud.Cloud, private: str
) -> None:
    nodes = await make_nodes(project, harness, 1)
    wanted = service(private_ipv4="10.0.0.99", use_private_ip=private)

    await ensured(balancer_of(project), wanted, nodes)

    assert only(harness)["private_net"][0]["ip"] == "10.0.0.99"
    assert [one["use_private_ip"] for one in only(harness)["targets"]] == [private == "true"]


@pytest.mark.row("hcloud-balancer-20")
async def test_a_digest_with_a_certificate_that_is_to_be_made(project: cloud.Cloud) -> None:
    """Which one it will be nobody knows: such a Service is looked at after each start."""
    managed = {"protocol": "https", "certificate_type": "managed"}
    wanted = [service(**managed), service(**managed, http_managed_certificate_name="mine")]

    one, other = (balancer_of(project).load_balancer_digest(CLUSTER, each, []) for each in wanted)

    assert one != other


async def test_somebody_else_makes_the_certificate_meanwhile(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    fault = Fault(
        operation="POST /certificates", code="uniqueness_error", status=409, applied=True, count=1
    )
    harness.service.script.add(fault)
    asked = {
        "protocol": "https",
        "certificate_type": "managed",
        "http_managed_certificate_domains": "example.com",
    }

    await ensured(balancer_of(project), service(**asked), [])

    assert len(harness.service.cloud.certificates) == 1


@pytest.mark.row("hcloud-balancer-17")
def test_a_name_by_annotation_is_the_name(project: cloud.Cloud) -> None:
    wanted = build_service(uid="0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d")
    named = build_service(annotations={ann.NAME.name: "mine"})
    name = balancer_of(project).get_load_balancer_name

    assert name(CLUSTER, wanted) == "a0b6dbe96bb3c4d4cb1e04c0ed8a21f0"
    assert name(CLUSTER, named) == "mine"
