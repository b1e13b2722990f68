"""Disasters of stale, malformed or orphaned objects: each test is one, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud import (
    InstanceListing,
    InstanceMetadata,
    InstanceRecord,
    LoadBalancerRecord,
    Power,
    Service,
    Status,
)
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import Unavailable
from ccm.cloud.interface import Inventory
from ccm.cloud.lookup import InstanceLookup, NodeOwnership, SharedInventory
from ccm.controllers.node.controller import NodeController
from ccm.controllers.service import controller as service_controller
from ccm.controllers.service.members import MAX_INITIALISATION_S
from ccm.kube.informer import Reflector
from ccm.model import names
from ccm.testing.builders import node as build
from ccm.testing.builders import uninitialized_taint
from ccm.testing.clock import advance
from tests.disasters import nodes_world
from tests.support import routes
from tests.support.cluster import Cluster
from tests.support.fakecloud import FakeStateCloud
from tests.support.services import FakeBalancers, FakeDigests, World, ports, served, started
from tests.support.watches import (
    LISTED,
    Recorder,
    Server,
    Step,
    added,
    bookmark,
    node,
    refused,
    running,
)

pytestmark = pytest.mark.virtual_time

U = uninitialized_taint()
FOREVER = 1e9


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


# --- listings -------------------------------------------------------------------------------


class SlowCloud(FakeStateCloud):
    """Returns the instances of the start of the listing half a minute later."""

    async def list_instances(self) -> InstanceListing:
        before = dict(self.provider_ids)
        await asyncio.sleep(25)
        self.calls.append("list-instances")
        return InstanceListing(
            instances=[
                InstanceRecord(
                    name=name, power=Power.RUNNING, metadata=InstanceMetadata(provider_id=found)
                )
                for name, found in before.items()
            ]
        )


async def test_a_vm_replaced_during_a_slow_listing_gets_its_own_provider_id() -> None:
    """The listing still has the old VM.

    A provider ID cannot be changed, so the new node must not get the old one.
    """
    cloud = SlowCloud(v1=False, listing=InstanceListing(instances=()))
    cloud.provider_ids = {"web": "fake://old", "other": "fake://2"}
    handle = CloudClient(cloud.cloud())
    cluster = Cluster(build("web", taints=[U]), build("other", taints=[U]))
    inventory = SharedInventory(
        lambda: handle.call(Inventory.list_instances), population=lambda: 2, max_age_s=30.0
    )
    cluster.informer.add_handler(
        name="inventory",
        on_add=lambda new, _: inventory.on_node_event(None, new),
        on_update=inventory.on_node_event,
        on_delete=lambda old, _: inventory.on_node_event(old, None),
    )
    controller = NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(handle, inventory),
        ownership=NodeOwnership.from_flag(("fake",), ""),
        events=cluster,
        status_period_s=1e9,
        rng=random.Random(1),
    )
    async with cluster.running(controller.controller):
        await advance(5)
        cloud.provider_ids["web"] = "fake://new"
        cluster.drop("web")
        cluster.put(build("web", uid="another", taints=[U]))
        await advance(120)

        assert cluster["web"].provider_id == "fake://new"
        assert cluster["other"].provider_id == "fake://2"
        assert "list-instances" in cloud.calls


class Silent(FakeDigests):
    """Omits addresses from its listing."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        return [replace(one, status=Status()) for one in await super().list_load_balancers("")]


async def test_a_listing_without_addresses_clears_no_status() -> None:
    """A provider omits the status from its listing, and the daemon is restarted.

    No Service loses its address; a Service without one gets it.
    """
    world = World()
    world.balancers = Silent()
    world.cloud = replace(world.cloud, load_balancer=world.balancers)
    world.node("a")
    world.service("old")
    world.service("new")
    async with world.running():
        await world.pass_time(60)
    world.wipe_status("new")
    held = dict(world.balancers.held)
    world.forget()
    async with world.running():
        await world.pass_time(600)

        assert world.address("old") == "ip-of-auidold1"
        assert world.address("new") == "ip-of-auidnew2"
        assert [name for name, _ in world.balancers.of("ensure")] == ["new"]
        assert world.balancers.held == held


# --- removal --------------------------------------------------------------------------------


