"""How load balancers go: with their Services, and with Services that nobody deleted in order."""

from __future__ import annotations

import pytest

from ccm.cloud.errors import ImplementedElsewhere, Internal
from ccm.kube.errors import ServerError
from tests.support.services import KEY, F, World, served, started

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("service-cleanup-01")
async def test_our_finalizer_never_holds_a_service_for_ever_whoever_put_it_there() -> None:
    async with started() as world:
        world.service()
        await world.pass_time(1)
        world.change(type="ClusterIP")
        await world.pass_time(1)
        assert world.finalizers() == []

        world.meta(finalizers=[F])
        await world.pass_time(1)
        assert world.finalizers() == []
        world.meta(finalizers=[F], deletionTimestamp="2026-01-01T00:00:00Z")
        await world.pass_time(1)
        assert KEY not in world.objects


@pytest.mark.row("service-sync-04")
async def test_a_service_that_wants_a_balancer_again_in_the_middle_of_a_removal_gets_one() -> None:
    """The load balancer is gone, but the finalizer could not be taken away yet."""
    async with started() as world:
        world.service()
        await world.pass_time(1)
        world.write_faults = [ServerError(status=500, reason="Boom", message="no")]
        world.change(type="ClusterIP")
        await world.pass_time(1)
        assert (world.balancers.held, world.finalizers()) == ({}, [F])

        world.change(type="LoadBalancer")
        await world.pass_time(10)

        assert len(world.balancers.held) == 1
        assert world.finalizers() == [F]


@pytest.mark.row("service-delete-01")
async def test_a_service_that_vanished_without_our_finalizer_loses_its_balancer() -> None:
    async with served() as world:
        world.vanish()
        await world.pass_time(1)

        assert world.balancers.calls == ["delete"]
        assert world.balancers.held == {}
        assert world.reasons() == ["DeletingLoadBalancer", "DeletedLoadBalancer"]


@pytest.mark.row("service-delete-02")
async def test_a_service_deleted_without_our_finalizer_but_with_another_loses_it_too() -> None:
    async with started() as world:
        world.service(finalizers=["foo"])
        await world.pass_time(1)
        world.forget()

        world.cache_lags = True
        world.meta(finalizers=["foo"], deletionTimestamp="2026-01-01T00:00:00Z")
        world.catch_up()
        await world.pass_time(1)

        assert world.balancers.held == {}
        assert world.finalizers() == ["foo"]
        world.forget()
        await world.pass_time(1000)
        assert world.balancers.log == []


@pytest.mark.row("service-delete-02")
async def test_a_service_that_loses_its_finalizer_while_it_waits_for_its_cleanup() -> None:
    """It was there at the start, and vanishes while the only worker is busy with another."""
    world = World()
    world.service("a", type_="ClusterIP", finalizers=[F])
    world.service("b", type_="ClusterIP", finalizers=[F])
    world.balancers.held = {"auidb2": ((), ())}
    world.balancers.slow.add("delete")
    async with world.running():
        await world.pass_time(1)
        assert world.balancers.calls == ["delete"]

        world.vanish("default/b")
        world.balancers.release.set()
        await world.pass_time(10)

        assert world.balancers.held == {}


@pytest.mark.row("service-elsewhere-01")
async def test_a_service_served_elsewhere_loses_our_finalizer_all_the_same() -> None:
    """Whichever of the provider's calls says so."""
    async with started() as world:
        world.service()
        await world.pass_time(1)
        world.balancers.faults["get"] = ImplementedElsewhere("not ours")

        world.delete()
        await world.pass_time(10)

        assert KEY not in world.objects


@pytest.mark.row("service-uid-01")
async def test_a_service_made_anew_under_its_name_has_the_old_balancer_removed_first() -> None:
    async with served() as world:
        world.service(uid="other")
        await world.pass_time(1)

        assert world.balancers.calls == ["delete", "ensure"]
        assert [each.uid for each in world.balancers.given] == ["uid-web-1", "other"]
        assert list(world.balancers.held) == ["aother"]


@pytest.mark.row("service-sync-06")
async def test_without_a_balancer_nothing_is_deleted_but_the_finalizer() -> None:
    async with served() as world:
        world.meta(finalizers=[F, "foo"])
        world.balancers.held.clear()
        world.delete()
        await world.pass_time(1)

        assert world.balancers.calls == ["get"]
        assert world.finalizers() == ["foo"]
        assert world.reasons() == ["DeletedLoadBalancer"]


@pytest.mark.row("service-sync-08")
async def test_a_provider_may_ask_for_every_deletion() -> None:
    world = World(cloud={"always_ensure_deleted": True})
    world.service(finalizers=[F], deleting=True)
    async with world.running():
        await world.pass_time(1)

        assert world.balancers.calls == ["delete"]
        assert KEY not in world.objects


@pytest.mark.row("service-sync-09")
async def test_a_failed_removal_keeps_the_finalizer() -> None:
    async with served() as world:
        world.balancers.faults["delete"] = Internal("boom")

        world.delete()
        await world.pass_time(16)

        assert world.balancers.calls == ["get", "delete", "delete", "delete"]
        assert world.finalizers() == [F]
        assert world.reasons() == ["DeletingLoadBalancer", "SyncLoadBalancerFailed"] * 3


@pytest.mark.row("service-delete-03")
async def test_the_deletion_path_reports_its_own_error_and_tries_again() -> None:
    async with served() as world:
        world.balancers.faults["delete"] = Internal("boom")

        world.vanish()
        await world.pass_time(6)
        assert world.reasons() == ["DeletingLoadBalancer", "DeleteLoadBalancerFailed"] * 2
        assert world.messages[1] == "Error deleting load balancer: boom"

        world.balancers.faults.clear()
        await world.pass_time(20)
        assert world.balancers.held == {}
        assert world.balancers.calls == ["delete"] * 3


@pytest.mark.row("service-delete-04")
async def test_a_service_that_was_never_served_vanishes_unnoticed() -> None:
    async with started(slow="ensure") as world:
        world.service("first")
        world.service("second")
        await world.pass_time(1)
        world.vanish("default/second")
        world.balancers.release.set()
        await world.pass_time(60)

        assert world.balancers.log == [("ensure", "first", ())]
