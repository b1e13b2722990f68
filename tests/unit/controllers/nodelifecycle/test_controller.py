"""Trouble and holds are said at their start and end, and nothing is kept about gone nodes."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base.metrics import REGISTRY
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, ImplementedElsewhere, Unavailable
from ccm.cloud.lookup import InstanceLookup, Ownership
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController
from ccm.controllers.nodelifecycle.plan import BRAKE_WINDOW_S, Rules
from ccm.model import Node
from ccm.runtime.deletions import DeletionRecord, Holds
from ccm.testing.builders import node as build
from ccm.testing.builders import shutdown_taint
from ccm.testing.clock import advance
from tests.support.cluster import Cluster
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud
from tests.support.lifecycle import ready, running, silent

pytestmark = pytest.mark.virtual_time

TROUBLE = "node could not be processed, retrying"
OVER = "all nodes can be processed again"


class Cloudy(FakeCloud):
    """Fails the questions about some nodes."""

    def __init__(self, **errors: CloudError) -> None:
        super().__init__(exists=True)
        self.errors = dict(errors)

    async def instance_exists(self, node: Node) -> bool:
        exists = await super().instance_exists(node)
        if node.name in self.errors:
            raise self.errors[node.name]
        return exists

    def questions(self, name: str) -> int:
        return self.asked.count(("instance-exists", f"fake://{name}"))


def said(lines: list[Any], text: str, level: str | None = None) -> int:
    return sum(line["event"] == text and level in (None, line["log_level"]) for line in lines)


@pytest.mark.parametrize("end", ["ready", "gone", "answered"])
async def test_a_trouble_ends_however_its_last_node_leaves_it(end: str) -> None:
    fake = Cloudy(a=Unavailable("down"))
    async with running(fake) as cluster:
        with capture_logs() as lines:
            for _ in range(2):
                cluster.put(silent("a"))
                await advance(6)
                if end == "ready":
                    cluster.put(ready("a"))
                elif end == "gone":
                    cluster.drop("a")
                else:
                    trouble, fake.errors = fake.errors, {}
                    await advance(60)
                    fake.errors = trouble
                    cluster.put(ready("a"))

    assert said(lines, TROUBLE, "warning") == 2
    assert said(lines, OVER) == 2


async def test_a_node_said_to_be_elsewhere_is_asked_about_again_with_back_off() -> None:
    fake = Cloudy(a=ImplementedElsewhere("not ours"))
    async with running(fake) as cluster:
        with capture_logs() as lines:
            cluster.put(silent("a"))
            await advance(100)  # at 0, 5, 15, 35 and 75

    assert fake.questions("a") == 5
    assert (said(lines, TROUBLE, "warning"), said(lines, OVER)) == (1, 0)


async def test_a_brake_lets_so_many_nodes_be_deleted_in_a_while() -> None:
    """On the day when the cloud denies every instance, most of the cluster survives."""
    async with running(FakeCloud(exists=False), limit=3) as cluster:
        deleted: list[str] = cluster.deleted
        with capture_logs() as lines:
            for number in range(10):
                cluster.put(silent(f"n{number}"))
            await advance(10)
            for name in set(deleted):
                cluster.drop(name)
            await advance(BRAKE_WINDOW_S / 2)
            assert len(deleted) == 3

            await advance(BRAKE_WINDOW_S / 2 + 10)
            for name in set(deleted) & set(cluster.informer.store.keys()):
                cluster.drop(name)
            assert len(set(deleted)) == 6

            kept = set(cluster.informer.store.keys()) - set(deleted)
    warned = [line["node"] for line in lines if line["event"] == "node held"]
    assert len(kept) == 4
    assert all(warned.count(name) == 1 for name in kept)


async def test_what_is_held_is_shown_by_who_leads() -> None:
    async with running(FakeCloud(exists=False), least_age_s=60) as cluster:
        cluster.put(silent("a"))
        await advance(20)
        assert [reason for reason, _ in cluster.events] == ["DeletionHeld"]
        assert held("young") == 1

        cluster.drop("a")
        await advance(1)
        assert held("young") == 0

        cluster.put(silent("b"))
        await advance(20)
        assert held("young") == 1
    assert held("young") == 0


def held(reason: str) -> float | None:
    return REGISTRY.get_sample_value("ccm_deletions_held", {"kind": "Node", "reason": reason})


async def test_nodes_of_others_are_counted_and_said_once() -> None:
    async with running(FakeCloud(exists=False)) as cluster:
        with capture_logs() as lines:
            for name in ("a", "b"):
                cluster.put(build(name, provider_id=f"other://{name}", ready="False"))
            await advance(21)

        assert REGISTRY.get_sample_value("ccm_nodes_foreign") == 2
    assert said(lines, "nodes of others are left alone") == 1


async def test_an_answer_from_before_an_exchange_of_the_provider_is_none() -> None:
    """The old provider denies while it is exchanged; the new one is asked twice all the same."""
    slow, new = FakeCloud(exists=False, delay_s=7.0), FakeCloud(exists=False, delay_s=3.0)
    cluster, handle = Cluster(silent("a")), Handle(slow.cloud())
    made = NodeLifecycleController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(handle),
        slots=DeletionRecord(Api(), namespace="kube-system", owner="lease"),
        holds=Holds("Node", cluster),
        events=cluster,
        rules=Rules(ownership=Ownership(schemes=("fake",))),
    )
    async with cluster.running(made.controller):
        await advance(2)
        handle.swap(new.cloud())
        await advance(15)
        assert cluster.deleted == []
        await advance(3)
        assert cluster.deleted == ["a"]
    assert new.calls.count("instance-exists") >= 2


async def test_the_shutdown_taint_of_a_node_that_may_be_anybodys_waits_for_the_cloud() -> None:
    fake = FakeCloud(exists=False)
    async with running(fake) as cluster:
        cluster.put(build("a", ready="True", taints=[shutdown_taint()]))
        await advance(11)
        assert cluster.patches == []

        fake.exists = True
        await advance(5)
        assert len(cluster.patches) == 1

    fake.exists = False
    async with running(fake, reference=True) as cluster:
        cluster.put(build("a", ready="True", taints=[shutdown_taint()]))
        await advance(11)
        assert len(cluster.patches) == 1
