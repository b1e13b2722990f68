"""The cloud's routes: one for each range of a table, to whoever has the gateway."""

from __future__ import annotations

import random

import pytest

from providers.sim import world, worlds
from providers.sim.world_routes import NewRoute, RouteChange
from tests.unit.providers.sim.conftest import refused


@pytest.fixture
def cloud() -> worlds.Worlds:
    return worlds.Worlds(random.Random(1))


def order(destination: str = "10.9.0.0/24", **fields: str) -> NewRoute:
    return NewRoute(destination=destination, gateway=fields.pop("gateway", "10.0.0.1"), **fields)


def test_a_route_leads_to_whoever_has_the_gateway(cloud: worlds.Worlds) -> None:
    made = cloud.routes.create(order())
    addresses = (world.Address(kind="private", value="10.0.0.1"),)
    owner = cloud.instances.put(world.GivenInstance(name="a", addresses=addresses))
    owned = cloud.routes.get(made.id)
    cloud.instances.delete(owner.id)

    assert (made.target, made.target_name) == (None, None)
    assert (owned.target, owned.target_name) == (owner.id, "a")
    assert cloud.routes.list()[0].target is None


@pytest.mark.parametrize("wrong", [order("10.9.0.1/24"), order("all"), order(gateway="a")], ids=str)
def test_impossible_orders(cloud: worlds.Worlds, wrong: NewRoute) -> None:
    with refused("invalid"):
        cloud.routes.create(wrong)


def test_a_range_has_one_route_in_each_table(cloud: worlds.Worlds) -> None:
    cloud.routes.create(order())
    cloud.routes.create(order(cluster="other"))

    with refused("conflict"):
        cloud.routes.create(order(gateway="10.0.0.2"))

    assert [one.cluster for one in cloud.routes.list(cluster="other")] == ["other"]


def test_the_administrator_alters_and_removes(cloud: worlds.Worlds) -> None:
    made = cloud.routes.create(order())

    changed = cloud.routes.change(made.id, RouteChange(gateway="10.0.0.7"))
    cloud.routes.delete(made.id)

    assert (changed.gateway, changed.destination) == ("10.0.0.7", "10.9.0.0/24")
    for gone in (cloud.routes.delete, cloud.routes.get):
        with refused("not_found"):
            gone(made.id)


def test_names_of_everything(cloud: worlds.Worlds) -> None:
    route = cloud.routes.create(order(name="r"))
    instance = cloud.instances.put(world.GivenInstance(name="a"))

    assert cloud.name_of(route.id) == "r"
    assert cloud.name_of(instance.id) == "a"
    assert cloud.name_of("nothing") == ""
