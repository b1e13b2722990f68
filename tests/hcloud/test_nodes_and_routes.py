"""Nodes and routes beyond the contract."""

from __future__ import annotations

from typing import Any

import pytest

from ccm import cloud
from ccm.testing.builders import node
from ccm.testing.contract_routes import CIDR, created
from ccm.testing.fake_faults import Fault
from ccm.testing.network_probes import CLUSTER
from ccm.testing.network_probes import nodes as make_nodes
from tests.hcloud.conftest import opened
from tests.hcloud.harness import HcloudHarness


@pytest.mark.row("hcloud-node-05")
@pytest.mark.parametrize("provider_id", ["hcloud://bm-42", "hrobot://42", "hcloud://4x"])
async def test_dedicated_servers_are_left_alone(
    harness: HcloudHarness, project: cloud.Cloud, provider_id: str
) -> None:
    assert project.instances is not None
    found = node("bm", provider_id=provider_id)
    questions: list[Any] = [
        project.instances.instance_exists,
        project.instances.instance_shutdown,
        project.instances.instance_metadata,
    ]
    for ask in questions:
        with pytest.raises(cloud.InvalidArgument, match=provider_id):
            await ask(found)

    assert harness.service.calls.total() == 0
    assert cloud.is_foreign("hrobot://42", project.provider_schemes)


@pytest.mark.row("hcloud-node-06")
@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("ipv4", ["Hostname", "ExternalIP", "InternalIP"]),
        ("ipv6", ["Hostname", "ExternalIP", "InternalIP"]),
        ("dualstack", ["Hostname", "ExternalIP", "ExternalIP", "InternalIP"]),
    ],
)
async def test_address_families(harness: HcloudHarness, family: str, kinds: list[str]) -> None:
    made = await harness.create()
    settings = {
        "HCLOUD_INSTANCES_ADDRESS_FAMILY": family,
        "HCLOUD_INSTANCES_ZONE_LABEL_ENABLED": "false",
    }
    async with opened(harness, **settings) as project:
        assert project.instances is not None
        found = await project.instances.instance_metadata(node(made.name))

    assert found is not None
    assert [one.type for one in found.addresses] == kinds
    assert (":" in found.addresses[1].address) == (family == "ipv6")
    assert (found.zone, found.region) == ("", "hel1")


@pytest.mark.row("hcloud-config-05")
async def test_a_network_that_is_not_there(harness: HcloudHarness) -> None:
    async with opened(harness, HCLOUD_NETWORK="nowhere") as project:
        assert project.inventory is not None
        with pytest.raises(cloud.FailedPrecondition, match=r"HCLOUD_NETWORK.*nowhere"):
            await project.inventory.list_instances()


@pytest.mark.row("hcloud-route-02")
async def test_a_range_that_leads_nowhere_is_taken_over(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    assert project.routes is not None
    one, other = await make_nodes(project, harness, 2)
    harness.network["routes"].append({"destination": CIDR, "gateway": "10.0.0.200"})
    (nowhere,) = await project.routes.list_routes(CLUSTER)
    assert [one.address for one in nowhere.target_addresses] == ["10.0.0.200"]

    await created(project.routes, one, CIDR)
    with pytest.raises(cloud.AlreadyExists, match=one.name):
        await created(project.routes, other, CIDR)

    (listed,) = await project.routes.list_routes(CLUSTER)
    assert (listed.target_node, listed.blackhole) == (one.name, False)


@pytest.mark.row("hcloud-route-03")
@pytest.mark.parametrize("code", ["conflict", "locked"])
async def test_a_locked_network_is_tried_again(
    harness: HcloudHarness, project: cloud.Cloud, code: str
) -> None:
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    harness.service.script.add(Fault(operation="*_route", code=code, count=1))

    with pytest.raises(cloud.RetryAfter):
        await created(project.routes, one, CIDR)
    await created(project.routes, one, CIDR)
    assert len(harness.network["routes"]) == 1


@pytest.mark.row("hcloud-route-04")
async def test_what_cannot_be_routed(harness: HcloudHarness, project: cloud.Cloud) -> None:
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    harness.service.settings.network_routes = 0

    with pytest.raises(cloud.ResourceExhausted):
        await created(project.routes, one, CIDR)
    with pytest.raises(cloud.Unavailable, match="bare"):
        await created(project.routes, node("bare"), CIDR)
    harness.service.cloud.servers[int(one.provider_id[9:])]["private_net"] = []
    async with harness.open() as again:
        assert again.routes is not None
        with pytest.raises(cloud.FailedPrecondition, match=one.name):
            await created(again.routes, node(one.name), CIDR)
    with pytest.raises(cloud.InvalidArgument, match="IPv4"):
        await created(project.routes, one, "fd00::/64")


@pytest.mark.row("hcloud-route-04")
async def test_a_gateway_is_an_address_of_the_network(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    wrong = cloud.address("InternalIP", "192.168.7.7")
    route = cloud.Route(
        destination_cidr=CIDR, target_node=one.name, target_addresses=(wrong, *one.addresses)
    )

    await project.routes.create_route(CLUSTER, "hint", route)

    assert harness.network["routes"][0]["gateway"].startswith("10.0.0.")


async def test_a_failed_action_is_told(harness: HcloudHarness, project: cloud.Cloud) -> None:
    assert project.routes is not None
    (one,) = await make_nodes(project, harness, 1)
    harness.service.cloud.doomed["network", harness.network["id"]] = "no way"

    with pytest.raises(cloud.Aborted, match="no way"):
        await created(project.routes, one, CIDR)


@pytest.mark.row("hcloud-route-05")
async def test_a_node_without_address_has_the_one_of_its_server(
    harness: HcloudHarness, project: cloud.Cloud
) -> None:
    """A wave of nodes that are not initialised yet costs one listing, and nobody waits."""
    assert project.routes is not None
    made = [await harness.create() for _ in range(5)]
    for number, each in enumerate(made):
        await created(project.routes, node(each.name), f"10.120.{number}.0/24")

    assert len(harness.network["routes"]) == 5
    assert harness.service.calls["GET /servers"] == 1
