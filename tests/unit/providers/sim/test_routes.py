"""The provider's routes, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ccm import cloud
from providers import sim
from providers.sim import faults, routes, server, traffic, world, world_routes

CLUSTER = "kubernetes"


@pytest_asyncio.fixture
async def provider(url: str) -> AsyncIterator[routes.SimRoutes]:
    context = cloud.Context(config=f"url: {url}\ntoken: secret\ntimeout: 2s".encode())
    async with sim.open_cloud(context) as found:
        assert isinstance(found.routes, routes.SimRoutes)
        yield found.routes


def put(service: server.Service, name: str, *ips: str) -> None:
    addresses = tuple(world.Address(kind="private", value=ip) for ip in ips)
    service.world.put(world.GivenInstance(id=name, name=name, addresses=addresses))


def route(target: str, cidr: str = "10.120.0.0/24", *ips: str) -> cloud.Route:
    return cloud.Route(
        destination_cidr=cidr,
        target_node=target,
        target_addresses=[cloud.address("InternalIP", ip) for ip in ips],
    )


async def test_a_route_is_made_listed_and_deleted(
    service: server.Service, provider: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1")

    await provider.create_route(CLUSTER, "uid", route("a", "10.120.0.0/24", "10.0.0.1"))
    (listed,) = await provider.list_routes(CLUSTER)
    await provider.delete_route(CLUSTER, listed)
    await provider.delete_route(CLUSTER, listed)

    assert (listed.target_node, listed.destination_cidr) == ("a", "10.120.0.0/24")
    assert not listed.blackhole
    assert service.worlds.routes.list() == []
    assert service.calls.counts["create_route"] == 1


async def test_creating_twice_is_one_route(
    service: server.Service, provider: routes.SimRoutes
) -> None:
    wanted = route("a", "10.120.0.0/24", "10.0.0.1")
    service.script.add(faults.Fault(kind="drop", operation="create_route", count=1, applied=True))
    with pytest.raises(cloud.Unavailable):
        await provider.create_route(CLUSTER, "uid", wanted)

    await provider.create_route(CLUSTER, "uid", wanted)

    assert len(service.worlds.routes.list()) == 1
    with pytest.raises(cloud.AlreadyExists):
        await provider.create_route(CLUSTER, "uid", route("b", "10.120.0.0/24", "10.0.0.2"))


async def test_a_node_without_addresses_is_looked_up(
    service: server.Service, provider: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1", "fd00::1")

    await provider.create_route(CLUSTER, "uid", route("a"))
    await provider.create_route(CLUSTER, "uid", route("a", "fd00:1::/64"))

    gateways = [one.gateway for one in service.worlds.routes.list()]
    assert gateways == ["10.0.0.1", "fd00::1"]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (route("a", "nonsense", "10.0.0.1"), cloud.InvalidArgument),
        (route("nobody"), cloud.FailedPrecondition),
        (route("a", "fd00::/64", "10.0.0.1"), cloud.FailedPrecondition),
    ],
)
async def test_impossible_routes(
    provider: routes.SimRoutes, wanted: cloud.Route, error: type[cloud.CloudError]
) -> None:
    with pytest.raises(error):
        await provider.create_route(CLUSTER, "uid", wanted)


async def test_a_gateway_of_nobody_is_a_blackhole(
    service: server.Service, provider: routes.SimRoutes
) -> None:
    put(service, "a", "10.0.0.1")
    await provider.create_route(CLUSTER, "uid", route("a"))

    service.world.delete("a")
    (lost,) = await provider.list_routes(CLUSTER)
    put(service, "b", "10.0.0.1")
    (moved,) = await provider.list_routes(CLUSTER)

    assert (lost.target_node, lost.blackhole) == ("", True)
    assert (moved.target_node, moved.blackhole) == ("b", False)


async def test_other_tables_are_not_ours(
    service: server.Service, provider: routes.SimRoutes
) -> None:
    await provider.create_route("other", "uid", route("a", "10.120.0.0/24", "10.0.0.1"))

    assert await provider.list_routes(CLUSTER) == []
    await provider.create_route(CLUSTER, "uid", route("a", "10.120.0.0/24", "10.0.0.1"))

    assert len(service.worlds.routes.list()) == 2


async def test_a_used_up_quota(service: server.Service, provider: routes.SimRoutes) -> None:
    service.change_settings(traffic.Settings(route_quota=1))
    await provider.create_route(CLUSTER, "uid", route("a", "10.120.0.0/24", "10.0.0.1"))

    with pytest.raises(cloud.ResourceExhausted, match="quota of 1 routes"):
        await provider.create_route(CLUSTER, "uid", route("a", "10.120.1.0/24", "10.0.0.1"))


async def test_listings_come_in_pages(service: server.Service, provider: routes.SimRoutes) -> None:
    service.change_settings(traffic.Settings(page_size=2))
    for number in range(5):
        service.worlds.routes.create(
            world_routes.NewRoute(
                destination=f"10.120.{number}.0/24", gateway="10.0.0.1", cluster=CLUSTER
            )
        )

    assert len(await provider.list_routes(CLUSTER)) == 5
    assert service.calls.counts["list_routes"] == 3
