"""Disasters of fairness: hanging, failing and throttled objects delay no others."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ccm.app import health
from ccm.app.health import DaemonState
from ccm.app.options import FLAGS
from ccm.base import clock, metrics
from ccm.cloud import Status, default_load_balancer_name, errors
from ccm.cloud.blocking import MAX_THREADS, blocking
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud, InstancesV2
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.types import InstanceMetadata
from ccm.controllers.node.controller import NodeController
from ccm.kube import errors as kube_errors
from ccm.model import Node
from ccm.testing.builders import node, uninitialized_taint
from ccm.testing.clock import advance, elapsed_s
from tests.handclock import HandClock
from tests.support.calls import ensure
from tests.support.cluster import Cluster
from tests.support.fakecloud import FakeCloud
from tests.support.services import FakeBalancers, World
from tests.unit.app.api import Api
from tests.waiting import DEADLINE_S

virtual_time = pytest.mark.virtual_time


class HangingBalancers(FakeBalancers):
    """Calls about some Services take `hang_s`; those of a stubborn cloud cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging: Collection[str] = ()
        self.hang_s = 1e9
        self.stubborn = False

    async def _answer(self, operation: str, name: str) -> None:
        end = clock.monotonic() + self.hang_s
        while name in self.hanging and clock.monotonic() < end:
            try:
                await asyncio.sleep(end - clock.monotonic())
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
        await super()._answer(operation, name)


@contextlib.asynccontextmanager
async def serving(*services: str, **how: Any) -> AsyncIterator[tuple[World, HangingBalancers]]:
    """A service controller with one worker, which has served these Services."""
    world = World()
    world.balancers = balancers = HangingBalancers()
    world.cloud = Cloud(name="fake", load_balancer=balancers)
    world.node("n0")
    for name in services:
        world.service(name)
    async with world.running(**how):
        await world.pass_time(60)
        assert len(balancers.held) == len(services)
        yield world, balancers


def behind(balancers: FakeBalancers, node: str) -> set[str]:
    """Services whose balancer does not have that node."""
    names = {default_load_balancer_name(service): service.name for service in balancers.given}
    return {names[name] for name, (_, members) in balancers.held.items() if node not in members}


