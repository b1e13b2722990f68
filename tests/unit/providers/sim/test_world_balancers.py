"""The cloud's load balancers: states, refusals, addresses."""

from __future__ import annotations

import random

import pytest

from providers.sim import world_balancers
from providers.sim.world_balancers import Interference, Listener, NewBalancer, Plan
from tests.handclock import HandClock
from tests.unit.providers.sim.conftest import refused

WEB = Listener(protocol="TCP", port=80, target_port=30080)


@pytest.fixture
def balancers(hand: HandClock) -> world_balancers.Balancers:
    return world_balancers.Balancers(random.Random(1))


def order(name: str = "web", **fields: object) -> NewBalancer:
    return NewBalancer(name=name, listeners=(WEB,), **fields)  # type: ignore[arg-type]


def test_a_slow_one_is_provisioning_and_then_active(
    balancers: world_balancers.Balancers, hand: HandClock
) -> None:
    balancers.provision_s = 10.0

    made = balancers.create(order())
    hand.advance(4.0)
    half = balancers.get(made.id)
    hand.advance(6.0)

    assert (made.state, made.ready_in_s) == ("provisioning", 10.0)
    assert (half.state, half.ready_in_s) == ("provisioning", 6.0)
    assert (balancers.get(made.id).state, balancers.get(made.id).ready_in_s) == ("active", 0.0)


def test_one_on_its_way_refuses_changes_but_not_its_deletion(
    balancers: world_balancers.Balancers, hand: HandClock
) -> None:
    balancers.change_s = 5.0
    made = balancers.create(order())
    changed = balancers.set_members(made.id, ["10.0.0.1"])

    with refused("busy"):
        balancers.change(made.id, Plan(listeners=(WEB,)))

    assert changed.state == "updating"
    balancers.delete(made.id)
    assert balancers.list() == []


@pytest.mark.parametrize(
    "wrong",
    [
        NewBalancer(name="", listeners=(WEB,)),
        NewBalancer(name="a", listeners=()),
        NewBalancer(name="a", listeners=(WEB, WEB)),
        NewBalancer(name="a", listeners=(WEB,), families=()),
        NewBalancer(name="a", listeners=(WEB,), source_ranges=("all",)),
    ],
    ids=["no_name", "no_listener", "port_twice", "no_family", "no_range"],
)
def test_impossible_orders(balancers: world_balancers.Balancers, wrong: NewBalancer) -> None:
    with refused("invalid"):
        balancers.create(wrong)


@pytest.mark.parametrize("members", [["a"], ["10.0.0.1", "10.0.0.1"]])
def test_impossible_members(balancers: world_balancers.Balancers, members: list[str]) -> None:
    made = balancers.create(order())

    with refused("invalid"):
        balancers.set_members(made.id, members)


def test_a_name_is_taken_once(balancers: world_balancers.Balancers) -> None:
    balancers.create(order())

    with refused("conflict"):
        balancers.create(order())


def test_addresses_follow_family_and_network(balancers: world_balancers.Balancers) -> None:
    made = balancers.create(order())
    both = balancers.change(made.id, Plan(listeners=(WEB,), families=("IPv4", "IPv6")))
    private = balancers.change(made.id, Plan(listeners=(WEB,), internal=True))
    other = balancers.create(order("other"))

    assert [one.ip for one in made.ingress] == ["198.18.0.1"]
    assert [one.ip for one in both.ingress] == ["198.18.0.1", "2001:db8:1b::1"]
    assert [one.ip for one in private.ingress] == ["10.254.0.1"]
    assert [one.ip for one in other.ingress] == ["198.18.0.2"]


def test_the_administrator_alters_what_he_likes(balancers: world_balancers.Balancers) -> None:
    balancers.provision_s = 100.0
    made = balancers.create(order())

    broken = balancers.interfere(
        made.id, Interference(state="error", reason="no host", members=("10.0.0.1",))
    )
    healed = balancers.interfere(made.id, Interference(state="active", protected=True))

    assert (broken.state, broken.reason, broken.members) == ("error", "no host", ("10.0.0.1",))
    assert (healed.state, healed.reason) == ("active", "")
    with refused("protected"):
        balancers.delete(made.id)
    balancers.remove(made.id)
    assert balancers.list() == []


def test_lists_are_of_a_name_or_a_cluster(balancers: world_balancers.Balancers) -> None:
    for name, cluster in (("a", "x"), ("b", "y"), ("c", "x")):
        balancers.create(order(name, cluster=cluster))

    assert [one.name for one in balancers.list()] == ["a", "b", "c"]
    assert [one.name for one in balancers.list(cluster="x")] == ["a", "c"]
    assert [one.name for one in balancers.list(name="b")] == ["b"]
