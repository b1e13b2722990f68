"""A leader that cannot notice the end of its lease never works beside its successor.

These are real processes, because an event loop, a thread or a whole process hangs. The leader is
`old`, its standby `new`; each records its cloud calls with the time.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.controllers.node.manifest import MANIFEST as NODE
from ccm.controllers.service.manifest import MANIFEST as SERVICE
from tests import servers
from tests.faults import Delay, Hold, Match, Point
from tests.scenario import harness, load
from tests.scenario.harness import Daemon, Environment, cut_short, install, wait_for
from tests.scenario.load import SERVICES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), servers.only_builtin]

RETRY_S = 0.5
FLAGS = {
    "cloud-provider": "moody",
    "controllers": SERVICE.name,
    "concurrent-service-syncs": "4",
    "leader-elect-retry-period": f"{RETRY_S}s",
}
OWN = "cloud-controller-manager"
SHARED = "shared"
ADDRESS_WRITE = Match(write=True, where=lambda exchange: b'"ingress"' in exchange.body)
WRITE = Match(write=True, where=lambda exchange: "/leases" not in exchange.path)

PROVIDER = '''
"""A cloud in which the first daemon does what the name of a Service says, and all note it."""

import asyncio
import ctypes
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ccm import cloud
from ccm.base import clock

LONG_S = 14


class Balancers:
    def __init__(self, notes, moods):
        self._notes, self._moods, self._held = notes, moods, set()

    def note(self, name):
        with self._notes.open("a") as notes:
            notes.write(f"{time.monotonic()} {name}\\n")

    def work(self, name):
        for _ in range(LONG_S * 50):
            self.note(name)
            time.sleep(0.02)

    async def nap(self, name):
        time.sleep(4)

    async def thread(self, name):
        await cloud.blocking(self.work, name)

    async def loop(self, name):
        time.sleep(LONG_S)

    async def grip(self, name):
        ctypes.PyDLL(None).sleep(LONG_S)

    async def steps(self, name):
        for _ in range(LONG_S * 10):
            await cloud.blocking(self.note, name)
            await asyncio.sleep(0.1)

    async def deaf(self, name):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async def tomorrow(self, name):
        clock._wall = lambda: datetime.now(UTC) + timedelta(days=1)

    async def yesterday(self, name):
        clock._wall = lambda: datetime.now(UTC) - timedelta(days=1)

    def get_load_balancer_name(self, cluster_name, service):
        return cloud.default_load_balancer_name(service)

    async def get_load_balancer(self, cluster_name, service):
        return cloud.Status() if service.uid in self._held else None

    async def ensure_load_balancer(self, cluster_name, service, nodes):
        self.note(service.name)
        if self._moods and hasattr(self, service.name):
            await getattr(self, service.name)(service.name)
        self._held.add(service.uid)
        return cloud.Status(ingress=[cloud.Ingress(ip="192.0.2.7")])

    async def update_load_balancer(self, cluster_name, service, nodes):
        self.note(service.name)

    async def ensure_load_balancer_deleted(self, cluster_name, service):
        self.note(service.name)
        self._held.discard(service.uid)


class Instances:
    def __init__(self, balancers):
        self._balancers = balancers

    async def instance_exists(self, node):
        return True

    async def instance_shutdown(self, node):
        return False

    async def instance_metadata(self, node):
        self._balancers.note(node.name)
        await self._balancers.deaf(node.name)


@cloud.provider(sdk="2.0")
async def open_cloud(context):
    folder = Path(context.config.decode().strip())
    first = not (folder / "old").exists()
    notes = folder / ("old" if first else "new")
    notes.touch()
    balancers = Balancers(notes, first)
    faces = {"load_balancer": balancers, "instances": Instances(balancers)}
    yield cloud.Cloud(name="moody", has_cluster_id=True, **faces)
'''


class Pair:
    """A leader and, if there is one, its standby; the lease and its renew deadline in seconds."""

    def __init__(
        self, env: Environment, lease_s: float = 3.0, renew_s: float = 2.0, **flags: str
    ) -> None:
        self.env = env
        self.lease_s = lease_s
        named = {name.replace("_", "-"): value for name, value in flags.items()}
        lease = {"lease-duration": lease_s, "renew-deadline": renew_s}
        times = {f"leader-elect-{name}": f"{seconds}s" for name, seconds in lease.items()}
        self._flags = {**FLAGS, **times, **named}
        self._notes = env.folder / "notes"
        self._notes.mkdir()
        env.cloud_config.write_text(str(self._notes))
        self._variables = install(env.folder, "moody", PROVIDER)

    async def alone(self) -> Daemon:
        """A daemon."""
        return await self.env.start(flags=self._flags, env=self._variables)

    async def both(self) -> tuple[Daemon, Daemon]:
        """Start the leader and its standby; wait until the standby knows the leader."""
        old = await self.alone()
        await old.says("became leader")
        new = await self.alone()
        await new.says("new leader elected")
        return old, new

    def acts(self, who: str, about: str = "") -> list[float]:
        """When a daemon did something in the cloud."""
        file = self._notes / who
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [float(moment) for moment, name in lines if about in ("", name)]

    async def begin(self, *services: str) -> None:
        """Make Services, one after the other, and wait until the leader works on each."""
        for name in services:
            await load.create(self.env, load.web(name))
            await self.noted(name)

    async def noted(self, about: str) -> None:
        """Wait until the leader has done something."""

        async def done() -> bool:
            return bool(self.acts("old", about))

        await wait_for(done, f"the leader's {about}")

    async def served(self, *services: str) -> None:
        """Wait until all have an address."""

        async def all_shown() -> bool:
            found = {one["metadata"]["name"]: one for one in await self.env.cluster.items(SERVICES)}
            return all(load.ingress(found[name]) for name in services)

        await wait_for(all_shown, f"{services} are served")

    async def lease_passes(self) -> None:
        """Wait for as many renewals as fit into one lease, and two more."""
        proxy = self.env.proxy
        count = len(proxy.requests(harness.LEASE_WRITE)) + int(self.lease_s / RETRY_S) + 2
        await proxy.wait_for(harness.LEASE_WRITE, count=count)

    def lease_end(self, name: str = OWN, *, known_by: float = math.inf) -> float:
        """When the lease runs out that the leader renewed last, as it knew at a moment."""
        return self.lease_s + max(
            one.started_s
            for one in self.env.proxy.requests(harness.LEASE_WRITE)
            if one.json()["metadata"]["name"] == name
            and one.upstream_status in (200, 201)
            and (one.ended_s or 0.0) < known_by
        )

    def too_late(self, end: float) -> list[object]:
        """Calls that the old leader began after a moment, in the cloud and at the API server."""
        writes = [one for one in self.env.proxies[0].requests(WRITE) if one.started_s > end]
        return [*writes, *(moment for moment in self.acts("old") if moment > end)]


@pytest_asyncio.fixture
async def env(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """The environment of scenarios."""
    async with harness.open_environment(api_server, tmp_path) as opened:
        yield opened


@pytest.mark.row("daemon-lease-16")
@pytest.mark.parametrize("how", ["loop", "grip"])
async def test_a_leader_with_a_blocked_event_loop_is_killed_before_a_successor(
    env: Environment, how: str
) -> None:
    """With or without the GIL, for longer than the lease, while a thread works on another Service.

    The successor serves both Services.
    """
    pair = Pair(env)
    old, new = await pair.both()

    await pair.begin("thread", how)
    report = await cut_short(old)
    await new.says("became leader")

    assert "in ensure_load_balancer" in report
    assert "in work" in report
    assert pair.too_late(pair.lease_end()) == []
    await pair.served("thread", how)
    assert min(pair.acts("new")) > max(pair.acts("old"))


@pytest.mark.row("daemon-lease-17")
@pytest.mark.parametrize("how", ["thread", "deaf"])
async def test_the_lease_is_not_released_while_a_cloud_change_is_running(
    env: Environment, how: str
) -> None:
    """The change outlasts the grace period, cancelled or not; the process still ends in time.

    The successor leads when the lease expires.
    """
    pair = Pair(env, lease_s=5, shutdown_grace_period="500ms")
    old, new = await pair.both()

    await pair.begin(how)
    held_by = (await env.cluster.lease())["holderIdentity"]
    old.signal(signal.SIGTERM)
    assert await old.ended() == 0

    assert (await env.cluster.lease())["holderIdentity"] == held_by
    assert old.lines("lease not released, cloud calls are still running")[0]["calls"] == 1
    await new.says("became leader")
    assert pair.too_late(pair.lease_end()) == []
    await pair.served(how)
    assert min(pair.acts("new")) > pair.lease_end() - 0.1


async def test_the_lease_is_released_while_only_a_cloud_read_is_running(env: Environment) -> None:
    """The successor leads at once."""
    pair = Pair(env, lease_s=60, renew_s=40, controllers=NODE.name)
    old, new = await pair.both()

    await env.cluster.register("alpha")
    await pair.noted("alpha")
    old.signal(signal.SIGTERM)

    assert await old.ended() == 0
    assert old.lines("exit forced, cloud calls are still running")
    await new.says("became leader")


@pytest.mark.row("daemon-lease-18")
async def test_a_leader_resumed_after_its_lease_expired_starts_nothing(env: Environment) -> None:
    """SIGSTOP in the middle of a change, past the lease; then SIGCONT beside the successor."""
    pair = Pair(env)
    old, new = await pair.both()

    await pair.begin("steps")
    old.signal(signal.SIGSTOP)
    await new.says("became leader")
    await pair.served("steps")
    end = pair.lease_end()
    await load.edit(env, "steps", {"spec": {"ports": [{"name": "http", "port": 81}]}})
    old.signal(signal.SIGCONT)

    await cut_short(old)
    assert pair.too_late(end) == []


async def test_the_lease_is_counted_from_the_start_of_a_late_renewal(env: Environment) -> None:
    """Renewals take effect at once, but are answered after 2 s; then the event loop is blocked."""
    pair = Pair(env, lease_s=6, renew_s=5)
    old = await pair.alone()
    await old.says("became leader")
    late = env.proxy.on(harness.LEASE_WRITE, Delay(2.0, at=Point.TOOK_EFFECT))

    async def answered() -> bool:
        return any(one.status == 200 for one in late.fired)

    await wait_for(answered, "a renewal was answered late")
    await pair.begin("thread", "loop")
    await cut_short(old)

    (blocked,) = pair.acts("old", "loop")
    assert pair.too_late(pair.lease_end(known_by=blocked)) == []


async def test_the_leader_keeps_its_lease_when_the_wall_clock_jumps(env: Environment) -> None:
    """By a day, in both directions; its work continues."""
    pair = Pair(env)
    old, new = await pair.both()

    for name in ("tomorrow", "yesterday"):
        await pair.begin(name)
        await pair.served(name)
        await pair.lease_passes()
    await pair.begin("web")
    await pair.served("web")

    assert new.lines("became leader") == []
    assert await old.stop() == 0


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "lost"])
async def test_a_hanging_write_does_not_outlive_the_lease(env: Environment, renewed: bool) -> None:
    """A PATCH is delayed for longer than the lease: completed while the lease is renewed.

    With a lost lease, it is cancelled before it reaches the server.
    """
    pair = Pair(env)
    old, new = await pair.both()
    go_on = asyncio.Event()
    env.proxy.on(ADDRESS_WRITE, Hold(go_on))
    await pair.begin("web")
    (write,) = await env.proxy.wait_for(ADDRESS_WRITE)
    if renewed:
        await pair.lease_passes()
        assert write.ended_s is None
    else:
        env.proxy.on(harness.LEASE_WRITE, Hold(go_on))
        assert await old.ended() == 1
        await new.says("became leader")
        assert write.ended_s is not None
        assert write.ended_s < pair.lease_end()
        assert pair.too_late(pair.lease_end()) == []
    go_on.set()

    await pair.served("web")
    assert env.proxy.requests(ADDRESS_WRITE) == [write]
    assert (write.upstream_status == 200) is renewed


async def test_the_first_of_two_leases_to_expire_ends_the_process(env: Environment) -> None:
    """With leader migration, only the shared lease cannot be renewed; the event loop is blocked."""
    plan = env.folder / "migration.yaml"
    plan.write_text(
        "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\n"
        f"leaderName: {SHARED}\ncontrollerLeaders: [{{name: {SERVICE.name}, component: '*'}}]\n"
    )
    flags = {"enable_leader_migration": "true", "leader_migration_config": str(plan)}
    pair = Pair(env, lease_s=6, renew_s=5, **flags)
    old = await pair.alone()
    await old.says("became leader", count=2)
    await pair.begin("thread")
    env.proxy.on(Match(method="PUT", path=f"/leases/{SHARED}$"), Hold(asyncio.Event()))
    own = Match(method="PUT", path=f"/leases/{OWN}$")
    await env.proxy.wait_for(own, count=len(env.proxy.requests(own)) + 5)

    await pair.begin("loop")
    await cut_short(old)

    assert pair.lease_end() > pair.lease_end(SHARED) + 1
    assert pair.too_late(pair.lease_end(SHARED)) == []


async def test_a_blocked_event_loop_is_tolerated_without_leader_election(env: Environment) -> None:
    """One daemon without a lease continues after the blockade."""
    pair = Pair(env, leader_elect="false")
    alone = await pair.alone()

    await pair.begin("nap")
    await pair.served("nap")

    assert await alone.stop() == 0
