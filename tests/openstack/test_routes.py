"""Routes: next hops, address pairs, older clouds, and the number of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ccm import cloud
from ccm.testing.builders import node
from ccm.testing.contract_routes import CIDR, CIDR_V6, created
from ccm.testing.fake_api import Fault
from ccm.testing.probes import CLUSTER
from providers.openstack.testing import network
from providers.openstack.testing.state import EXTENSIONS
from tests.openstack.harness import OpenStackHarness, opened


def server_id(found: cloud.Node) -> str:
    return found.provider_id.rpartition("/")[2]


def pairs(harness: OpenStackHarness, found: cloud.Node) -> list[str]:
    listed = harness.port(server_id(found))["allowed_address_pairs"]
    return [pair["ip_address"] for pair in listed]


async def delete_all(harness: OpenStackHarness) -> None:
    for route in await harness.project.routes.list_routes(CLUSTER):
        await harness.project.routes.delete_route(CLUSTER, route)


@pytest.mark.row("openstack-route-01")
async def test_routes_of_both_families_have_their_address_pairs(
    harness: OpenStackHarness,
) -> None:
    (one,) = await harness.nodes(1)
    harness.port(server_id(one))["allowed_address_pairs"] = [
        {"ip_address": "10.9.0.1", "mac_address": "fa:16:3e:00:00:99"}
    ]
    for cidr in (CIDR, CIDR_V6):
        await created(harness.project.routes, one, cidr)

    v4, v6 = harness.ips(server_id(one))
    assert harness.router["routes"] == [
        {"destination": CIDR, "nexthop": v4},
        {"destination": CIDR_V6, "nexthop": v6},
    ]
    assert pairs(harness, one) == ["10.9.0.1", CIDR, CIDR_V6]

    await delete_all(harness)

    assert harness.router["routes"] == []
    assert harness.port(server_id(one))["allowed_address_pairs"] == [
        {"ip_address": "10.9.0.1", "mac_address": "fa:16:3e:00:00:99"}
    ]


@pytest.mark.parametrize(
    ("without", "creation", "deletion"),
    [
        ((), 3, 3),
        (("allowed-address-pairs",), 2, 2),
        (("extraroute-atomic",), 4, 4),
    ],
)
@pytest.mark.row("openstack-route-02", "openstack-call-01")
async def test_a_route_takes_at_most_three_calls(
    harness: OpenStackHarness, without: tuple[str, ...], creation: int, deletion: int
) -> None:
    harness.service.settings.extensions = tuple(name for name in EXTENSIONS if name not in without)
    one, other = await harness.nodes(2)
    before = harness.service.requests
    await created(harness.project.routes, one, CIDR)
    first = harness.service.requests - before

    await created(harness.project.routes, other, "10.120.1.0/24")

    # A missing extension is learnt from the first call.
    assert first == creation + ("extraroute-atomic" in without)
    assert harness.service.requests - before - first == creation
    listed = await harness.project.routes.list_routes(CLUSTER)
    before = harness.service.requests
    await harness.project.routes.delete_route(CLUSTER, listed[0])
    assert harness.service.requests - before == deletion
    assert [route["destination"] for route in harness.router["routes"]] == ["10.120.1.0/24"]


async def test_existing_route_is_not_written_again(harness: OpenStackHarness) -> None:
    harness.service.settings.extensions = ("extraroute", "allowed-address-pairs")
    (one,) = await harness.nodes(1)
    await created(harness.project.routes, one, CIDR)
    before = harness.service.writes

    await created(harness.project.routes, one, CIDR)

    assert harness.service.writes == before


@pytest.mark.row("openstack-route-01")
async def test_port_without_port_security_gets_no_address_pair(
    harness: OpenStackHarness,
) -> None:
    (one,) = await harness.nodes(1)
    harness.port(server_id(one))["port_security_enabled"] = False

    await created(harness.project.routes, one, CIDR)

    assert await harness.routes() == [CIDR]


class Factory:
    """Informers with nodes."""

    def __init__(self) -> None:
        self.handler: Callable[[cloud.Node | None, cloud.Node | None], None]

    def on_node(self, handler: Callable[[cloud.Node | None, cloud.Node | None], None]) -> None:
        self.handler = handler

    def node(self, name: str) -> cloud.Node | None:
        raise AssertionError(name)


async def test_next_hops_of_known_nodes_need_no_listing_of_servers(
    harness: OpenStackHarness,
) -> None:
    (one,) = await harness.nodes(1)
    await created(harness.project.routes, one, CIDR)
    factory = Factory()
    harness.project.set_informers(factory)
    factory.handler(None, node("renamed", addresses=one.addresses))
    before = harness.service.requests

    (listed,) = await harness.project.routes.list_routes(CLUSTER)

    assert (listed.target_node, listed.blackhole) == ("renamed", False)
    assert harness.service.requests - before == 1
    factory.handler(node("renamed", addresses=one.addresses), None)
    (listed,) = await harness.project.routes.list_routes(CLUSTER)
    assert (listed.target_node, listed.blackhole) == (one.name, False)


async def test_port_is_in_a_network_of_the_router(harness: OpenStackHarness) -> None:
    """Another network may have the same range."""
    (one,) = await harness.nodes(1)
    other = network.new_network(harness.service.cloud, "other", ["10.6.0.0/16"])
    device = {"id": "s", "OS-EXT-AZ:availability_zone": "az1"}
    stranger = network.new_port(harness.service.cloud, other["id"], device=device)
    stranger["fixed_ips"][0]["ip_address"] = harness.ips(server_id(one))[0]

    await created(harness.project.routes, one, CIDR)

    assert pairs(harness, one) == [CIDR]
    assert stranger["allowed_address_pairs"] == []


async def test_errors_of_route_creation_name_their_cause(harness: OpenStackHarness) -> None:
    routes = harness.project.routes
    (one,) = await harness.nodes(1)

    with pytest.raises(cloud.FailedPrecondition, match="bare has no internal IPv4 address"):
        await created(routes, node("bare"), CIDR)
    with pytest.raises(cloud.InvalidArgument, match=r"'10\.120' is not a CIDR"):
        await created(routes, one, "10.120")
    outside = node("out", addresses=[cloud.address("InternalIP", "192.0.2.1")])
    with pytest.raises(cloud.InvalidArgument, match="nexthop is not connected"):
        await created(routes, outside, CIDR)
    harness.service.settings.router_routes = 0
    with pytest.raises(cloud.ResourceExhausted, match="number of routes"):
        await created(routes, one, CIDR)
    harness.service.cloud.routers.clear()
    with pytest.raises(cloud.FailedPrecondition, match="does not exist; correct router-id"):
        await routes.list_routes(CLUSTER)
    with pytest.raises(cloud.FailedPrecondition, match="does not exist; correct router-id"):
        await created(routes, one, CIDR)


@pytest.mark.row("openstack-route-03")
async def test_route_outside_of_the_pod_ranges_is_not_deleted(harness: OpenStackHarness) -> None:
    await harness.foreign_route("10.121.0.0/24")
    async with opened(harness, pods="10.120.0.0/16") as project:
        assert project.routes is not None
        (listed,) = await project.routes.list_routes(CLUSTER)
        before = harness.service.writes
        with pytest.raises(cloud.FailedPrecondition, match=r"outside of --cluster-cidr=10\.120"):
            await project.routes.delete_route(CLUSTER, listed)

    assert (listed.blackhole, listed.target_addresses[0].address) == (True, "10.6.9.9")
    assert harness.service.writes == before


@pytest.mark.parametrize("what", ["create", "delete"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("applied", [False, True])
async def test_a_kill_at_each_write_leaves_no_address_pair(
    harness: OpenStackHarness, what: str, number: int, applied: bool
) -> None:
    """The controller repeats only what the listing shows: a missing or a superfluous route."""
    (one,) = await harness.nodes(1)
    routes: Any = harness.project.routes
    if what == "delete":
        await created(routes, one, CIDR)
    fault = Fault(operation=harness.any_write, skip=number - 1, kind="drop", applied=applied)
    await harness.fail(fault)
    with pytest.raises(cloud.Unavailable):
        await (created(routes, one, CIDR) if what == "create" else delete_all(harness))
    await harness.heal()

    if what == "create" and not await harness.routes():
        await created(routes, one, CIDR)
    await delete_all(harness)

    assert (await harness.routes(), pairs(harness, one)) == ([], [])


async def test_no_routes_without_a_router(harness: OpenStackHarness) -> None:
    harness.extra["Route"] = {"router-id": ""}
    async with opened(harness) as project:
        assert project.routes is None
        assert project.set_informers is None