def sample(metric: str, /, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(metric, labels) or 0.0


# --- workers ----------------------------------------------------------------------------------


@virtual_time
async def test_hanging_services_do_not_delay_node_changes_of_the_others() -> None:
    """With one worker, calls about two of five Services hang for half a day.

    When the cloud answers again, the two follow as well.
    """
    async with serving(*"abcde") as (world, balancers):
        balancers.hanging = "de"
        for number in range(1, 13):
            world.node(f"n{number}")
            await world.pass_time(120)
            assert behind(balancers, f"n{number}") == {"d", "e"}
            await world.pass_time(3480)

        balancers.hanging = ()
        await world.pass_time(1800)
        assert behind(balancers, "n12") == set()


@virtual_time
async def test_a_slow_load_balancer_does_not_delay_other_services_by_default() -> None:
    """A call that ends before an overflow worker starts delays no other Service either."""
    workers = FLAGS["concurrent-service-syncs"].default
    async with serving(*"abcde", workers=workers) as (world, balancers):
        balancers.hanging, balancers.hang_s = "a", 25.0
        world.node("n1")
        await world.pass_time(5)

        assert behind(balancers, "n1") == {"a"}


@virtual_time
@pytest.mark.parametrize("stubborn", [False, True], ids=["cancelled", "given up"])
async def test_sixteen_hanging_services_do_not_delay_a_node_change(stubborn: bool) -> None:
    """Sixteen of twenty Services hang repeatedly; their calls are cancelled or abandoned.

    A new node reaches the other four within two minutes, with one worker.
    """
    await follow(20, 16, hang_s=1200, stubborn=stubborn, wait_s=5000, quick_s=1)


@virtual_time
@given(
    services=st.integers(min_value=1, max_value=40),
    hanging=st.integers(min_value=0, max_value=16),
    hang_s=st.floats(min_value=31, max_value=3000),
    quick_s=st.floats(min_value=0, max_value=2),
    stubborn=st.booleans(),
    wait_s=st.floats(min_value=0, max_value=5000),
)
@example(services=10, hanging=9, hang_s=900, quick_s=0, stubborn=False, wait_s=1678)
@example(services=17, hanging=16, hang_s=31, quick_s=2, stubborn=True, wait_s=0)
async def test_a_node_change_reaches_all_services_that_do_not_hang(
    services: int, hanging: int, hang_s: float, quick_s: float, stubborn: bool, wait_s: float
) -> None:
    """With any number of Services, of which up to 16 hang repeatedly, for any time.

    A node change reaches the others within two minutes, with one worker.
    """
    assume(hanging < services and quick_s * services <= 60)
    await follow(
        services, hanging, hang_s=hang_s, stubborn=stubborn, wait_s=wait_s, quick_s=quick_s
    )


async def follow(
    services: int, hanging: int, *, hang_s: float, stubborn: bool, wait_s: float, quick_s: float
) -> None:
    names = [f"s{number}" for number in range(services)]
    async with serving(*names) as (world, balancers):
        balancers.hanging, balancers.hang_s = names[:hanging], hang_s
        balancers.stubborn = stubborn
        world.node("n1")
        # Each hangs for the first time, and unforeseeably blocks a worker.
        await world.pass_time(60 + 31 * hanging + min(hang_s, 1000) + wait_s)
        balancers.seconds = quick_s

        world.node("n2")
        await world.pass_time(120)

        assert behind(balancers, "n2") <= set(balancers.hanging)
        balancers.hanging = ()
        await world.pass_time(4000)
        assert behind(balancers, "n2") == set()


@virtual_time
async def test_a_service_deleted_while_its_calls_hang_is_removed_later() -> None:
    """Its load balancer is deleted once the cloud answers; other Services do not wait."""
    async with serving("a", "b") as (world, balancers):
        balancers.hanging = "a"
        world.node("n1")
        await world.pass_time(3600)
        world.delete("a")
        world.delete("b")
        await world.pass_time(10)
        assert set(world.objects) == {"default/a"}

        balancers.hanging = ()
        await world.pass_time(2000)
        assert (world.objects, balancers.held) == ({}, {})


@virtual_time
async def test_overflow_workers_are_bounded_when_more_services_hang() -> None:
    """Forty Services hang: a metric shows that no worker is left.

    When the cloud answers again, all Services are served.
    """
    names = [f"s{number}" for number in range(40)]
    async with serving(*names) as (world, balancers):
        balancers.hanging = names
        world.node("n1")
        await world.pass_time(3600)
        assert sample("ccm_overflow_workers", name="service") == 16
        assert sum(balancers.under_way.values()) <= 17

        balancers.hanging = ()
        await world.pass_time(4000)
        assert behind(balancers, "n1") == set()
        assert sample("ccm_overflow_workers", name="service") == 0


@virtual_time
async def test_retries_and_changes_do_not_starve_each_other() -> None:
    """The cloud refuses a hundred Services, a second each; another one changes all the time.

    The changes are applied, and each of the hundred is retried.
    """
    names = [f"s{number}" for number in range(100)]
    async with serving("web") as (world, balancers):
        balancers.seconds = 1
        balancers.faults = {f"ensure {name}": errors.Internal("refused") for name in names}
        for name in names:
            world.service(name)
        await world.pass_time(1200)
        world.forget()
        for port in range(1000, 1600):
            world.change(ports=[{"port": port, "protocol": "TCP", "targetPort": 80}])
            await world.pass_time(1)
        assert {name for _, name, _ in balancers.log} == {"web", *names}
        calls = zip(balancers.at, balancers.log, strict=True)
        applied = [at for at, (_, name, _) in calls if name == "web"]
        assert max(later - at for at, later in pairwise(applied)) <= 3

        balancers.faults.clear()
        await world.pass_time(600)
        assert len(balancers.held) == 101


# --- threads ----------------------------------------------------------------------------------


class SynchronousCloud:
    """A provider over a synchronous library, whose requests hang while it is out of order."""

    def __init__(self) -> None:
        self.out_of_order = False
        self.in_order_again = threading.Event()
        self.begun = 0

    def _request(self) -> None:
        self.begun += 1
        if self.out_of_order:
            self.in_order_again.wait(60)

    async def ensure_load_balancer(self, *_: object) -> Status:
        await blocking(self._request)
        return Status()

    async def instance_exists(self, _: Node) -> bool:
        await blocking(self._request)
        return True


class Daemon:
    """A daemon's way to that cloud while calls about `hanging` Services hang, and its health."""

    def __init__(self, hanging: int) -> None:
        self.cloud = SynchronousCloud()
        face: Any = self.cloud
        self.handle = CloudClient(Cloud(name="sdk", load_balancer=face, instances=face))
        vitals = DaemonState()
        vitals.opened(self.handle)
        self.checks = health.Checks(vitals, Api(b"ok"))
        self.hanging = hanging

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Daemon]:
        self.cloud.out_of_order = True
        uids = [f"hanging-{number}" for number in range(self.hanging)]
        stuck = [asyncio.ensure_future(ensure(self.handle, uid)) for uid in uids]
        while self.cloud.begun < self.hanging:
            await asyncio.sleep(0)
        self.cloud.out_of_order = False
        try:
            yield self
        finally:
            self.cloud.in_order_again.set()
            await asyncio.gather(*stuck)

    async def ill(self) -> tuple[bool, bool]:
        """Whether it is not ready, and whether it is not alive."""
        ready = [await check.run() for check in self.checks.readyz()]
        alive = [await check.run() for check in self.checks.livez()]
        return not all(each.ok for each in ready), not all(each.ok for each in alive)


