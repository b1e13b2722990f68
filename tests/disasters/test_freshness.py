"""Disasters of what is stale, half read or left over: each test is one, in virtual time."""

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
    """Lists what it had when the listing began, half a minute later."""

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


async def test_a_machine_replaced_during_a_slow_listing_gets_its_own_id() -> None:
    """A VM is replaced while the listing is made that has the old one.

    The new node must not get the old ID, which it would have for good; both get their own."""
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
    """Does not say in its listing where a balancer can be reached."""

    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        return [replace(one, status=Status()) for one in await super().list_load_balancers("")]


async def test_a_listing_without_addresses_takes_none_away() -> None:
    """A provider leaves the status out of its listing, and the daemon is restarted.

    No Service may lose the address that people use; one that never had one gets it."""
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
async def test_a_removal_that_failed_half_way_leaves_no_floating_ip(restarts: bool) -> None:
    """The balancer is deleted, then the call fails; perhaps another leader goes on.

    `There is no balancer` must not end the removal: what was made with it is freed in the end."""
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


# --- what cannot be read --------------------------------------------------------------------


async def test_a_bookmark_in_the_middle_of_a_list_is_no_place_to_go_on_from() -> None:
    """The connection is cut in the middle of the initial events, right after a bookmark.

    Nodes that were not told yet must not stay unknown for good: everything is told anew."""
    rest: list[Step] = [added(node("a", 1)), added(node("b", 2)), bookmark(9, end=True), FOREVER]
    server = Server(watches=[[added(node("a", 1)), bookmark(9), refused()], rest])
    sink = Recorder()
    reflector = Reflector(server, sink, resource="nodes", settings=LISTED, rng=random.Random(1))  # type: ignore[arg-type]
    async with running(reflector.run()):
        await advance(30)

        assert set(sink.objects) == {"a", "b"}
        assert server.versions == ["", ""]


@pytest.mark.parametrize("key", ["lost", ""], ids=["by name", "without a readable name"])
async def test_a_node_that_cannot_be_decoded_keeps_its_routes(key: str) -> None:
    """After a restart one node has a field that nobody can read, so the cache lacks it.

    Its route and the one that leads nowhere for now must stay; when it is deleted they go."""
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


async def test_a_node_whose_newest_state_cannot_be_decoded_is_kept() -> None:
    """A node that was not Ready is written anew, by somebody whose words nobody can read.

    It must not be deleted for what it was; when it can be read and is still gone, it is."""
    world = nodes_world.World()
    async with world.daemon(allow_mass=True):
        world.api.informer._reflector.malformed_keys.add("a")
        world.node("a", ready=False, there=False)
        await advance(3600)
        assert world.api.deleted == []

        world.api.informer._reflector.malformed_keys.clear()
        await advance(3600)
        assert "a" in world.api.deleted


async def test_nodes_that_cannot_be_decoded_do_not_empty_the_balancers() -> None:
    """An upgrade of the API server makes most nodes unreadable, and the daemon is restarted.

    Balancers must keep all members; a Service that people change is served all the same, and
    when the nodes can be read again those that are gone are members no more."""
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


async def test_one_node_of_many_that_cannot_be_decoded_stops_nobody() -> None:
    """One of ten nodes cannot be decoded, for ever.

    The other members must go on to follow the nodes."""
    async with served(*(f"n{number}" for number in range(9))) as world:
        world.nodes._reflector.malformed_keys.add("lost")
        world.remove_node("n0")
        await world.pass_time(60)

        assert [len(members) for _, members in world.balancers.of("update")] == [8]


# --- load -----------------------------------------------------------------------------------


@pytest.mark.row("service-scale-01", "service-scale-02", "service-scale-03")
async def test_a_hundred_services_and_a_thousand_nodes() -> None:
    """Each Service costs one ensure and two writes, one node more an update of each balancer. A
    start is a listing, and an ensure of each that was changed or altered meanwhile."""
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


async def test_a_wave_of_new_nodes_is_one_update_of_each_balancer() -> None:
    """1,000 nodes come at once and are initialised over two minutes, beside 100 Services.

    No balancer may be changed again and again; in the end all have all nodes."""
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


async def test_a_node_that_comes_after_a_quiet_while_is_a_member_at_once() -> None:
    """The rest counts from the end of the last change, which took 1.5 s."""
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


async def test_a_node_that_goes_away_in_a_wave_leaves_in_time() -> None:
    """Nodes are initialised without an end, and one that serves is deleted.

    Its balancers must not send traffic to it for longer than ten seconds."""
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


async def test_hundreds_of_missing_routes_are_made_a_few_at_a_time() -> None:
    """A cloud lost the routes of a whole cluster.

    The daemon must neither stand still nor start a task for each; in the end all are there."""
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


async def test_a_balancer_of_nobody_is_told_of_and_left_alone() -> None:
    """A Service was lost with an older state of etcd; its balancer is still there, and costs.

    It must not be deleted, and people must hear of it once, when two listings have it."""
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
