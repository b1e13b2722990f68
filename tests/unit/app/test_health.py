"""Health checks of the daemon."""

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
    """A healthy daemon, until a test breaks something."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.api = Api(trouble or b"ok")
        self.vitals = DaemonState()
        self.vitals.opened(CloudClient(Cloud(name="paper")))
        self.checks = Checks(self.vitals, self.api)

    async def failing(self, checks: Sequence[HealthCheck]) -> dict[str, str]:
        """Return the cause of each failing check."""
        found = {check.name: await check.run() for check in checks}
        return {name: finding.detail for name, finding in found.items() if not finding.ok}

    async def live(self) -> dict[str, str]:
        """Return the failing checks of /livez; those of /healthz must be the same."""
        found = await self.failing(self.checks.livez())
        assert await self.failing(self.checks.healthz()) == found
        return found

    async def ready(self) -> dict[str, str]:
        """Return the failing checks of /readyz."""
        return await self.failing(self.checks.readyz())

    async def detail(self, name: str) -> str:
        """Return the text of a check."""
        (found,) = [check for check in self.checks.readyz() if check.name == name]
        return (await found.run()).detail


@pytest.mark.row("serving-health-06")
async def test_livez_fails_after_repeated_event_loop_lag() -> None:
    world = World()

    world.vitals.late_beats = health.MAX_LATE_BEATS - 1
    assert await world.live() == {}
    world.vitals.late_beats += 1

    assert set(await world.live()) == {"event-loop"}


@pytest.mark.row("serving-health-06")
async def test_consecutive_late_heartbeats_are_counted() -> None:
    vitals = DaemonState()
    beating = spawn(vitals.measure_loop_lag(), name="beat")
    await asyncio.sleep(0)
    for late_s in (10.0, 10.0):
        jump(late_s)  # no task ran in between
        await advance(0.5)
    assert vitals.late_beats == 2
    await advance(1.0)
    assert vitals.late_beats == 0
    await cancel_and_join(beating)


@pytest.mark.row("serving-health-06")
async def test_livez_fails_when_a_controller_ended_without_cancellation() -> None:
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
async def test_livez_fails_when_a_worker_hangs() -> None:
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
async def test_livez_fails_when_the_elector_missed_its_lost_lease() -> None:
    world = World()
    world.vitals.electors["lease"] = Mock(check=lambda: "failed election")

    assert await world.live() == {"leaderElection": "failed election"}
    assert world.checks.healthz()[0].name == "leaderElection"


async def test_readyz_fails_after_several_unanswered_cloud_calls_in_a_row() -> None:
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
async def test_readyz_fails_when_a_cache_is_not_synced_or_its_watch_is_silent(
    cache: dict[str, float], cause: str | None
) -> None:
    """Times are relative to now."""
    world = World()
    now = clock.monotonic()
    times = {name: now + value for name, value in cache.items() if name != "has_synced"}
    facts = {"has_synced": True, "last_contact": now, "outage_since": None, **cache, **times}
    world.vitals.informers = Mock(all=[Mock(resource="nodes", **facts)])

    assert await world.ready() == ({} if cause is None else {"caches": cause})
    assert await world.live() == {}


async def test_cache_check_names_the_cluster() -> None:
    world = World()
    world.vitals.informers = Mock(all=[])
    nodes = Mock(resource="nodes", has_synced=False, outage_since=None)
    world.vitals.other_informers = {"target": Mock(all=[nodes])}

    assert await world.ready() == {"caches": "cache of nodes of the target cluster is not synced"}


@pytest.mark.row("serving-health-04", "serving-health-05")
async def test_expected_waits_and_skipped_controllers_keep_checks_green() -> None:
    """A standby without caches, a skipped controller, a server that waits for its ConfigMap."""
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
async def test_readyz_fails_when_the_api_server_is_down_but_not_when_forbidden(
    trouble: Exception | None, ready: bool
) -> None:
    world = World(trouble)

    assert await world.live() == {}
    assert await world.ready() == ({} if ready else {"api-server": str(trouble)})
