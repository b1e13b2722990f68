"""The provider is replaced during operations of the former one."""

from __future__ import annotations

import dataclasses

import pytest

from ccm.base.throttle import TokenBucket, Unlimited
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.types import address
from ccm.controllers.node.controller import NodeController
from ccm.kube.errors import KubeError
from ccm.testing.builders import node, uninitialized_taint
from ccm.testing.clock import advance
from tests.disasters.test_balancers_routes import shops
from tests.support import routes
from tests.support.cluster import Cluster, moved
from tests.support.fakecloud import FakeCloud
from tests.support.services import FakeDigests, World

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("when", ["listing", "waiting for the rate", "waiting for its turn"])
async def test_routes_listed_in_the_old_project_are_not_deleted_in_the_new_one(when: str) -> None:
    """The provider is replaced during the listing of routes, or while deletions wait.

    In the new project, such a route may belong to another cluster.
    """
    stale = [routes.made("old", f"10.120.{number}.0/24", f"r{number}") for number in range(3)]
    limiter = Unlimited() if when != "waiting for the rate" else TokenBucket(qps=0.1, burst=1)
    slow = ["list"] if when == "listing" else []
    calls = 1 if when == "waiting for its turn" else 9
    async with routes.running(
        {}, routes=stale, slow=slow, limiter=limiter, latency_s=1.0, concurrency=calls
    ) as env:
        await advance(1.5)
        new = routes.FakeRoutes()
        new.routes = [routes.made("theirs", "10.9.0.0/24")]
        routes.exchange(env, new)
        for opened in env.cloud.open.values():
            opened.set()
        await advance(3600)

        assert new.changes() == []
        assert len(new.at) > 1


async def test_a_service_is_deleted_in_the_new_project_without_a_look_up() -> None:
    """Even where the new project has no such load balancer, it may have related resources."""
    async with shops() as world:
        world.handle.swap(world.cloud)
        world.balancers.held.clear()
        world.delete("shop-1")
        await world.pass_time(60)
        assert world.balancers.calls == ["delete"]


@pytest.mark.parametrize("exchanged", [False, True])
async def test_a_listing_of_the_old_project_is_repeated_in_the_new_one(
    exchanged: bool,
) -> None:
    """The provider is replaced during the first listing of load balancers."""
    world = World(digests=True)
    world.node("a")
    world.service("web")
    async with world.running():
        await world.pass_time(60)
    world.forget()
    world.balancers.slow.add("list")
    async with world.running():
        if exchanged:
            new = FakeDigests()
            world.handle.swap(dataclasses.replace(world.cloud, load_balancer=new))
        world.balancers.release.set()
        await world.pass_time(60)
        if exchanged:
            assert new.calls == ["list", "ensure"]
        assert world.balancers.calls == ["list"]


@pytest.mark.parametrize("is_new", [True, False], ids=["waiting", "initialised"])
@pytest.mark.parametrize("when", ["asking", "writing"])
async def test_metadata_of_the_old_project_is_not_written_to_a_node(
    when: str, is_new: bool
) -> None:
    """The provider is replaced during the look-up, or before a conflicting write is repeated.

    Addresses, and the provider ID of a new node, are those of the new project.
    """
    old, new = (
        FakeCloud(
            provider_ids={"n": f"fake://{name}"},
            addresses=[address("InternalIP", f"10.0.0.{number}")],
        )
        for number, name in enumerate(("old", "new"))
    )
    old.delay_s = 2.0 if when == "asking" else 0.0
    handle = CloudClient(old.cloud())
    cluster = Cluster(
        node("n", taints=[uninitialized_taint()]) if is_new else node("n", provider_id="fake://n")
    )
    made = NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(handle),
        ownership=NodeOwnership.from_flag(("fake",), ""),
        events=cluster,
        status_period_s=60.0,
    )

    def exchange() -> KubeError | None:
        cluster.refuse = lambda: None
        handle.swap(new.cloud())
        return moved()

    if when == "writing":
        cluster.refuse = exchange
    async with cluster.running(made.controller):
        await advance(1)
        if when == "asking":
            exchange()
        await advance(70)

    assert [one.address for one in cluster["n"].addresses] == ["10.0.0.1"]
    assert cluster["n"].provider_id == ("fake://new" if is_new else "fake://n")
    assert "10.0.0.0" not in str(cluster.patches)
