"""Orders of instances: limits, repetitions, and how instances go."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from providers.sim import traffic, world, world_orders, world_volumes, worlds
from tests.handclock import HandClock
from tests.unit.providers.sim.conftest import refused


@pytest.fixture
def cloud(hand: HandClock) -> worlds.Worlds:
    return worlds.Worlds(random.Random(7))


def order(cloud: worlds.Worlds, name: str = "a", **fields: Any) -> world.Instance:
    return cloud.orders.create(world_orders.Order(name=name, **fields))


def test_an_order_that_comes_again_is_the_same(cloud: worlds.Worlds, hand: HandClock) -> None:
    made = order(cloud, token="t-1")
    hand.advance(60.0)

    assert order(cloud, token="t-1").id == made.id
    assert order(cloud, token="t-2").id != made.id
    assert order(cloud).id != order(cloud).id


@pytest.mark.parametrize("removal_s", [0.0, 30.0])
def test_an_order_whose_instance_went_is_a_new_one(cloud: worlds.Worlds, removal_s: float) -> None:
    made = order(cloud, token="t-1")
    cloud.instances.removal_s = removal_s
    cloud.instances.delete(made.id)

    assert order(cloud, token="t-1").id != made.id


def test_no_more_are_ordered_than_there_may_be(cloud: worlds.Worlds) -> None:
    cloud.use(traffic.Settings(instance_quota=2, zone_capacity=1))
    made = order(cloud, zone="z1", token="t-1")

    with refused("no_capacity"):
        order(cloud, zone="z1")
    order(cloud, zone="z2")
    with refused("quota_exceeded"):
        order(cloud, zone="z3")
    assert order(cloud, zone="z1", token="t-1").id == made.id
    cloud.instances.delete(made.id)
    order(cloud, zone="z1")


def test_user_data_is_kept_for_the_administrator(cloud: worlds.Worlds) -> None:
    made = order(cloud, user_data="aGk=")

    assert cloud.orders.user_data(made.id).user_data == "aGk="
    assert "aGk=" not in str(cloud.snapshot())
    with refused("not_found"):
        cloud.orders.user_data("i-none")
    with refused("invalid"):
        order(cloud, user_data="no base 64")


def test_an_instance_takes_its_time_to_go(cloud: worlds.Worlds, hand: HandClock) -> None:
    cloud.use(traffic.Settings(removal_s=10.0, linger_s=5.0))
    made = order(cloud)
    states = []

    for _ in range(3):
        cloud.instances.delete(made.id)
        states.append(cloud.instances.get(made.id).state)
        with refused("conflict"):
            cloud.instances.update(made.id, world.Change(type="big"))
        hand.advance(6.0)

    assert states == ["deleting", "deleting", "deleted"]
    with refused("not_found"):
        cloud.instances.get(made.id)


def test_the_administrator_loses_one_at_once(cloud: worlds.Worlds, hand: HandClock) -> None:
    cloud.use(traffic.Settings(removal_s=10.0))
    made = order(cloud)
    cloud.instances.delete(made.id)

    cloud.instances.delete(made.id, at_once=True)

    assert cloud.instances.snapshot() == ()
    hand.advance(2 * world.HISTORY_S)
    assert order(cloud, "b").name == "b"  # which buries what is forgotten, each once


def test_allowed_addresses_want_an_instance_that_started(
    cloud: worlds.Worlds, hand: HandClock
) -> None:
    made, change = order(cloud), world.Change(allowed_addresses=("10.1.0.0/24",))

    with refused("busy"):
        cloud.instances.update(made.id, change)
    hand.advance(cloud.instances.transition_s)

    assert cloud.instances.update(made.id, change).allowed_addresses == ("10.1.0.0/24",)


def test_what_is_wrong_with_an_instance_outlives_a_restart(cloud: worlds.Worlds) -> None:
    made = order(cloud)
    wrong = world.Interference(joins=False, state="error", reason="no host")
    cloud.instances.update(made.id, wrong)

    again = worlds.Worlds(random.Random(8))
    again.load(msgspec.json.decode(msgspec.json.encode(cloud.snapshot()), type=worlds.Saved))

    found = again.instances.get(made.id)
    assert (found.state, found.reason, found.joins) == ("error", "no host", False)


def test_volumes_are_attached_as_long_as_their_instance_is_there(cloud: worlds.Worlds) -> None:
    volume = cloud.volumes.create(world_volumes.NewVolume(name="v", size_gib=1, labels={"k": "v"}))
    made = order(cloud, volumes=(volume.id,))

    assert cloud.volumes.get(volume.id).instance == made.id
    with refused("busy"):
        cloud.volumes.delete(volume.id)
    with refused("conflict"):
        order(cloud, "b", volumes=(volume.id,))
    with refused("not_found"):
        order(cloud, "c", volumes=("v-none",))
    assert [one.name for one in cloud.instances.snapshot()] == ["a"]

    cloud.instances.delete(made.id)
    assert cloud.volumes.list(label=("k", "v")) == [volume]
    assert cloud.volumes.list(label=("k", "w")) == []
    cloud.volumes.delete(volume.id)
    assert cloud.volumes.list() == []
    with refused("not_found"):
        cloud.volumes.delete(volume.id)


def test_volumes_outlive_a_restart(cloud: worlds.Worlds) -> None:
    volume = cloud.volumes.create(world_volumes.NewVolume(name="v", size_gib=1))
    order(cloud, volumes=(volume.id,))
    revision = cloud.revision

    again = worlds.Worlds(random.Random(8))
    again.load(msgspec.json.decode(msgspec.json.encode(cloud.snapshot()), type=worlds.Saved))

    assert again.volumes.list() == cloud.volumes.list()
    cloud.volumes.create(world_volumes.NewVolume(name="w", size_gib=1))
    assert cloud.revision > revision


@pytest.mark.parametrize(("name", "size_gib"), [("", 1), ("v", 0)])
def test_an_odd_volume_is_refused(cloud: worlds.Worlds, name: str, size_gib: int) -> None:
    with refused("invalid"):
        cloud.volumes.create(world_volumes.NewVolume(name=name, size_gib=size_gib))


def test_a_listing_may_be_of_one_label(cloud: worlds.Worlds) -> None:
    for name, labels in {"a": {"k": "v"}, "b": {"k": "w"}, "c": {}, "d": {"k": "v"}}.items():
        cloud.instances.put(world.GivenInstance(name=name, labels=labels))

    first = cloud.instances.page(limit=1, label=("k", "v"))
    assert first.after is not None
    rest = cloud.instances.page(limit=1, label=("k", "v"), after=first.after)

    assert [one.name for one in (*first.instances, *rest.instances)] == ["a", "d"]
    assert rest.after is None
