"""What is healthy: the checks of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from ccm.app import health
from ccm.app.health import Checks, DaemonState
from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import errors as cloud_errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud, InstancesV2
from ccm.kube import errors
from ccm.kube.workqueue import WorkQueue
from ccm.runtime.controller import Controller
from ccm.serving.health import HealthCheck
from ccm.testing.builders import node
from ccm.testing.clock import advance, jump
from tests.support.calls import cloud
from tests.unit.app.api import Api

pytestmark = pytest.mark.virtual_time


DOWN = errors.Unreachable("nothing listens", kind="refused")
FORBIDDEN = errors.Forbidden(status=403, reason="Forbidden", message="not you")

IDLE = Mock(spec=Controller)


class World:
    """A daemon that runs well, until a test breaks something."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.api = Api(trouble or b"ok")
        self.vitals = DaemonState()
        self.vitals.opened(CloudClient(Cloud(name="paper")))
        self.checks = Checks(self.vitals, self.api)

    async def failing(self, checks: Sequence[HealthCheck]) -> dict[str, str]:
        """The checks that fail, with the cause."""
        found = {check.name: await check.run() for check in checks}
        return {name: finding.detail for name, finding in found.items() if not finding.ok}

    async def live(self) -> dict[str, str]:
        """What fails below /livez; the same fails below /healthz."""
        found = await self.failing(self.checks.livez())
        assert await self.failing(self.checks.healthz()) == found
        return found

    async def ready(self) -> dict[str, str]:
        """What fails below /readyz."""
        return await self.failing(self.checks.readyz())

    async def detail(self, name: str) -> str:
        """What a check says."""
        (found,) = [check for check in self.checks.readyz() if check.name == name]
        return (await found.run()).detail


@pytest.mark.row("serving-health-06")
async def test_an_event_loop_that_is_late_again_and_again_is_ill() -> None:
    world = World()

    world.vitals.late_beats = health.MAX_LATE_BEATS - 1
    assert await world.live() == {}
    world.vitals.late_beats += 1

    assert set(await world.live()) == {"event-loop"}


@pytest.mark.row("serving-health-06")
async def test_beats_that_come_late_in_a_row_are_counted() -> None:
    vitals = DaemonState()
    beating = spawn(vitals.measure_loop_lag(), name="beat")
    await asyncio.sleep(0)
    for late_s in (10.0, 10.0):
        jump(late_s)  # nobody woke up meanwhile
        await advance(0.5)
    assert vitals.late_beats == 2
    await advance(1.0)
    assert vitals.late_beats == 0
    await cancel_and_join(beating)


@pytest.mark.row("serving-health-06")
async def test_a_controller_that_ended_is_ill_and_one_that_was_cancelled_is_not() -> None:
    world = World()

    async def work() -> None:
        with world.vitals.running("cloud-node-controller", IDLE):
            await asyncio.Event().wait()

    task = spawn(work(), name="work")
    await asyncio.sleep(0)
    assert await world.live() == {}
    await cancel_and_join(task)
    assert await world.live() == {}

    with world.vitals.running("service-lb-controller", IDLE):
        pass

    assert await world.live() == {"service-lb-controller": "controller ended unexpectedly"}
    world.vitals.stand_by()
    assert await world.live() == {}


@pytest.mark.row("serving-health-06")
async def test_a_worker_that_does_not_come_back_is_ill() -> None:
    world = World()
    queue: WorkQueue[str] = WorkQueue("stuck-test")
    queue.add("key")
    await queue.get()
    try:
        jump(health.HUNG_WORKER_S)
        assert await world.live() == {}
        jump(1.0)
        assert await world.live() == {"workers": "stuck-test has processed one key for 3601s"}
    finally:
        queue.done("key")
    assert await world.live() == {}


@pytest.mark.row("serving-health-06")
async def test_a_lost_lease_that_goes_unnoticed_is_ill() -> None:
    world = World()
    world.vitals.electors["lease"] = Mock(check=lambda: "failed election")

    assert await world.live() == {"leaderElection": "failed election"}
    assert world.checks.healthz()[0].name == "leaderElection"


async def test_calls_that_the_cloud_does_not_answer_count_when_they_are_several() -> None:
    world = World()
    handle = world.vitals.handle
    assert handle is not None

    async def call(error: Exception) -> None:
        async def act() -> None:
            raise error

        handle.swap(cloud("paper", act))
        with contextlib.suppress(cloud_errors.CloudError):
            await handle.call(InstancesV2.instance_exists, node("n"))

    down = cloud_errors.Unavailable("no route")
    for _ in range(health.MAX_FAILED_CALLS - 1):
        await call(down)
    assert await world.ready() == {}
    await call(down)
    assert await world.ready() == {"cloud": "3 calls in a row failed; last error: no route"}
    assert await world.live() == {}

    await call(cloud_errors.NotFound("no such machine"))  # an answer

    assert await world.ready() == {}


@pytest.mark.parametrize(
    ("cache", "cause"),
    [
        pytest.param({}, None, id="well"),
        pytest.param({"has_synced": False}, "cache of nodes is not synced", id="incomplete"),
        pytest.param({"outage_since": -5.0}, None, id="lost a moment ago"),
        pytest.param({"outage_since": -42.0}, "watch of nodes has failed for 42s", id="lost"),
        pytest.param({"last_contact": -800.0}, None, id="quiet"),
        pytest.param(
            {"last_contact": -901.0}, "watch of nodes has been silent for 901s", id="silent"
        ),
    ],
)
async def test_caches_are_complete_and_followed(cache: dict[str, float], cause: str | None) -> None:
    """Times count from now."""
    world = World()
    now = clock.monotonic()
    times = {name: now + value for name, value in cache.items() if name != "has_synced"}
    facts = {"has_synced": True, "last_contact": now, "outage_since": None, **cache, **times}
    world.vitals.informers = Mock(all=[Mock(resource="nodes", **facts)])

    assert await world.ready() == ({} if cause is None else {"caches": cause})
    assert await world.live() == {}


async def test_a_cache_of_another_cluster_says_whose_it_is() -> None:
    world = World()
    world.vitals.informers = Mock(all=[])
    nodes = Mock(resource="nodes", has_synced=False, outage_since=None)
    world.vitals.other_informers = {"target": Mock(all=[nodes])}

    assert await world.ready() == {"caches": "cache of nodes of the target cluster is not synced"}


@pytest.mark.row("serving-health-04", "serving-health-05")
async def test_what_is_in_order_is_told_and_fails_nothing() -> None:
    """A standby without caches, a controller that is left out, a server that waits."""
    world = World()
    world.vitals.skipped("node-route-controller", "--cluster-cidr names no range")
    world.vitals.pending_reason = lambda: "ConfigMap not read yet"

    assert (await world.live(), await world.ready()) == ({}, {})
    assert await world.detail("caches") == "none, standing by"
    assert await world.detail("authentication") == "ConfigMap not read yet"
    assert await world.detail("node-route-controller") == (
        "not running: --cluster-cidr names no range"
    )


UNWELL = errors.ServerError(status=500, reason="InternalError", message="etcd failed")


WRONG_TOKEN = errors.Unauthorized(status=401, reason="Unauthorized", message="who are you")


@pytest.mark.parametrize(
    ("trouble", "ready"),
    [(None, True), (FORBIDDEN, True), (DOWN, False), (UNWELL, False), (WRONG_TOKEN, False)],
)
async def test_the_api_server_counts_for_readiness(trouble: Exception | None, ready: bool) -> None:
    world = World(trouble)

    assert await world.live() == {}
    assert await world.ready() == ({} if ready else {"api-server": str(trouble)})
