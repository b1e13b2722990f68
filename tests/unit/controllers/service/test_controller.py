"""Services from change to call, write and event; removals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ccm.cloud.errors import ImplementedElsewhere, Internal, RetryAfter
from ccm.kube.errors import Conflict, ServerError
from tests.support.services import KEY, F, World, served, started

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("service-sync-02", "service-idle-01")
async def test_a_new_service_gets_finalizer_balancer_and_address() -> None:
    async with started("n1") as world:
        world.service()
        await world.pass_time(1)

        assert world.balancers.log == [("ensure", "web", ("n1",))]
        assert world.finalizers() == [F]
        assert world.address().startswith("ip-of-auidweb")
        assert world.reasons() == ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]
        assert [sorted(patch) for patch in world.patches] == [["metadata"], ["metadata", "status"]]
        assert F in world.balancers.given[0].finalizers

        world.forget()
        await world.pass_time(1000)
        assert (world.balancers.log, world.patches, world.events) == ([], [], [])


@pytest.mark.parametrize("damage", ["finalizer", "status", "both"])
@pytest.mark.row("service-repair-01")
async def test_what_somebody_took_away_comes_back(damage: str) -> None:
    async with served() as world:
        address = world.address()
        if damage != "status":
            world.meta(finalizers=None)
        if damage != "finalizer":
            world.wipe_status()
        await world.pass_time(1)
        await world.pass_time(10)

        assert world.finalizers() == [F]
        assert world.address() == address
        assert world.balancers.log == []
        assert world.events == []


@pytest.mark.row("service-repair-01")
@pytest.mark.parametrize("damage", ["finalizer", "status"])
async def test_what_somebody_took_away_during_a_call_comes_back_after_it(damage: str) -> None:
    async with started() as world:
        world.service()
        await world.pass_time(1)
        address = world.address()
        world.balancers.slow.add("ensure")
        world.change(ports=[{"port": 81, "protocol": "TCP", "targetPort": 80}])
        await world.pass_time(1)

        if damage == "status":
            world.wipe_status()
        else:
            world.meta(finalizers=None)
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(10)

        assert world.finalizers() == [F]
        assert world.address() == address


async def test_a_service_made_anew_during_a_call_gets_nothing_of_the_old_one() -> None:
    async with started() as world:
        world.balancers.slow.add("ensure")
        world.service()
        await world.pass_time(1)
        world.vanish()
        world.service(uid="other", type_="ClusterIP")
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(100)

        assert world.balancers.held == {}
        assert (world.finalizers(), world.address()) == ([], "")


async def test_a_service_made_anew_before_a_write_gets_nothing_of_the_old_one() -> None:
    world = World()

    def make_anew() -> None:
        world.balancers.slow.add("delete")
        world.vanish()
        world.service(uid="other")

    async with world.running():
        world.service(finalizers=[F])
        world.before_write = make_anew
        await world.pass_time(1)

        assert world.balancers.calls == ["ensure", "delete"]
        assert (world.finalizers(), world.address()) == ([], "")


@pytest.mark.row("service-repair-01")
async def test_somebody_who_insists_does_not_keep_us_busy() -> None:
    async with served() as world:
        for _ in range(100):
            world.wipe_status()
            await world.pass_time(0.1)

        assert len(world.patches) <= 3
        await world.pass_time(6)
        assert world.address()


@pytest.mark.row("service-retry-01")
async def test_failures_come_back_after_5_10_20_to_300_seconds() -> None:
    async with started("n1", faults={"ensure": Internal("boom")}) as world:
        world.service()
        await world.pass_time(2000)

        at = world.balancers.at
        pauses = [round(b - a, 3) for a, b in itertools.pairwise(at)]
        assert pauses[:8] == [5, 10, 20, 40, 80, 160, 300, 300]
        assert world.reasons()[:2] == ["EnsuringLoadBalancer", "SyncLoadBalancerFailed"]
        failed = "Error syncing load balancer: failed to ensure load balancer: boom"
        assert world.messages[1] == failed
        assert world.finalizers() == [F]


@pytest.mark.parametrize("operation", ["ensure", "get", "delete", "update"])
@pytest.mark.row("service-retry-02")
async def test_come_back_later_is_obeyed_from_every_call(operation: str) -> None:
    async with served("n1") as world:
        world.balancers.faults[operation] = RetryAfter("not yet", seconds=42)
        if operation == "update":
            world.node("n2")
            await world.pass_time(1)
        elif operation == "ensure":
            world.change(ports=[{"port": 81, "protocol": "TCP", "targetPort": 80}])
        else:
            world.delete()
        await world.pass_time(59)
        assert not [event for event in world.events if event[1] == "Warning"]
        await world.pass_time(42 * 3 * 1.2 + 1 - 59)

        at = [
            moment
            for moment, call in zip(world.balancers.at, world.balancers.calls, strict=True)
            if call == operation
        ]
        assert all(42 <= b - a <= 42 * 1.2 for a, b in itertools.pairwise(at))
        assert len(at) == 4
        assert len([event for event in world.events if event[1] == "Warning"]) == 1

        world.balancers.faults.clear()
        await world.pass_time(42 * 1.2)
        assert world.balancers.calls[-1] in (operation, "delete")


@pytest.mark.row("service-elsewhere-01")
async def test_a_service_served_elsewhere_is_left_alone() -> None:
    async with started(faults={"ensure": ImplementedElsewhere("not ours")}) as world:
        world.service()
        await world.pass_time(1000)

        assert (world.balancers.calls, world.finalizers(), world.address()) == (["ensure"], [F], "")


@pytest.mark.row("service-order-02")
async def test_without_the_finalizer_the_provider_is_not_called() -> None:
    world = World()
    world.write_faults = [ServerError(status=500, reason="Boom", message="no")]
    async with world.running():
        world.service()
        await world.pass_time(1)
        assert world.balancers.log == []

        await world.pass_time(5)
        assert world.balancers.calls == ["ensure"]


@pytest.mark.row("service-wire-02")
async def test_a_write_that_meets_another_keeps_both() -> None:
    async with started() as world:
        world.before_write = lambda: world.meta(finalizers=["late"])
        world.service()
        await world.pass_time(1)

        assert world.finalizers() == ["late", F]
        world.before_write = lambda: world.meta(finalizers=["late", F, "later"])
        world.change(type="ClusterIP")
        await world.pass_time(1)
        assert world.finalizers() == ["late", "later"]


@pytest.mark.row("service-deleting-01")
async def test_a_service_deleted_before_its_finalizer_was_written_is_not_served() -> None:
    async with started() as world:
        world.before_write = world.delete
        world.service()
        await world.pass_time(10)

        assert "ensure" not in world.balancers.calls
        assert KEY not in world.objects


async def test_a_lagging_cache_does_not_repeat_work() -> None:
    async with started("n1") as world:
        world.service()
        world.cache_lags = True
        await world.pass_time(1)
        writes = len(world.patches)
        world.node("n2")
        await world.pass_time(2)

        assert world.balancers.calls == ["ensure", "update"]
        assert len(world.patches) == writes == 2


@pytest.mark.row("service-label-01", "service-annotations-01")
@pytest.mark.parametrize(
    ("prefixes", "nothing"),
    [
        (None, {"labels": {"a": "b"}}),
        (("lb.fake.io/",), {"annotations": {"kubectl.kubernetes.io/last-applied": "x"}}),
    ],
    ids=["a label", "an annotation without the provider's prefix"],
)
async def test_some_metadata_costs_nothing_and_an_annotation_one_ensure(
    prefixes: tuple[str, ...] | None, nothing: dict[str, Any]
) -> None:
    async with served(cloud={"service_annotations": prefixes}) as world:
        world.meta(**nothing)
        await world.pass_time(1)
        assert world.balancers.log == []
        world.meta(annotations={"lb.fake.io/size": "2"})
        await world.pass_time(1)
        assert world.balancers.calls == ["ensure"]


@pytest.mark.row("service-class-01", "service-sync-07")
async def test_a_class_that_is_not_claimed_is_never_touched() -> None:
    async with started() as world:
        world.service(load_balancer_class=None, loadBalancerClass="theirs", finalizers=[F])
        await world.pass_time(1)
        world.change(type="ClusterIP", loadBalancerClass=None)
        await world.pass_time(1)
        world.delete()
        await world.pass_time(1)

        assert (world.balancers.log, world.patches, world.events) == ([], [], [])
        assert world.finalizers() == [F]


@pytest.mark.row("service-priority-01")
async def test_what_people_change_comes_before_a_start() -> None:
    world = World()
    for number in range(10):
        world.service(f"old{number}", finalizers=[F])
    world.service("dying", finalizers=[F], deleting=True)
    world.node("a")
    world.balancers.seconds = 1.0
    async with world.running():
        world.service("new")
        world.change("old7", ports=[{"port": 81, "protocol": "TCP", "targetPort": 80}])
        await world.pass_time(30)

        order = [name for _, name, _ in world.balancers.log]
        assert set(order[:4]) <= {"dying", "new", "old7", "old0"}
        assert sorted(order) == sorted(["dying", "new", *(f"old{number}" for number in range(10))])


@pytest.mark.parametrize("type_", ["ClusterIP", "NodePort", "ExternalName"])
@pytest.mark.row("service-sync-01")
async def test_other_services_are_never_touched(type_: str) -> None:
    world = World()
    world.service("old", type_=type_)
    async with world.running():
        world.service("new", type_=type_)
        world.node("n1")
        await world.pass_time(60)
        world.delete("new")
        await world.pass_time(60)

        assert (world.balancers.log, world.patches, world.events) == ([], [], [])


@pytest.mark.row("service-sync-03")
async def test_a_finalizer_that_is_there_saves_a_write() -> None:
    async with started() as world:
        world.service(finalizers=[F])
        await world.pass_time(1)

        assert [sorted(patch) for patch in world.patches] == [["metadata", "status"]]


@pytest.mark.row("service-write-01")
async def test_a_status_that_always_conflicts_is_written_later_without_a_second_ensure() -> None:
    async with started() as world:
        world.service(finalizers=[F])
        conflict = Conflict(status=409, reason="Conflict", message="modified")
        world.write_faults = [conflict] * 5
        await world.pass_time(1)
        assert len(world.patches) == 5
        assert world.address() == ""

        await world.pass_time(6)
        assert world.address()
        assert world.balancers.calls == ["ensure"]
        assert [event for event in world.events if event[1] == "Warning"] == [
            ("web", "Warning", "UnAvailableLoadBalancer")
        ]


@pytest.mark.row("service-write-02")
async def test_a_service_that_vanishes_before_its_status_is_no_failure() -> None:
    async with started("n1") as world:
        world.service(finalizers=[F])
        world.before_write = world.vanish
        await world.pass_time(1)

        assert world.balancers.calls == ["ensure", "delete"]
        assert not [event for event in world.events if event[1] == "Warning"]


@pytest.mark.row("service-write-03")
async def test_the_newest_service_is_given_to_the_provider() -> None:
    async with served() as world:
        world.change(loadBalancerIP="192.0.2.9")
        world.node("n1")
        await world.pass_time(10)

        assert {each.spec.load_balancer_ip for each in world.balancers.given} == {"192.0.2.9"}


async def test_a_service_changed_while_it_is_ensured_is_ensured_again() -> None:
    async with started(slow="ensure") as world:
        world.service()
        await world.pass_time(1)
        world.change(loadBalancerIP="192.0.2.9")
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(1)

        assert [each.spec.load_balancer_ip for each in world.balancers.given] == ["", "192.0.2.9"]


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
