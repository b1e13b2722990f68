"""A start without needless work, and looks for drift."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ccm.base import clock
from ccm.cloud.errors import ImplementedElsewhere, Internal, RetryAfter, Unavailable
from tests.support.services import FakeDigests, World

pytestmark = pytest.mark.virtual_time

OTHER_PORT = [{"port": 81, "protocol": "TCP", "targetPort": 80}]


async def settled(services: int, *, digests: bool = True) -> World:
    """A world that a first daemon brought to rest."""
    world = World(digests=digests)
    for name in ("n1", "n2"):
        world.node(name)
    for number in range(services):
        world.service(f"s{number}")
    async with world.running():
        await world.pass_time(60)
    assert len(world.balancers.held) == services
    world.forget()
    return world


@asynccontextmanager
async def restarted(
    services: int,
    *,
    digests: bool = True,
    faults: Mapping[str, Exception] | None = None,
    slow: str = "",
    **settings: Any,
) -> AsyncIterator[World]:
    """That world, and a second daemon in it."""
    world = await settled(services, digests=digests)
    world.balancers.faults |= faults or {}
    world.balancers.slow |= {slow}
    async with world.running(**settings):
        yield world


@pytest.mark.row("service-restart-02")
async def test_a_restart_ensures_exactly_what_differs() -> None:
    world = await settled(20)
    for number in range(5):
        world.change(f"s{number}", ports=OTHER_PORT)
    for name in list(world.balancers.held)[10:15]:
        world.balancers.held[name] = ("altered", ())
    del world.balancers.held[list(world.balancers.held)[19]]

    async with world.running():
        await world.pass_time(600)

        assert world.balancers.calls == ["list"] + ["ensure"] * 11
        world.forget()
        world.node("n3")
        await world.pass_time(60)
        assert len(world.balancers.of("update")) == 20


async def test_a_restart_puts_back_what_was_taken_away_meanwhile() -> None:
    world = await settled(2)
    address = world.address("s0")
    world.wipe_status("s0")
    world.meta("s1", finalizers=None)

    async with world.running():
        await world.pass_time(600)

        assert world.balancers.calls == ["list"]
        assert world.address("s0") == address
        assert world.finalizers("s1")


@pytest.mark.row("service-restart-01")
async def test_without_a_listing_every_service_is_ensured_once() -> None:
    async with restarted(3, digests=False) as world:
        await world.pass_time(600)

        assert world.balancers.calls == ["ensure"] * 3
        assert world.patches == []


@pytest.mark.row("service-restart-03")
async def test_a_listing_that_fails_is_tried_again_then_given_up() -> None:
    async with restarted(3, faults={"list": Unavailable("down")}) as world:
        await world.pass_time(600)

        assert world.balancers.calls == ["list"] * 4 + ["ensure"] * 3


@pytest.mark.parametrize(
    "trouble",
    [{"slow": "list"}, {"faults": {"list": RetryAfter("busy", seconds=3600)}}],
    ids=["hangs", "asks to wait"],
)
async def test_a_listing_is_waited_for_a_minute_in_all(trouble: dict[str, Any]) -> None:
    async with restarted(3, **trouble) as world:
        began = clock.monotonic()
        await world.pass_time(120)

        assert world.balancers.calls == ["list"] + ["ensure"] * 3
        assert all(60 <= at - began <= 62 for at in world.balancers.at)


async def test_a_service_that_was_never_served_does_not_wait_for_the_listing() -> None:
    world = await settled(3)
    world.service("new")
    world.balancers.slow.add("list")

    async with world.running():
        await world.pass_time(1)

        assert world.balancers.of("ensure") == [("new", ("n1", "n2"))]
        assert world.address("new")


async def test_a_digest_that_cannot_be_computed_means_ensure_or_elsewhere() -> None:
    elsewhere = ImplementedElsewhere("not ours")
    faults = {"digest s0": Internal("boom"), "digest s1": elsewhere}
    async with restarted(3, faults=faults) as world:
        await world.pass_time(600)

        assert world.balancers.log == [("list", "", ()), ("ensure", "s0", ("n1", "n2"))]


async def test_a_service_that_vanishes_before_the_start_is_over_loses_its_balancer() -> None:
    async with restarted(2, slow="list") as world:
        world.vanish("default/s1")
        await world.pass_time(10)

        assert world.balancers.of("delete") == [("s1", ())]


async def test_a_service_being_deleted_without_our_finalizer_is_cleaned_up_after_a_start() -> None:
    world = await settled(1)
    world.cache_lags = True
    world.meta("s0", finalizers=["foo"], deletionTimestamp="2026-01-01T00:00:00Z")
    world.cache_lags = False

    async with world.running():
        await world.pass_time(10)

        assert world.balancers.held == {}
        assert world.finalizers("s0") == ["foo"]


@pytest.mark.row("service-drift-01")
async def test_drift_is_not_looked_for_unless_asked() -> None:
    async with restarted(2) as world:
        world.balancers.held.clear()
        await world.pass_time(100_000)

        assert set(world.balancers.calls) == {"list"}


@pytest.mark.row("service-drift-01")
async def test_drift_is_found_and_set_right_within_the_budget() -> None:
    async with restarted(6, drift_period_s=100, drift_budget=2) as world:
        await world.pass_time(60)
        for name in list(world.balancers.held)[:3]:
            world.balancers.held[name] = ("altered", ())
        world.forget()
        await world.pass_time(61)
        assert world.balancers.calls == ["list", "ensure", "ensure"]
        await world.pass_time(121)

        assert world.balancers.calls.count("ensure") == 3
        assert not [held for held in world.balancers.held.values() if held[0] == "altered"]


async def test_a_balancer_with_another_address_has_drifted() -> None:
    async with restarted(1, drift_period_s=100) as world:
        await world.pass_time(60)
        world.balancers.address = "1.2.3.4"
        await world.pass_time(61)

        assert world.address("s0") == "1.2.3.4"


@pytest.mark.row("service-drift-02")
async def test_without_a_listing_some_are_ensured_in_turn_and_nobody_is_told() -> None:
    async with restarted(4, digests=False, drift_period_s=100, drift_budget=2) as world:
        await world.pass_time(60)
        world.forget()
        await world.pass_time(240)

        assert sorted(name for _, name, _ in world.balancers.log) == ["s0", "s1", "s2", "s3"]
        assert (world.events, world.patches) == ([], [])


async def test_a_drift_check_whose_listing_fails_changes_nothing() -> None:
    async with restarted(2, drift_period_s=100) as world:
        await world.pass_time(60)
        world.balancers.faults["list"] = Unavailable("down")
        world.forget()
        await world.pass_time(61)

        assert world.balancers.calls == ["list"]


async def test_what_changed_while_the_listing_was_made_is_not_drift() -> None:
    world = await settled(2)
    assert isinstance(world.balancers, FakeDigests)

    async with world.running(drift_period_s=100):
        await world.pass_time(60)
        world.forget()
        world.balancers.slow.add("list")
        await world.pass_time(61)
        world.change("s0", ports=OTHER_PORT)
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(10)

        assert world.balancers.log == [("list", "", ()), ("ensure", "s0", ("n1", "n2"))]