class Floating(FakeBalancers):
    """Each balancer has a floating IP, freed after it; `faults["free"]` fails in between."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[str] = set()

    async def ensure_load_balancer(self, *given: Any) -> Status:
        status = await super().ensure_load_balancer(*given)
        self.addresses |= self.held.keys()
        return status

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        await super().ensure_load_balancer_deleted(cluster_name, service)
        await self._answer("free", service.name)
        self.addresses &= self.held.keys()


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_failed_deletion_of_a_load_balancer_leaves_no_floating_ip(restarts: bool) -> None:
    """The load balancer is deleted, then the call fails, and perhaps the leader changes.

    The missing load balancer does not end the deletion: its floating IP is freed as well.
    """
    world = World()
    balancers = world.balancers = Floating()
    world.cloud = replace(world.cloud, load_balancer=balancers)
    world.service()
    async with world.running():
        await world.pass_time(10)
        assert balancers.addresses
        balancers.faults["free"] = Unavailable("down")
        world.delete()
        await world.pass_time(2)
        assert (balancers.held, bool(balancers.addresses)) == ({}, True)
        if not restarts:
            balancers.faults.clear()
        await world.pass_time(600)
    balancers.faults.clear()
    async with world.running():
        await world.pass_time(600)

    assert balancers.addresses == set()
    assert world.objects == {}


# --- malformed objects ----------------------------------------------------------------------


async def test_a_bookmark_within_the_initial_events_is_no_resume_point() -> None:
    """The connection is cut in the initial events, right after a bookmark.

    The watch starts again from the beginning, so that no node is missed.
    """
    rest: list[Step] = [added(node("a", 1)), added(node("b", 2)), bookmark(9, end=True), FOREVER]
    server = Server(watches=[[added(node("a", 1)), bookmark(9), refused()], rest])
    sink = Recorder()
    reflector = Reflector(server, sink, resource="nodes", settings=LISTED, rng=random.Random(1))  # type: ignore[arg-type]
    async with running(reflector.run()):
        await advance(30)

        assert set(sink.objects) == {"a", "b"}
        assert server.versions == ["", ""]


@pytest.mark.parametrize("key", ["lost", ""], ids=["by name", "without a readable name"])
async def test_a_malformed_node_keeps_its_routes(key: str) -> None:
    """After a restart, the cache lacks a node that cannot be decoded.

    Its routes stay, also a blackhole route; when the node is deleted, they are too.
    """
    present = [
        routes.made("a", routes.A, "r1"),
        routes.made("lost", routes.B, "r2"),
        routes.made("lost", "10.120.2.0/24", "r3", blackhole=True),
    ]
    async with routes.running({"a": routes.A}, routes=present, grace_s=0.0) as env:
        assert "delete lost 10.120.1.0/24" in env.cloud.log
    async with routes.running({"a": routes.A}, unreadable=key, routes=present) as env:
        await advance(3600)
        assert env.cloud.changes() == []

        env.informer._reflector.malformed_keys.clear()
        await advance(3600)
        assert env.cloud.present() == {("a", routes.A)}


async def test_a_node_whose_latest_version_is_malformed_is_not_deleted() -> None:
    """A node that was not Ready has a new version that cannot be decoded.

    It is not deleted for its former state; once it is readable, and its VM missing, it is.
    """
    world = nodes_world.World()
    async with world.daemon(allow_mass=True):
        world.api.informer._reflector.malformed_keys.add("a")
        world.node("a", ready=False, there=False)
        await advance(3600)
        assert world.api.deleted == []

        world.api.informer._reflector.malformed_keys.clear()
        await advance(3600)
        assert "a" in world.api.deleted


async def test_malformed_nodes_stay_members_of_load_balancers() -> None:
    """After an upgrade of the API server and a restart, most nodes cannot be decoded.

    Members stay, and a changed Service is served. Once nodes can be decoded again, deleted ones
    are removed.
    """
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name)
    world.service()
    world.service("changed")
    async with world.running():
        await world.pass_time(60)
    for name in ("n2", "n3"):
        world.remove_node(name)
    world.forget()
    lost = {"n2", "n3"}
    async with world.running(undecodable=lost):
        await world.pass_time(3600)
        assert world.balancers.log == []
        world.change("changed", externalTrafficPolicy="Local")
        await world.pass_time(60)
        assert [name for name, _ in world.balancers.of("ensure")] == ["changed"]

        world.nodes._reflector.malformed_keys.clear()
        world.node("n2")
        await world.pass_time(60)
        assert world.balancers.held["auidweb1"][1] == ("n1", "n2")


async def test_one_malformed_node_does_not_block_member_updates() -> None:
    """One of ten nodes can never be decoded."""
    async with served(*(f"n{number}" for number in range(9))) as world:
        world.nodes._reflector.malformed_keys.add("lost")
        world.remove_node("n0")
        await world.pass_time(60)

        assert [len(members) for _, members in world.balancers.of("update")] == [8]


# --- load -----------------------------------------------------------------------------------


@pytest.mark.row("service-scale-01", "service-scale-02", "service-scale-03")
async def test_cloud_calls_of_a_hundred_services_and_a_thousand_nodes() -> None:
    """Each Service costs one ensure and two writes, a new node one update per load balancer.

    A start costs a listing, and an ensure per Service that changed in the cluster or the cloud.
    """
    world = World(digests=True)
    for number in range(1000):
        world.node(f"m{number}")
    for number in range(100):
        world.service(f"s{number}")
    async with world.running():
        await world.pass_time(120)
        assert Counter(world.balancers.calls) == {"ensure": 100}
        assert len(world.patches) == 200
        world.forget()
        world.node("latecomer")
        await world.pass_time(60)
        assert Counter(world.balancers.calls) == {"update": 100}
        assert world.patches == []
    world.forget()
    async with world.running():
        await world.pass_time(600)
        assert (world.balancers.calls, world.patches) == (["list"], [])
    world.forget()
    for number in range(10):
        world.change(f"s{number}", ports=ports(81))
    for name in list(world.balancers.held)[10:19]:
        world.balancers.held[name] = ("altered", ())
    del world.balancers.held[list(world.balancers.held)[19]]
    async with world.running():
        await world.pass_time(600)
        assert Counter(world.balancers.calls) == {"list": 1, "ensure": 20}
        assert world.patches == []


async def test_a_wave_of_new_nodes_costs_one_update_per_load_balancer() -> None:
    """1,000 new nodes are initialised over two minutes, beside 100 Services.

    In the end, all load balancers have all nodes.
    """
    async with started("n") as world:
        for number in range(100):
            world.service(f"s{number}")
        await world.pass_time(10)
        world.forget()
        world.balancers.seconds = 0.01
        for number in range(1000):
            world.node(f"m{number}", provider_id="", taints=[U])
        for number in range(1000):
            world.node(f"m{number}")
            await world.pass_time(0.12)
        await world.pass_time(120)

        assert len(world.balancers.of("update")) == 100
        assert {len(members) for _, members in world.balancers.held.values()} == {1001}


async def test_a_single_new_node_becomes_a_member_at_once() -> None:
    """The minimum pause counts from the end of the last update, which took 1.5 s."""
    async with started("n") as world:
        for number in range(100):
            world.service(f"s{number}")
        await world.pass_time(60)
        world.balancers.seconds = 0.015
        world.node("first")
        await world.pass_time(20)
        world.forget()

        world.node("new", provider_id="", taints=[U])
        await world.pass_time(0.5)
        world.node("new")
        await world.pass_time(3)

        assert len(world.balancers.of("update")) == 100
        assert {members for _, members in world.balancers.held.values()} == {("first", "n", "new")}


async def test_a_node_deleted_during_a_wave_is_removed_within_ten_seconds() -> None:
    """Other nodes are initialised all the time."""
    async with served("n1", "n2") as world:
        for number in range(int(MAX_INITIALISATION_S)):
            world.node(f"m{number}", provider_id="", taints=[U])
            if number == 30:
                world.remove_node("n2")
            await world.pass_time(1)
            if number == 38:
                assert world.balancers.of("update") == []
            if number == 41:
                ((_, members),) = world.balancers.of("update")
                assert "n2" not in members


async def test_hundreds_of_missing_routes_are_created_with_bounded_concurrency() -> None:
    """A cloud lost the routes of a whole cluster.

    The daemon does not start a task per route; in the end, all routes are present.
    """
    many = {f"n{n}": f"10.120.{n // 16}.{n % 16 * 16}/28" for n in range(500)}
    before = len(asyncio.all_tasks())
    async with routes.running(many, concurrency=20, latency_s=1.0) as env:
        await advance(1.5)
        assert len(asyncio.all_tasks()) - before < 60
        assert env.cloud.most == 20

        await advance(200)
        assert len(env.cloud.routes) == 500
        assert {status for _, status, _ in env.conditions} == {"False"}


# --- left-overs -----------------------------------------------------------------------------


async def test_an_orphaned_load_balancer_is_reported_once_and_not_deleted() -> None:
    """Its Service was lost with an older state of etcd.

    The event is emitted after two listings that contain it.
    """
    world = World(digests=True)
    world.service()
    world.service("other", loadBalancerClass="example.com/theirs")
    world.balancers.held = {"aleft": ((), ()), "auidother2": ((), ())}
    async with world.running():
        await world.pass_time(1.3 * service_controller.ORPHANS_PERIOD_S)
        assert "OrphanedLoadBalancer" not in world.reasons()

        world.services._reflector.malformed_keys.add("default/unread")
        await world.pass_time(10 * service_controller.ORPHANS_PERIOD_S)
        assert "OrphanedLoadBalancer" not in world.reasons()

        world.services._reflector.malformed_keys.clear()
        await world.pass_time(10 * service_controller.ORPHANS_PERIOD_S)
        assert world.events.count(("kept", "Warning", "OrphanedLoadBalancer")) == 1
        assert "--delete=aleft" in world.messages[-1]
        assert sample("ccm_service_orphans") == 1
        assert "aleft" in world.balancers.held

        del world.balancers.held["aleft"]
        await world.pass_time(2 * service_controller.ORPHANS_PERIOD_S)
        assert sample("ccm_service_orphans") == 0
        assert names.FINALIZER_LOAD_BALANCER in world.finalizers()
