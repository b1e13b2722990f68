"""Edges of the node controller in virtual time: conflicts without end, events, gauges."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from ccm.base import metrics
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import Unavailable
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.types import InstanceMetadata, address
from ccm.controllers.node.controller import WRITE_ATTEMPTS, NodeController, Settings
from ccm.kube.errors import Conflict, NotFound
from ccm.model import Node, ObjectReference
from ccm.runtime.controller import DONE
from ccm.testing.builders import node as build
from ccm.testing.builders import uninitialized_taint
from ccm.testing.clock import advance, elapsed_s
from ccm.testing.fakes import FakeCloud

pytestmark = pytest.mark.virtual_time

U = uninitialized_taint()


def moved() -> Conflict:
    return Conflict(status=409, reason="Conflict", message="moved")


def missing() -> NotFound:
    return NotFound(status=404, reason="NotFound", message="gone")


class Cluster:
    """A cache, an API server and a recorder in one; writes do what `refuse` says."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {each.name: each for each in nodes}
        self.refuse: Callable[[], Exception | None] = lambda: None
        self.requests: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.store = self

    def get_cached(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def list(self) -> list[Node]:
        return list(self.nodes.values())

    def add_handler(self, *, name: str, on_add: Any, on_update: Any, on_delete: Any) -> None:
        self.added, self.updated, self.deleted = on_add, on_update, on_delete
        for each in self.list():
            on_add(each, True)

    async def wait_synced(self, timeout_s: float) -> None:
        """It always is."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.events.append((reason, message))


class Cache:
    """The cluster as the controller's cache."""

    def __init__(self, cluster: Cluster) -> None:
        self.get = cluster.get_cached
        self.list = cluster.list
        self.add_handler = cluster.add_handler
        self.wait_synced = cluster.wait_synced
        self.remove_handler = lambda handler: None
        self.store = self


class Api:
    """The cluster as the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def get(self, name: str, *, namespace: str = "") -> Node:
        self._cluster.requests.append("GET")
        if name not in self._cluster.nodes:
            raise missing()
        return self._cluster.nodes[name]

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Node:
        self._cluster.requests.append(f"PATCH {subresource}".strip())
        refusal = self._cluster.refuse()
        if refusal is not None:
            raise refusal
        before = self._cluster.nodes[name]
        assert "spec" in patch
        spec = msgspec.structs.replace(before.spec, taints=None)
        after = msgspec.structs.replace(before, spec=spec)
        self._cluster.nodes[name] = after
        return after

    patch_merge = patch_strategic


def controller(cluster: Cluster, fake: FakeCloud) -> NodeController:
    cache: Any = Cache(cluster)
    return NodeController(
        nodes=cache,
        api=Api(cluster),
        lookup=InstanceLookup(Handle(fake.cloud())),
        schemes=("fake",),
        events=cluster,
        settings=Settings(status_period_s=1e9),
        rng=random.Random(1),
    )


def cloud(**script: Any) -> FakeCloud:
    return FakeCloud(**{"provider_ids": {"node0": "fake://1"}, **script})


async def test_conflicts_without_end_become_an_error() -> None:
    cluster = Cluster(build(taints=[U]))
    cluster.refuse = moved

    with pytest.raises(Conflict):
        await controller(cluster, cloud()).sync_node("node0")

    assert cluster.requests.count("PATCH") == WRITE_ATTEMPTS
    # The first retry is at once; 18 pauses of 50 to 100 ms follow.
    assert 18 * 0.05 <= elapsed_s() <= 18 * 0.1
    assert cluster.events == []


async def test_a_node_that_vanishes_under_the_write_is_done() -> None:
    cluster = Cluster(build(taints=[U]))
    cluster.refuse = missing

    result = await controller(cluster, cloud()).sync_node("node0")

    assert (result, cluster.requests, cluster.events) == (DONE, ["PATCH"], [])


async def test_a_node_that_vanishes_after_a_conflict_is_done() -> None:
    cluster = Cluster(build(taints=[U]))

    def vanish() -> Exception:
        cluster.nodes.clear()
        return moved()

    cluster.refuse = vanish
    result = await controller(cluster, cloud()).sync_node("node0")

    assert (result, cluster.requests) == (DONE, ["PATCH", "GET"])


async def test_one_cause_is_told_once_a_minute_and_another_at_once() -> None:
    fake = cloud(metadata_error=Unavailable("first"))
    cluster = Cluster(build(taints=[U]))
    task = spawn(controller(cluster, fake).controller.run(), name="controller")

    await advance(50)
    assert cluster.events == [("InitializationFailed", "Initialization failed: first")]
    fake.metadata_error = Unavailable("second")
    await advance(40)
    assert cluster.events[1:] == [("InitializationFailed", "Initialization failed: second")]
    await advance(90)
    assert cluster.events[2:] == [("InitializationFailed", "Initialization failed: second")]

    await cancel_and_join(task)


async def test_what_the_api_server_lacks_is_no_event_about_the_node() -> None:
    cluster = Cluster(build(taints=[U]))
    cluster.refuse = moved
    task = spawn(controller(cluster, cloud()).controller.run(), name="controller")

    await advance(60)
    await cancel_and_join(task)

    assert "PATCH" in cluster.requests
    assert cluster.events == []


async def test_the_gauge_counts_nodes_that_wait_for_this_cloud() -> None:
    waiting = build("a", taints=[U])
    foreign = build("b", taints=[U], provider_id="other://1")
    cluster = Cluster(waiting, foreign, build("c"))
    fake = cloud(metadata=lambda _: None)
    task = spawn(controller(cluster, fake).controller.run(), name="controller")
    await advance(0)

    def gauge() -> float | None:
        return metrics.REGISTRY.get_sample_value("ccm_nodes_uninitialized")

    assert gauge() == 1
    cluster.updated(waiting, build("a", resource_version="2"))
    assert gauge() == 0
    cluster.updated(build("a", resource_version="2"), build("a", taints=[U], resource_version="3"))
    assert gauge() == 1
    cluster.deleted(build("a", taints=[U]))
    assert gauge() == 0

    await cancel_and_join(task)


async def test_addresses_that_came_while_the_cloud_was_asked_are_not_written_again() -> None:
    cluster = Cluster(build())
    found = InstanceMetadata(addresses=[address("InternalIP", "10.0.0.1")])

    def answer(_: Node) -> InstanceMetadata:
        cluster.nodes["node0"] = build(addresses=found.addresses)
        return found

    await controller(cluster, cloud(metadata=answer)).update_addresses()

    assert cluster.requests == []


@pytest.mark.parametrize(
    ("created", "seconds"),
    [("2025-12-31T23:59:50Z", 10.0), ("2026-01-01T00:05:00Z", 0.0)],
    ids=["before", "clock behind the server's"],
)
async def test_delays_count_from_the_creation_of_the_node(created: str, seconds: float) -> None:
    def total() -> float:
        name = "node_controller_cloud_provider_taint_removal_delay_seconds_sum"
        return metrics.REGISTRY.get_sample_value(name) or 0.0

    before = total()
    cluster = Cluster(build(taints=[U], created=created))

    await controller(cluster, cloud()).sync_node("node0")

    assert total() - before == pytest.approx(seconds)
    assert cluster.events == [("Synced", "Node synced successfully")]
