"""Edges of the node controller in virtual time: conflicts without end, events, gauges."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ccm.cloud.calls.handle import Handle
from ccm.cloud.lookup import InstanceLookup, Ownership
from ccm.controllers.node.controller import NodeController
from ccm.kube.errors import Conflict
from ccm.runtime.controller import DONE
from ccm.testing.builders import node as build
from ccm.testing.builders import uninitialized_taint
from tests.support.cluster import Cluster, moved
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


async def test_a_node_that_vanishes_after_a_conflict_is_done() -> None:
    cluster = Cluster(build(taints=[U]))

    def vanish() -> Conflict:
        cluster.drop("node0")
        return moved()

    cluster.refuse = vanish
    result = await controller(cluster, cloud()).sync_node("node0")

    assert (result, cluster.requests) == (DONE, ["PATCH", "GET"])
