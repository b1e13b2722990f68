"""The instances of the simulated cloud, in a time of their own."""

from __future__ import annotations

import random

import pytest

from providers.sim import world
from tests.handclock import HandClock
from tests.unit.providers.sim.conftest import refused


@pytest.fixture
def cloud(hand: HandClock) -> world.World:
    return world.World(random.Random(7))


def put(cloud: world.World, name: str = "a", state: world.State = "running") -> str:
    return cloud.put(world.GivenInstance(name=name, state=state)).id


def names(page: world.Page) -> list[str]:
    return [one.name for one in page.instances]


def test_an_ordered_instance_starts_and_then_runs(cloud: world.World, hand: HandClock) -> None:
    made = cloud.create(world.NewInstance(name="a"))

    states = [made.state]
    hand.advance(cloud.transition_s)
    states.append(cloud.get(made.id).state)

    assert states == ["starting", "running"]


def test_stopping_and_starting_pass_through_the_states_on_the_way(
    cloud: world.World, hand: HandClock
) -> None:
    one = put(cloud)

    states = []
    for action in ("stop", "start"):
        states.append(cloud.act(one, action).state)
        hand.advance(cloud.transition_s)
        states.append(cloud.get(one).state)

    assert states == ["stopping", "stopped", "starting", "running"]


@pytest.mark.parametrize(("action", "state"), [("start", "running"), ("stop", "stopped")])
def test_repeating_an_action_changes_nothing(
    cloud: world.World, action: world.Action, state: world.State
) -> None:
    assert cloud.act(put(cloud, state=state), action).state == state


@pytest.mark.parametrize("action", ["start", "stop"])
@pytest.mark.parametrize("state", ["starting", "stopping", "deleted"])
def test_interfering_with_an_instance_on_its_way_is_a_conflict(
    cloud: world.World, action: world.Action, state: world.State
) -> None:
    with refused("conflict"):
        cloud.act(put(cloud, state=state), action)


def test_a_change_on_the_way_survives_the_arrival(cloud: world.World, hand: HandClock) -> None:
    one = put(cloud, state="starting")

    cloud.update(one, world.Change(type="huge"))
    hand.advance(cloud.transition_s)

    assert (cloud.get(one).type, cloud.get(one).state) == ("huge", "running")


def test_labels_are_merged_and_null_removes_one(cloud: world.World) -> None:
    one = cloud.put(world.GivenInstance(name="a", labels={"keep": "1", "drop": "2"})).id

    changed = cloud.update(one, world.Change(labels={"drop": None, "new": "3"}))

    assert changed.labels == {"keep": "1", "new": "3"}


def test_a_deleted_instance_is_gone_and_cannot_be_deleted_again(cloud: world.World) -> None:
    one = put(cloud)

    cloud.delete(one)

    with refused("not_found"):
        cloud.delete(one)
    assert names(cloud.page(limit=10)) == []


def test_a_lingering_instance_shows_as_deleted_until_it_is_gone(
    cloud: world.World, hand: HandClock
) -> None:
    cloud.linger_s = 30.0
    one = put(cloud)

    cloud.delete(one)
    cloud.delete(one)
    shown = [one.state for one in cloud.page(limit=10).instances]
    with refused("conflict"):
        cloud.update(one, world.Change(type="huge"))
    hand.advance(30.0)

    assert shown == ["deleted"]
    assert cloud.snapshot() == ()
    with refused("not_found"):
        cloud.get(one)


def test_deleting_on_the_way_leaves_no_arrival(cloud: world.World, hand: HandClock) -> None:
    one = put(cloud, state="stopping")

    cloud.delete(one)
    hand.advance(cloud.transition_s)

    assert names(cloud.page(limit=10)) == []


def test_a_stale_read_shows_creation_and_deletion_late(cloud: world.World, hand: HandClock) -> None:
    one = put(cloud)
    hand.advance(4.0)
    early = names(cloud.page(limit=10, stale_s=5.0))
    hand.advance(1.0)
    seen = names(cloud.page(limit=10, stale_s=5.0))
    cloud.delete(one)
    hand.advance(4.0)
    ghost = cloud.get(one, stale_s=5.0).state
    hand.advance(1.0)

    assert (early, seen, ghost) == ([], ["a"], "running")
    assert names(cloud.page(limit=10, stale_s=5.0)) == []


@pytest.mark.parametrize("limit", [1, 3, 7, 10])
def test_pages_hold_every_instance_once_in_order_of_creation(
    cloud: world.World, limit: int
) -> None:
    wanted = [f"n{number}" for number in range(7)]
    for name in wanted:
        put(cloud, name)

    pages = [cloud.page(limit=limit)]
    while (after := pages[-1].after) is not None:
        pages.append(cloud.page(limit=limit, after=after))

    assert max(len(page.instances) for page in pages) <= limit
    assert [name for page in pages for name in names(page)] == wanted


def test_a_page_boundary_survives_deletions(cloud: world.World, hand: HandClock) -> None:
    ids = [put(cloud, f"n{number}") for number in range(6)]
    first = cloud.page(limit=3)

    for gone in ids[1:4]:
        cloud.delete(gone)
    hand.advance(world.HISTORY_S + 1)
    put(cloud, "late")

    assert first.after is not None
    assert names(cloud.page(limit=3, after=first.after)) == ["n4", "n5", "late"]


def test_a_name_finds_its_instances_only(cloud: world.World) -> None:
    for name in ("a", "b", "ab", "a"):
        put(cloud, name)

    assert names(cloud.page(limit=10, name="a")) == ["a", "a"]
    assert names(cloud.page(limit=10, name="c")) == []


def test_instances_without_addresses_get_different_private_ones(cloud: world.World) -> None:
    made = [cloud.put(world.GivenInstance(name="a")) for _ in range(300)]

    addresses = {address.value for one in made for address in one.addresses}

    assert len(addresses) == 300


def test_a_seed_repeats_the_ids(hand: HandClock) -> None:
    first, second = (
        [put(cloud) for _ in range(3)]
        for cloud in (world.World(random.Random(1)), world.World(random.Random(1)))
    )

    assert first == second
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([("a", ""), ("", "")], "invalid"),
        ([("a", "x"), ("b", "x")], "conflict"),
        ([("a", ""), ("b", "old")], "conflict"),
    ],
    ids=["no name", "an ID twice", "an ID that exists"],
)
def test_many_instances_are_placed_or_none(
    cloud: world.World, given: list[tuple[str, str]], code: world.Code
) -> None:
    cloud.put(world.GivenInstance(name="old", id="old"))

    with refused(code):
        cloud.put_all([world.GivenInstance(name=name, id=key) for name, key in given])

    assert names(cloud.page(limit=10)) == ["old"]


def test_what_nobody_can_read_any_more_is_forgotten(cloud: world.World, hand: HandClock) -> None:
    one = put(cloud, "a")
    cloud.delete(one)
    hand.advance(world.HISTORY_S + 1)

    again = cloud.put(world.GivenInstance(name="a", id=one))

    assert again.id == one
    assert names(cloud.page(limit=10, name="a")) == ["a"]
