"""Members follow the nodes while the ensure fails, whatever it fails on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import metrics
from ccm.cloud import Ingress, Status
from ccm.cloud.errors import (
    Aborted,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    RetryAfter,
)
from ccm.kube.errors import Forbidden
from tests.support.services import F, World, served, started

pytestmark = pytest.mark.virtual_time

WRONG = InvalidArgument("annotation size: 'huge' is no size")
HTTPS = [{"port": 443, "protocol": "TCP", "targetPort": 443}]
FORBIDDEN = Forbidden(status=403, reason="Forbidden", message="no patch of services/status")


def warnings(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["error"]) for line in lines if line["log_level"] == "warning"]


async def refused(world: World, error: Exception = WRONG) -> None:
    """Change the Service so that its ensure fails from now on."""
    world.balancers.faults["ensure"] = error
    world.change(ports=HTTPS)
    await world.pass_time(1)
    assert world.balancers.calls == ["ensure"]
    world.forget()


@pytest.mark.row("service-follow-01")
@pytest.mark.parametrize(
    "error",
    [WRONG, FailedPrecondition("renamed"), Internal("boom")],
    ids=lambda e: type(e).__name__,
)
async def test_nodes_come_and_go_while_the_ensure_fails(error: Exception) -> None:
    async with served("n1", "n2") as world:
        await refused(world, error)

        world.node("n3")
        await world.pass_time(2)
        assert world.balancers.log == [("update", "web", ("n1", "n2", "n3"))]
        world.remove_node("n1")
        await world.pass_time(12)

        assert world.balancers.of("update")[1:] == [("web", ("n2", "n3"))]


@pytest.mark.row("service-follow-01")
async def test_updates_leave_the_back_off_of_the_ensure_alone() -> None:
    async with served("n1") as world:
        await refused(world, Internal("boom"))
        for number in range(40):
            world.node(f"m{number:02}")
            await world.pass_time(15)

        calls = zip(world.balancers.at, world.balancers.calls, strict=True)
        ensures = [at for at, call in calls if call == "ensure"]
        assert [round(b - a) for a, b in itertools.pairwise(ensures)] == [10, 20, 40, 80, 160]
        assert world.balancers.calls.count("update") >= 30


@pytest.mark.row("service-follow-01")
async def test_a_failing_update_backs_off_beside_a_failing_ensure() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults["update"] = Internal("no")
        world.node("n2")
        with capture_logs() as lines:
            await world.pass_time(200)

        calls = zip(world.balancers.at, world.balancers.calls, strict=True)
        updates = [at for at, call in calls if call == "update"]
        assert [round(b - a) for a, b in itertools.pairwise(updates)] == [5, 10, 20, 40, 80]
        assert "ensure" not in world.balancers.calls
        assert warnings(lines) == [("members not changed", "no")]
        world.balancers.faults["update"] = RetryAfter("busy", seconds=30)
        await world.pass_time(200)
        world.forget()
        del world.balancers.faults["update"]
        await world.pass_time(60)
        assert world.balancers.log == [("update", "web", ("n1", "n2"))]


@pytest.mark.row("service-follow-01")
async def test_a_service_put_right_is_ensured_at_once() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults.clear()
        world.change(ports=[{"port": 80, "protocol": "TCP", "targetPort": 80}])
        await world.pass_time(1)

        assert world.balancers.calls == ["ensure"]
        world.forget()
        world.node("n2")
        await world.pass_time(1000)
        assert world.balancers.log == [("update", "web", ("n1", "n2"))]


@pytest.mark.row("service-follow-02")
@pytest.mark.parametrize("digests", [False, True], ids=["unlisted", "listed"])
async def test_members_follow_after_a_restart_though_no_ensure_ever_succeeds(
    digests: bool,
) -> None:
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
async def test_what_is_not_there_is_looked_for_once_for_each_ensure() -> None:
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
async def test_a_new_service_that_is_refused_costs_one_call() -> None:
    async with started("n1", faults={"ensure": WRONG}) as world:
        world.service()
        await world.pass_time(500)

        assert world.balancers.calls == ["ensure"]


@pytest.mark.row("service-follow-03")
async def test_members_follow_although_the_finalizer_cannot_be_written() -> None:
    world = World()
    world.node("n1")
    world.service()
    async with world.running():
        await world.pass_time(60)
        world.forget()
        world.write_faults = [FORBIDDEN] * 100
        world.meta(finalizers=None)
        world.change(ports=HTTPS)
        world.node("n2")
        await world.pass_time(5)

        assert world.balancers.log == [("update", "web", ("n1", "n2"))]


@pytest.mark.row("service-order-02")
async def test_a_failed_write_of_the_finalizer_is_in_the_metric_and_the_log() -> None:
    labels = {"operation": "ensure", "outcome": "error"}

    def failed() -> float:
        name = "ccm_service_operation_duration_seconds_count"
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    world, before = World(), failed()
    world.write_faults = [FORBIDDEN] * 100
    async with world.running():
        with capture_logs() as lines:
            world.service()
            await world.pass_time(200)
            assert failed() - before == len(world.patches) == 6
            assert warnings(lines) == [("reconcile failed", str(FORBIDDEN))]
            await world.pass_time(1000)

    assert 3 <= len(warnings(lines)) <= 4
    assert world.balancers.log == []


@pytest.mark.row("service-retry-01")
async def test_a_refused_annotation_is_logged_once_and_again_while_it_lasts() -> None:
    async with served("n1") as world:
        with capture_logs() as lines:
            await refused(world)
            assert warnings(lines) == [("reconcile failed", str(WRONG))]
            await world.pass_time(590)
            assert len(warnings(lines)) == 1
            other = world.balancers.faults["ensure"] = InvalidArgument("another")
            world.change(ports=[*HTTPS, {"port": 80, "protocol": "TCP"}])
            await world.pass_time(1)
            assert warnings(lines)[1:] == [("reconcile failed", str(other))]
            await world.pass_time(1900)
            assert warnings(lines)[2:] == [("reconcile failed", str(other))] * 3


@pytest.mark.row("service-follow-04")
async def test_an_error_with_a_status_serves_the_service_and_is_repeated() -> None:
    told = Aborted("node n2 is unknown")
    told.carrying(Status(ingress=(Ingress(ip="192.0.2.1"),)))
    async with started("n1", "n2", faults={"ensure": told}) as world:
        world.balancers.held["auidweb1"] = ([], ())
        world.service()
        await world.pass_time(16)

        assert world.address() == "192.0.2.1"
        assert world.balancers.calls == ["ensure"] * 3
        assert world.events.count(("web", "Warning", "SyncLoadBalancerFailed")) == 3
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
async def test_a_service_that_is_deleted_gets_no_members_any_more() -> None:
    async with served("n1") as world:
        await refused(world)
        world.balancers.faults["delete"] = FailedPrecondition("protected")
        world.delete()
        await world.pass_time(1)
        assert world.balancers.calls == ["delete"]
        for number in range(5):
            world.node(f"m{number}")
            await world.pass_time(60)

        assert world.balancers.calls == ["delete"]


@pytest.mark.row("service-busy-01")
async def test_a_cloud_that_stays_busy_is_asked_ever_more_rarely_and_told_about() -> None:
    async with served("n1") as world:
        world.balancers.faults["delete"] = RetryAfter("it is being changed", seconds=1)
        world.delete()
        with capture_logs() as lines:
            await world.pass_time(59)
            assert (warnings(lines), world.reasons()) == ([], ["DeletingLoadBalancer"])
            assert len(world.balancers.of("delete")) <= 20
            await world.pass_time(21)
            assert warnings(lines) == [("still told to retry later", "it is being changed")]
            assert world.events[1:] == [("web", "Warning", "SyncLoadBalancerFailed")]
            await world.pass_time(3600)

        at = world.balancers.at
        pauses = [b - a for a, b in itertools.pairwise(at[1:])]
        assert max(pauses[:3]) <= 1.2
        assert 300 <= max(pauses[-3:]) <= 360
        assert len(at) <= 50
        assert 8 <= len(warnings(lines)) <= 12
        world.balancers.faults.clear()
        await world.pass_time(361)
        assert world.reasons()[-1] == "DeletedLoadBalancer"


@pytest.mark.row("service-busy-01")
async def test_a_load_balancer_that_is_busy_for_long_gets_the_members_of_the_moment() -> None:
    """The certificate is not ready yet, say, which hinders no change of members."""
    async with served("n1") as world:
        world.balancers.faults["ensure"] = RetryAfter("no certificate yet", seconds=1)
        world.change(ports=HTTPS)
        world.node("n2")
        await world.pass_time(30)
        assert world.balancers.of("update") == []
        await world.pass_time(60)

        assert world.balancers.of("update") == [("web", ("n1", "n2"))]