async def test_sixteen_hanging_threads_do_not_delay_other_calls() -> None:
    """A synchronous client library hangs for sixteen Services; the daemon stays ready and alive."""
    async with Daemon(16).running() as daemon, asyncio.timeout(DEADLINE_S):
        assert await ensure(daemon.handle, "another") == Status()
        assert await daemon.handle.call(InstancesV2.instance_exists, node("n"))
        assert await daemon.ill() == (False, False)


async def test_exhausted_threads_of_one_call_do_not_delay_other_calls(hand: HandClock) -> None:
    """The daemon is not ready at once, and not alive after five minutes, unless threads return."""
    async with Daemon(MAX_THREADS).running() as daemon, asyncio.timeout(DEADLINE_S):
        assert await daemon.handle.call(InstancesV2.instance_exists, node("n"))
        assert await daemon.ill() == (True, False)
        assert sample("ccm_cloud_threads_free", operation="ensure_load_balancer") == 0
        hand.advance(299)
        assert await daemon.ill() == (True, False)
        hand.advance(2)
        assert await daemon.ill() == (True, True)

    assert await daemon.ill() == (False, False)


# --- nodes ------------------------------------------------------------------------------------

NOW = "2026-01-01T00:00:00Z"
"""When virtual time begins."""


def fresh(name: str) -> Node:
    return node(name, taints=[uninitialized_taint()], created=NOW)


@contextlib.asynccontextmanager
async def initializing(fake: FakeCloud, *nodes: Node) -> AsyncIterator[Cluster]:
    """The node controller at work."""
    cluster = Cluster(*nodes)
    made = NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(CloudClient(fake.cloud())),
        ownership=NodeOwnership.from_flag(("fake",), ""),
        events=cluster,
        status_period_s=1e9,
        rng=random.Random(1),
    )
    async with cluster.running(made.controller):
        yield cluster


