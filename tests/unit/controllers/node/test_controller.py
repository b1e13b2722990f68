"""Edges of the node controller in virtual time: conflicts without end, events, gauges."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ccm.base import metrics
from ccm.cloud.calls.handle import Handle
from ccm.cloud.lookup import InstanceLookup, Ownership
from ccm.cloud.types import InstanceMetadata, address
from ccm.controllers.node.controller import WRITE_ATTEMPTS, NodeController
from ccm.kube.errors import Conflict
from ccm.model import Node, names
from ccm.runtime.controller import DONE
from ccm.testing.builders import node as build
from ccm.testing.builders import uninitialized_taint
from ccm.testing.clock import advance, elapsed_s
from tests.support.cluster import Cluster, missing, moved
from tests.support.fakecloud import FakeCloud

pytestmark = pytest.mark.virtual_time

U = uninitialized_taint()


def controller(cluster: Cluster, fake: FakeCloud, own_nodes: str = "") -> NodeController:
    return NodeController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(Handle(fake.cloud())),
        ownership=Ownership.of(("fake",), own_nodes),
        events=cluster,
        status_period_s=1e9,
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

    def vanish() -> Conflict:
        cluster.drop("node0")
        return moved()

    cluster.refuse = vanish
    result = await controller(cluster, cloud()).sync_node("node0")

    assert (result, cluster.requests) == (DONE, ["PATCH", "GET"])


async def test_what_the_api_server_lacks_is_no_event_about_the_node() -> None:
    cluster = Cluster(build(taints=[U]))
    cluster.refuse = moved

    async with cluster.running(controller(cluster, cloud()).controller):
        await advance(60)

    assert "PATCH" in cluster.requests
    assert cluster.events == []


async def test_the_gauge_counts_nodes_that_wait_for_this_cloud() -> None:
    cluster = Cluster(
        build("a", taints=[U]), build("b", taints=[U], provider_id="other://1"), build("c")
    )

    def gauge() -> float | None:
        return metrics.REGISTRY.get_sample_value("ccm_nodes_uninitialized")

    async with cluster.running(controller(cluster, cloud(metadata=lambda _: None)).controller):
        assert gauge() == 1
        cluster.put(build("a"))
        assert gauge() == 0
        cluster.put(build("a", taints=[U]))
        assert gauge() == 1
        cluster.drop("a")
        assert gauge() == 0


@pytest.mark.parametrize(
    ("node", "known", "own_nodes", "touched"),
    [
        ({}, False, "", False),
        ({}, True, "", True),
        ({}, False, "beta.kubernetes.io/instance-type", True),
        ({"provider_id": "fake://1"}, False, "", True),
        ({"provider_id": "other://1"}, True, "", False),
        ({"provider_id": "fake://1"}, True, "elsewhere", False),
    ],
)
async def test_labels_are_changed_of_our_nodes_only(
    node: dict[str, str], known: bool, own_nodes: str, touched: bool
) -> None:
    """A node with neither ID nor taint may be anybody's, until the cloud says that it knows it."""
    labels = {names.LABEL_INSTANCE_TYPE_BETA: "x"}
    cluster = Cluster(build(labels=labels, **node))  # type: ignore[arg-type]
    fake = cloud(metadata=lambda _: InstanceMetadata() if known else None)

    async with cluster.running(controller(cluster, fake, own_nodes).controller):
        await advance(60)

    assert cluster.requests == (["PATCH"] if touched else [])


async def test_addresses_that_came_while_the_cloud_was_asked_are_not_written_again() -> None:
    cluster = Cluster(build())
    found = InstanceMetadata(addresses=[address("InternalIP", "10.0.0.1")])

    def answer(_: Node) -> InstanceMetadata:
        cluster.put(build(addresses=found.addresses))
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


async def test_a_node_that_is_left_to_others_is_neither_asked_about_nor_changed() -> None:
    """Neither its taint nor its labels: another manager looks after it."""
    labels = {names.LABEL_ZONE_BETA: "z1"}
    cluster = Cluster(build("new", taints=[U]), build("old", labels=labels))
    fake = cloud()
    made = controller(cluster, fake, own_nodes="own")

    for name in ("new", "old"):
        assert await made.sync_node(name) == DONE
    await made.update_addresses()

    assert (fake.calls, cluster.requests) == ([], [])
