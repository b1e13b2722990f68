"""What the provider's routes do beyond the contract (`tests/contract/test_sim.py`)."""

from __future__ import annotations

import pytest

from ccm import cloud
from providers.sim import routes, server, traffic, world

CLUSTER = "kubernetes"


@pytest.fixture
def table(provider: cloud.Cloud) -> routes.SimRoutes:
    assert isinstance(provider.routes, routes.SimRoutes)
    return provider.routes


def put(service: server.Service, name: str, *ips: str) -> None:
    addresses = tuple(world.Address(kind="private", value=ip) for ip in ips)
    service.world.put(world.GivenInstance(id=name, name=name, addresses=addresses))


def route(target: str, cidr: str = "10.120.0.0/24", *ips: str) -> cloud.Route:
    return cloud.Route(
        destination_cidr=cidr,
        target_node=target,
        target_addresses=[cloud.address("InternalIP", ip) for ip in ips],
    )


async def test_a_node_without_addresses_is_looked_up(
    service: server.Service, table: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1", "fd00::1")

    await table.create_route(CLUSTER, "uid", route("a"))
    await table.create_route(CLUSTER, "uid", route("a", "fd00:1::/64"))

    gateways = [one.gateway for one in service.worlds.routes.list()]
    assert gateways == ["10.0.0.1", "fd00::1"]


async def test_impossible_routes(service: server.Service, table: routes.SimRoutes) -> None:
    service.change_settings(traffic.Settings(route_quota=1))
    await table.create_route(CLUSTER, "uid", route("a", "10.120.0.0/24", "10.0.0.1"))

    refusals: dict[type[cloud.CloudError], list[cloud.Route]] = {
        cloud.InvalidArgument: [route("a", "nonsense", "10.0.0.1")],
        cloud.FailedPrecondition: [route("nobody"), route("a", "fd00::/64", "10.0.0.1")],
        cloud.AlreadyExists: [route("b", "10.120.0.0/24", "10.0.0.2")],
        cloud.ResourceExhausted: [route("a", "10.120.1.0/24", "10.0.0.1")],
    }
    for error, several in refusals.items():
        for wanted in several:
            with pytest.raises(error):
                await table.create_route(CLUSTER, "uid", wanted)


async def test_a_gateway_that_went_over_to_another_leads_there(
    service: server.Service, table: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1")
    await table.create_route(CLUSTER, "uid", route("a"))
    service.world.delete("a")
    (nowhere,) = await table.list_routes(CLUSTER)
    put(service, "b", "10.0.0.1")

    (moved,) = await table.list_routes(CLUSTER)

    assert (nowhere.target_node, nowhere.blackhole) == ("", True)
    assert [one.address for one in nowhere.target_addresses] == ["10.0.0.1"]
    assert (moved.target_node, moved.blackhole) == ("b", False)