@virtual_time
@pytest.mark.parametrize("healed_s", [3, 120])
async def test_a_node_with_a_corrected_provider_id_is_initialised_within_a_minute(
    healed_s: float,
) -> None:
    """The cloud first gives a wrong ID, and corrects it in seconds or minutes."""
    heals_at = clock.monotonic() + healed_s

    def metadata(_: Node) -> InstanceMetadata:
        healed = clock.monotonic() >= heals_at
        return InstanceMetadata(provider_id="fake://1" if healed else "wrong://1")

    async with initializing(FakeCloud(metadata=metadata), fresh("n")) as cluster:
        await advance(healed_s - 0.5)
        assert cluster["n"].taints
        await advance(61)
        assert cluster["n"].provider_id == "fake://1"
        assert not cluster["n"].taints


@virtual_time
async def test_a_node_with_a_wrong_provider_id_is_retried_with_back_off() -> None:
    """After hours, once every ten minutes; the correction is noticed within that time."""
    fake = FakeCloud(provider_ids={"n": "wrong://1"})
    async with initializing(fake, fresh("n")) as cluster:
        await advance(7200)
        before = len(fake.calls)
        assert before < 40
        await advance(7200)
        assert len(fake.calls) - before == 12

        fake.provider_ids = {"n": "fake://1"}
        await advance(600)
        assert not cluster["n"].taints


@virtual_time
async def test_a_thousand_failing_nodes_do_not_delay_retries_of_a_new_one() -> None:
    """The cloud always fails for a thousand nodes, and once for the new one."""
    fake = FakeCloud()
    failed: list[str] = []

    def metadata(asked: Node) -> InstanceMetadata:
        if asked.name != "new" or "new" not in failed:
            failed.append(asked.name)
            raise errors.Internal("no")
        return InstanceMetadata(provider_id="fake://new")

    fake.metadata = metadata
    stuck = [fresh(f"stuck{number}") for number in range(1000)]
    async with initializing(fake, *stuck) as cluster:
        await advance(120)
        cluster.put(fresh("new"))
        await advance(5)
        assert not cluster["new"].taints
        assert "new" in failed


@virtual_time
async def test_a_retry_after_of_a_day_is_capped_at_minutes() -> None:
    """An overloaded API server or a proxy answers 429 with that delay."""
    fake = FakeCloud(provider_ids={"n": "fake://1"})
    async with initializing(fake) as cluster:
        refusal = kube_errors.from_response(429, {"Retry-After": "86400"}, b"")
        cluster.refuse = lambda: refusal
        cluster.put(fresh("n"))
        await advance(10)
        cluster.refuse = lambda: None
        await advance(360)
        assert not cluster["n"].taints


@virtual_time
async def test_retries_with_the_same_retry_after_are_spread() -> None:
    """A busy cloud gives 500 nodes the same delay: none is retried early, and few at a time."""
    asked: list[float] = []

    def metadata(_: Node) -> InstanceMetadata:
        asked.append(elapsed_s())
        if len(asked) <= 500:
            raise errors.RetryAfter("busy", seconds=60)
        return InstanceMetadata(provider_id="fake://1")

    nodes = [fresh(f"n{number}") for number in range(500)]
    async with initializing(FakeCloud(metadata=metadata), *nodes) as cluster:
        await advance(75)
        assert [each for each in cluster.informer.store.list() if each.taints] == []
    again = asked[500:]
    assert min(again) >= 60
    assert Counter(round(when, 1) for when in again).most_common(1)[0][1] < 25


# --- starts -----------------------------------------------------------------------------------


@virtual_time
async def test_a_hanging_first_listing_delays_services_by_a_minute_at_most() -> None:
    """A Service without load balancer does not wait for the listing at all."""
    world = World(digests=True)
    world.node("n0")
    for name in "abc":
        world.service(name)
    async with world.running():
        await world.pass_time(60)
    world.forget()
    world.service("new")
    world.balancers.slow.add("list")

    async with world.running():
        await world.pass_time(1)
        assert world.balancers.of("ensure") == [("new", ("n0",))]
        world.node("n1")
        await world.pass_time(64)
        assert behind(world.balancers, "n1") == set()
