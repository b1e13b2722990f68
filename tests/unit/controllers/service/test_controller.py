"""Calls, writes and events per Service change; removals; member updates while the ensure fails."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ccm.base import metrics
from ccm.cloud import Ingress, Status
from ccm.cloud.errors import (
    Aborted,
    FailedPrecondition,
    ImplementedElsewhere,
    Internal,
    InvalidArgument,
    NotFound,
    RetryAfter,
    Unavailable,
)
from ccm.kube.errors import Conflict, Forbidden, ServerError
from ccm.model import Service, names
from tests.support.services import KEY, F, Log, World, autoscaler_taint, ports, served, started

pytestmark = pytest.mark.virtual_time

WRONG = InvalidArgument("annotation size: 'huge' is no size")
FORBIDDEN = Forbidden(status=403, reason="Forbidden", message="no patch of services/status")
BROKEN = ServerError(status=500, reason="Boom", message="no")
ELSEWHERE = ImplementedElsewhere("not ours")
EXCLUDE = names.LABEL_EXCLUDE_BALANCERS
ENSURE: Log = [("ensure", "web", ("n1", "n2"))]
UPDATE: Log = [("update", "web", ("n1", "n2"))]


def gone_and_back(world: World) -> None:
    world.node("n1", taints=[autoscaler_taint()])
    world.node("n1")


def case(
    name: str,
    rows: str,
    change: Callable[[World], None],
    log: Sequence[Any] = (),
    annotations: str = "",
) -> Any:
    cloud = {"service_annotations": (annotations,)} if annotations else {}
    return pytest.param(change, log, cloud, id=name, marks=pytest.mark.row(*rows.split()))


LABEL, ANNOTATIONS, CHANGE = "service-label-01", "service-annotations-01", "service-change-01"
COUNTS, NOTHING, OURS = "service-nodes-04", "service-nodes-05", "lb.fake.io/"


@pytest.mark.parametrize(
    ("change", "log", "cloud"),
    [
        case("nothing", "service-idle-01", lambda _: None),
        case("label", LABEL, lambda w: w.meta(labels={"a": "b"})),
        case("theirs", ANNOTATIONS, lambda w: w.meta(annotations={"a/last": "x"}), (), OURS),
        case(
            "ours",
            f"{LABEL} {ANNOTATIONS}",
            lambda w: w.meta(annotations={"lb.fake.io/size": "2"}),
            ENSURE,
            OURS,
        ),
        case("another port", CHANGE, lambda w: w.change(ports=ports(81)), ENSURE),
        case("ready", NOTHING, lambda w: w.node("n2", ready="False")),
        case("tainted", NOTHING, lambda w: w.node("n2", taints=[autoscaler_taint()])),
        case("deleting", NOTHING, lambda w: w.node("n2", deleting=True)),
        case("labelled", NOTHING, lambda w: w.node("n2", labels={"a": "b"})),
        case("included", NOTHING, lambda w: w.node("n2", labels={EXCLUDE: "false"})),
        case(
            "excluded",
            COUNTS,
            lambda w: w.node("n2", labels={EXCLUDE: ""}),
            [("update", "web", ("n1",))],
        ),
        case("another ID", COUNTS, lambda w: w.node("n2", provider_id="fake://x"), UPDATE),
        case("ID gone", COUNTS, lambda w: w.node("n2", provider_id=""), UPDATE),
        case("there and back", NOTHING, gone_and_back),
    ],
)
async def test_single_change_causes_only_the_needed_cloud_calls(
    change: Callable[[World], None], log: Sequence[Any], cloud: dict[str, Any]
) -> None:
    async with served("n1", "n2", cloud=cloud) as world:
        change(world)
        await world.pass_time(1000)

        assert world.balancers.log == list(log)
        assert world.patches == []


@pytest.mark.row("service-sync-02", "service-sync-03")
@pytest.mark.parametrize("finalizers", [(), (F,)], ids=["new", "with the finalizer"])
async def test_a_new_service_gets_finalizer_balancer_and_address(finalizers: tuple[str]) -> None:
    async with started("n1") as world:
        world.service(finalizers=finalizers)
        await world.pass_time(1)

        assert world.balancers.log == [("ensure", "web", ("n1",))]
        assert world.finalizers() == [F]
        assert world.address().startswith("ip-of-auidweb")
        assert world.reasons() == ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]
        writes = [sorted(patch) for patch in world.patches]
        assert writes == [["metadata"]] * (not finalizers) + [["metadata", "status"]]
        assert F in world.balancers.given[0].finalizers


@pytest.mark.parametrize("during", [False, True], ids=["at rest", "during a call"])
@pytest.mark.parametrize("damage", ["finalizer", "status"])
@pytest.mark.row("service-repair-01")
async def test_removed_finalizer_or_status_is_restored_without_an_ensure(
    damage: str, during: bool
) -> None:
    async with served() as world:
        address = world.address()
        if during:
            world.balancers.slow.add("ensure")
            world.change(ports=ports(81))
            await world.pass_time(1)
            world.forget()
        if damage == "status":
            world.wipe_status()
        else:
            world.meta(finalizers=None)
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(10)

        assert (world.finalizers(), world.address()) == ([F], address)
        assert world.balancers.log == []
        assert world.reasons() == (["EnsuredLoadBalancer"] if during else [])


@pytest.mark.row("service-repair-01")
async def test_repeated_status_removal_is_repaired_at_a_limited_rate() -> None:
    async with served() as world:
        for _ in range(100):
            world.wipe_status()
            await world.pass_time(0.1)

        assert len(world.patches) <= 3
        await world.pass_time(6)
        assert world.address()


@pytest.mark.row("service-uid-01")
@pytest.mark.parametrize("type_", ["LoadBalancer", "ClusterIP"])
async def test_service_recreated_during_an_ensure_inherits_nothing(type_: str) -> None:
    async with started() as world:
        world.balancers.slow.add("ensure")
        world.service()
        await world.pass_time(1)
        world.vanish()
        world.service(uid="other", type_=type_)
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(100)

        wanted = type_ == "LoadBalancer"
        assert [each.uid for each in world.balancers.given[:2]] == ["uid-web-1"] * 2
        assert list(world.balancers.held) == ["aother"] * wanted
        assert world.finalizers() == [F] * wanted
        assert world.address() == "ip-of-aother" * wanted


@pytest.mark.row("service-retry-01")
async def test_failed_ensure_backs_off_from_5_to_300_seconds() -> None:
    async with started("n1", faults={"ensure": Internal("boom")}) as world:
        world.service()
        await world.pass_time(2000)

        assert world.pauses("ensure")[:8] == [5, 10, 20, 40, 80, 160, 300, 300]
        assert world.reasons()[:2] == ["EnsuringLoadBalancer", "SyncLoadBalancerFailed"]
        assert world.finalizers() == [F]


@pytest.mark.parametrize("operation", ["ensure", "get", "delete", "update"])
@pytest.mark.row("service-retry-02")
async def test_retry_after_is_honoured_for_every_cloud_call(operation: str) -> None:
    async with served("n1") as world:
        world.balancers.faults[operation] = RetryAfter("not yet", seconds=42)
        if operation == "update":
            world.node("n2")
            await world.pass_time(1)
            world.node("n3")
        elif operation == "ensure":
            world.change(ports=ports(81))
        else:
            world.delete()
        await world.pass_time(59)
        assert world.warned() == []
        await world.pass_time(42 * 3 * 1.2 + 1 - 59)

        pauses = world.pauses(operation)
        assert len(pauses) == 3
        assert all(42 <= pause <= 42 * 1.2 for pause in pauses)
        assert len(world.warned()) == 1

        world.balancers.faults.clear()
        await world.pass_time(42 * 1.2)
        assert world.balancers.calls[-1] in (operation, "delete")


@pytest.mark.row("service-order-02")
async def test_provider_is_not_called_before_the_finalizer_is_written() -> None:
    labels = {"operation": "ensure", "outcome": "error"}

    def failed() -> float:
        name = "ccm_service_operation_duration_seconds_count"
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    world, before = World(), failed()
    world.write_faults = [FORBIDDEN] * 6
    async with world.running():
        with capture_logs() as lines:
            world.service()
            await world.pass_time(200)
        assert failed() - before == len(world.patches) == 6
        assert warnings(lines) == [("reconcile failed", str(FORBIDDEN))]
        assert world.balancers.log == []

        await world.pass_time(300)
        assert world.balancers.calls == ["ensure"]


@pytest.mark.row("service-wire-02")
async def test_concurrent_finalizer_writes_are_merged() -> None:
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
async def test_service_deleted_before_its_finalizer_write_is_not_ensured() -> None:
    async with started() as world:
        world.before_write = world.delete
        world.service()
        await world.pass_time(10)

        assert "ensure" not in world.balancers.calls
        assert KEY not in world.objects


@pytest.mark.row("service-class-01", "service-sync-07")
async def test_service_of_a_foreign_load_balancer_class_is_never_touched() -> None:
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
async def test_user_changes_take_priority_over_the_initial_sync() -> None:
    world = World()
    for number in range(10):
        world.service(f"old{number}", finalizers=[F])
    world.service("dying", finalizers=[F], deleting=True)
    world.node("a")
    world.balancers.seconds = 1.0
    async with world.running():
        world.service("new")
        world.change("old7", ports=ports(81))
        await world.pass_time(30)

        order = [name for _, name, _ in world.balancers.log]
        assert set(order[:4]) <= {"dying", "new", "old7", "old0"}
        assert sorted(order) == sorted(["dying", "new", *(f"old{number}" for number in range(10))])


@pytest.mark.parametrize("type_", ["ClusterIP", "NodePort", "ExternalName"])
@pytest.mark.row("service-sync-01")
async def test_services_of_other_types_are_never_touched(type_: str) -> None:
    world = World()
    world.service("old", type_=type_)
    async with world.running():
        world.service("new", type_=type_)
        world.node("n1")
        await world.pass_time(60)
        world.delete("new")
        await world.pass_time(60)

        assert (world.balancers.log, world.patches, world.events) == ([], [], [])


@pytest.mark.row("service-write-01")
async def test_conflicting_status_write_is_retried_without_a_second_ensure() -> None:
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
        assert world.warned() == ["UnAvailableLoadBalancer"]


@pytest.mark.row("service-write-02")
async def test_service_deleted_before_its_status_write_is_no_failure() -> None:
    async with started("n1") as world:
        world.service(finalizers=[F])
        world.before_write = world.vanish
        await world.pass_time(1)

        assert world.balancers.calls == ["ensure", "delete"]
        assert world.warned() == []


@pytest.mark.row("service-write-03")
async def test_ensure_receives_the_newest_service() -> None:
    async with served() as world:
        world.change(loadBalancerIP="192.0.2.9")
        world.node("n1")
        await world.pass_time(10)
        world.balancers.slow.add("ensure")
        world.change(loadBalancerIP="192.0.2.10")
        await world.pass_time(1)
        world.change(loadBalancerIP="192.0.2.11")
        await world.pass_time(1)
        world.balancers.release.set()
        await world.pass_time(1)

        given = [each.spec.load_balancer_ip for each in world.balancers.given]
        assert list(dict.fromkeys(given)) == ["192.0.2.9", "192.0.2.10", "192.0.2.11"]


# --- removals -------------------------------------------------------------------------------


@pytest.mark.row("service-cleanup-01")
async def test_our_finalizer_is_removed_whoever_added_it() -> None:
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
async def test_service_retyped_during_a_removal_gets_a_new_balancer() -> None:
    """The load balancer is deleted, but the removal of the finalizer failed."""
    async with started() as world:
        world.service()
        await world.pass_time(1)
        world.write_faults = [BROKEN]
        world.change(type="ClusterIP")
        await world.pass_time(1)
        assert (world.balancers.held, world.finalizers()) == ({}, [F])

        world.change(type="LoadBalancer")
        await world.pass_time(10)

        assert len(world.balancers.held) == 1
        assert world.finalizers() == [F]


@pytest.mark.row("service-delete-01", "service-delete-03")
async def test_balancer_of_a_vanished_service_is_deleted_with_retries() -> None:
    async with served() as world:
        world.balancers.faults["delete"] = Internal("boom")
        world.vanish()
        await world.pass_time(6)
        assert world.reasons() == ["DeletingLoadBalancer", "DeleteLoadBalancerFailed"] * 2

        world.balancers.faults.clear()
        await world.pass_time(20)
        assert world.balancers.held == {}
        assert world.balancers.calls == ["delete"] * 3
        assert world.reasons()[-2:] == ["DeletingLoadBalancer", "DeletedLoadBalancer"]


@pytest.mark.row("service-delete-02")
async def test_balancer_is_deleted_though_only_a_foreign_finalizer_is_left() -> None:
    async with started() as world:
        world.service(finalizers=["foo"])
        await world.pass_time(1)
        world.cache_lags = True
        world.meta(finalizers=["foo"], deletionTimestamp="2026-01-01T00:00:00Z")
        world.catch_up()
        await world.pass_time(1)

        assert (world.balancers.held, world.finalizers()) == ({}, ["foo"])
        world.forget()
        await world.pass_time(1000)
        assert world.balancers.log == []


@pytest.mark.row("service-delete-02")
async def test_balancer_is_deleted_when_its_service_vanishes_in_the_queue() -> None:
    """The Service exists at the start and vanishes while the only worker processes another one."""
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
@pytest.mark.parametrize("says_so", ["ensure", "get", "delete"])
async def test_service_implemented_elsewhere_loses_our_finalizer_on_deletion(says_so: str) -> None:
    async with started() as world:
        world.balancers.faults[says_so] = ELSEWHERE
        world.service()
        await world.pass_time(1000)
        assert (world.balancers.calls, world.finalizers()) == (["ensure"], [F])

        world.delete()
        await world.pass_time(10)

        assert KEY not in world.objects


@pytest.mark.row("service-sync-06")
async def test_deletion_without_a_balancer_only_removes_the_finalizer() -> None:
    async with served() as world:
        world.meta(finalizers=[F, "foo"])
        world.balancers.held.clear()
        world.delete()
        await world.pass_time(1)

        assert world.balancers.calls == ["get"]
        assert world.finalizers() == ["foo"]
        assert world.reasons() == ["DeletedLoadBalancer"]


@pytest.mark.row("service-sync-08")
async def test_always_ensure_deleted_skips_the_lookup_before_deletion() -> None:
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


@pytest.mark.row("service-delete-04")
async def test_service_deleted_before_its_first_ensure_causes_no_call() -> None:
    async with started(slow="ensure") as world:
        world.service("first")
        world.service("second")
        await world.pass_time(1)
        world.vanish("default/second")
        world.balancers.release.set()
        await world.pass_time(60)

        assert world.balancers.log == [("ensure", "first", ())]


# --- members while the ensure fails ---------------------------------------------------------


def warnings(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["error"]) for line in lines if line["log_level"] == "warning"]


async def refused(world: World, error: Exception = WRONG) -> None:
    """Change the Service so that its ensure fails from now on."""
    world.balancers.faults["ensure"] = error
    world.change(ports=ports(443))
    await world.pass_time(1)
    assert world.balancers.calls == ["ensure"]
    world.forget()


@pytest.mark.row("service-follow-01")
@pytest.mark.parametrize(
    "error",
    [WRONG, FailedPrecondition("renamed"), Internal("boom")],
    ids=lambda e: type(e).__name__,
)
async def test_members_are_updated_while_the_ensure_fails(error: Exception) -> None:
    async with served("n1", "n2") as world:
        await refused(world, error)

        world.node("n3")
        await world.pass_time(2)
        assert world.balancers.log == [("update", "web", ("n1", "n2", "n3"))]
        world.remove_node("n1")
        await world.pass_time(12)

        assert world.balancers.of("update")[1:] == [("web", ("n2", "n3"))]


@pytest.mark.row("service-follow-01")
async def test_member_updates_do_not_reset_the_ensure_back_off() -> None:
    async with served("n1") as world:
        await refused(world, Internal("boom"))
        for number in range(40):
            world.node(f"m{number:02}")
            await world.pass_time(15)

        assert [round(pause) for pause in world.pauses("ensure")] == [10, 20, 40, 80, 160]
        assert world.balancers.calls.count("update") >= 30


@pytest.mark.row("service-follow-01")
async def test_failing_update_has_its_own_back_off() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults["update"] = Internal("no")
        world.node("n2")
        with capture_logs() as lines:
            await world.pass_time(200)

        assert [round(pause) for pause in world.pauses("update")] == [5, 10, 20, 40, 80]
        assert "ensure" not in world.balancers.calls
        assert warnings(lines) == [("member update failed", "no")]
        world.balancers.faults["update"] = RetryAfter("busy", seconds=30)
        await world.pass_time(200)
        world.forget()
        del world.balancers.faults["update"]
        await world.pass_time(60)
        assert world.balancers.log == UPDATE


async def test_wait_of_an_update_ends_though_an_earlier_delay_ends_before_it() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults["update"] = Internal("no")
        world.node("n2")
        await world.pass_time(45)
        world.balancers.faults["update"] = RetryAfter("busy", seconds=60)
        world.node("n3")
        await world.pass_time(62)
        del world.balancers.faults["update"]
        world.forget()
        await world.pass_time(120)

        assert "update" in world.balancers.calls


async def test_members_follow_nodes_after_a_wait_that_a_success_ended() -> None:
    async with served("n1") as world:
        world.balancers.faults["ensure"] = Unavailable("down")
        world.change(ports=ports(81))
        await world.pass_time(2)
        world.balancers.faults["ensure"] = RetryAfter("busy", seconds=300)
        world.change(ports=ports(82))
        await world.pass_time(1)
        world.balancers.faults.clear()
        await world.pass_time(4)  # the first delay ends
        assert world.balancers.log[-1][0] == "ensure"
        world.forget()
        world.node("n2")
        await world.pass_time(60)

        assert "update" in world.balancers.calls


async def test_service_of_a_restored_etcd_is_served_and_deleted() -> None:
    """Its versions are older than those that this process has written."""
    async with served("n1") as world:
        world.version = 500
        world.change(ports=ports(80))
        await world.pass_time(5)
        backup, version = copy.deepcopy(world.objects), world.version
        world.version = 1000
        world.wipe_status()
        await world.pass_time(60)
        world.forget()
        world.version = version
        for key, body in backup.items():
            world.objects[key] = body
            world.services.upsert(msgspec.convert(body, Service))
        await world.pass_time(30)
        world.change(ports=ports(443))
        await world.pass_time(60)
        assert "ensure" in world.balancers.calls
        world.delete()
        await world.pass_time(60)

        assert KEY not in world.objects


@pytest.mark.row("service-follow-01")
async def test_corrected_service_is_ensured_at_once() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults.clear()
        world.change(ports=ports(80))
        await world.pass_time(1)

        assert world.balancers.calls == ["ensure"]
        world.forget()
        world.node("n2")
        await world.pass_time(1000)
        assert world.balancers.log == UPDATE


@pytest.mark.row("service-follow-02")
@pytest.mark.parametrize("digests", [False, True], ids=["unlisted", "listed"])
async def test_members_are_updated_after_a_restart_while_the_ensure_fails(digests: bool) -> None:
    world = World(digests=digests)
    world.node("n1")
    world.service()
    async with world.running():
        await world.pass_time(60)
    world.balancers.faults |= {"ensure": WRONG, "digest web": WRONG}
    world.node("n2")
    world.forget()
    async with world.running():
        await world.pass_time(5)
        assert world.balancers.of("update") == [("web", ("n1", "n2"))]
        world.node("n3")
        await world.pass_time(5)

        assert world.balancers.of("update")[1:] == [("web", ("n1", "n2", "n3"))]
        assert world.balancers.calls.count("ensure") == 1


@pytest.mark.row("service-follow-02")
async def test_missing_balancer_is_looked_up_once_per_ensure() -> None:
    world = World()
    world.node("n1")
    world.service(finalizers=[F])
    world.balancers.faults |= {"ensure": WRONG, "update": NotFound("nothing")}
    async with world.running():
        await world.pass_time(30)
        for number in range(5):
            world.node(f"m{number}")
            await world.pass_time(60)

    assert world.balancers.calls == ["ensure", "update", "get"]
    assert "UpdateLoadBalancerFailed" not in world.reasons()


@pytest.mark.row("service-follow-03")
async def test_rejected_new_service_costs_one_call() -> None:
    async with started("n1", faults={"ensure": WRONG}) as world:
        world.service()
        await world.pass_time(500)

        assert world.balancers.calls == ["ensure"]


@pytest.mark.row("service-follow-03")
async def test_members_are_updated_while_finalizer_writes_are_forbidden() -> None:
    async with served("n1") as world:
        world.write_faults = [FORBIDDEN] * 100
        world.meta(finalizers=None)
        world.change(ports=ports(443))
        world.node("n2")
        await world.pass_time(5)

        assert world.balancers.log == UPDATE


@pytest.mark.row("service-retry-01")
async def test_rejected_service_is_logged_once_and_then_at_intervals() -> None:
    async with served("n1") as world:
        with capture_logs() as lines:
            await refused(world)
            assert warnings(lines) == [("reconcile failed", str(WRONG))]
            await world.pass_time(590)
            assert len(warnings(lines)) == 1
            other = world.balancers.faults["ensure"] = InvalidArgument("another")
            world.change(ports=ports(443, 80))
            await world.pass_time(1)
            assert warnings(lines)[1:] == [("reconcile failed", str(other))]
            await world.pass_time(1900)
            assert warnings(lines)[2:] == [("reconcile failed", str(other))] * 3


@pytest.mark.row("service-follow-04")
async def test_error_with_a_status_writes_the_status_and_is_retried() -> None:
    told = Aborted("node n2 is unknown")
    told.carrying(Status(ingress=(Ingress(ip="192.0.2.1"),)))
    async with started("n1", "n2", faults={"ensure": told}) as world:
        world.balancers.held["auidweb1"] = ([], ())
        world.service()
        await world.pass_time(16)

        assert world.address() == "192.0.2.1"
        assert world.balancers.calls == ["ensure"] * 3
        assert world.warned() == ["SyncLoadBalancerFailed"] * 3
        world.forget()
        world.node("n3")
        await world.pass_time(2)
        assert world.balancers.log == [("update", "web", ("n1", "n2", "n3"))]
        world.forget()

        del world.balancers.faults["ensure"]
        await world.pass_time(50)
        assert world.balancers.calls == ["ensure"]
        assert world.address().startswith("ip-of-")


@pytest.mark.row("service-follow-01")
async def test_deleting_service_gets_no_member_updates() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults["delete"] = FailedPrecondition("protected")
        world.delete()
        await world.pass_time(1)
        for number in range(5):
            world.node(f"m{number}")
            await world.pass_time(60)

        assert world.balancers.calls == ["delete"]


@pytest.mark.row("service-busy-01")
async def test_persistent_retry_after_backs_off_and_is_reported() -> None:
    async with served("n1") as world:
        world.balancers.faults["delete"] = RetryAfter("it is being changed", seconds=1)
        world.delete()
        with capture_logs() as lines:
            await world.pass_time(59)
            assert (warnings(lines), world.reasons()) == ([], ["DeletingLoadBalancer"])
            assert len(world.balancers.of("delete")) <= 20
            await world.pass_time(21)
            assert warnings(lines) == [
                ("cloud or API server busy, retrying later", "it is being changed")
            ]
            assert world.reasons()[1:] == ["SyncLoadBalancerFailed"]
            await world.pass_time(3600)

        pauses = [b - a for a, b in itertools.pairwise(world.balancers.at[1:])]
        assert max(pauses[:3]) <= 1.2
        assert 300 <= max(pauses[-3:]) <= 360
        assert len(pauses) <= 48
        assert 8 <= len(warnings(lines)) <= 12
        world.balancers.faults.clear()
        await world.pass_time(361)
        assert world.reasons()[-1] == "DeletedLoadBalancer"


@pytest.mark.row("service-busy-01")
async def test_members_are_updated_during_a_persistent_retry_after() -> None:
    """A certificate that is not ready, for example, does not prevent member updates."""
    async with served("n1") as world:
        world.balancers.faults["ensure"] = RetryAfter("no certificate yet", seconds=1)
        world.change(ports=ports(443))
        world.node("n2")
        await world.pass_time(30)
        assert world.balancers.of("update") == []
        await world.pass_time(60)

        assert world.balancers.of("update") == [("web", ("n1", "n2"))]


async def test_service_recreated_before_a_write_inherits_nothing() -> None:
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
