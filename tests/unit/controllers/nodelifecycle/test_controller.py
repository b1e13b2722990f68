"""Trouble and holds are said at their start and end, and nothing is kept about gone nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError, ImplementedElsewhere, Unauthenticated, Unavailable
from ccm.cloud.lookup import InstanceLookup
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController, Settings
from ccm.controllers.nodelifecycle.plan import BRAKE_WINDOW_S, Protection
from ccm.model import Node
from ccm.model.times import format_time
from ccm.testing.builders import node as build
from ccm.testing.clock import advance
from ccm.testing.fakes import FakeCloud
from tests.unit.controllers.cluster import Cluster

pytestmark = pytest.mark.virtual_time

TROUBLE = "node could not be processed, retrying"
OVER = "all nodes can be processed again"


def silent(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="Unknown")


def ready(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="True")


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


@asynccontextmanager
async def running(fake: FakeCloud, protection: Protection | None = None) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    made = NodeLifecycleController(
        nodes=cluster.informer,
        api=cluster,
        lookup=InstanceLookup(Handle(fake.cloud())),
        schemes=("fake",),
        events=cluster,
        settings=Settings(workers=4, period_s=5.0, protection=protection or Protection()),
    )
    async with cluster.running(made.controller):
        yield cluster


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


async def test_an_error_about_a_node_that_went_away_is_no_trouble() -> None:
    fake = Cloudy(a=Unavailable("down"))
    fake.delay_s = 1.0
    async with running(fake) as cluster:
        with capture_logs() as lines:
            cluster.put(silent("a"))
            await advance(0.5)
            cluster.drop("a")
            await advance(2)

    assert fake.questions("a") == 1
    assert said(lines, TROUBLE) == 0


async def test_when_an_outage_ends_for_one_node_the_others_are_asked_about_at_once() -> None:
    fake = Cloudy(a=Unavailable("down"), b=Unavailable("down"))
    async with running(fake) as cluster:
        cluster.put(silent("a"))
        await advance(60)  # by now a is left alone for minutes
        before = fake.questions("a")
        cluster.put(silent("b"))
        await advance(1)
        fake.errors.clear()
        await advance(11)

    assert fake.questions("a") > before


async def test_refused_credentials_are_not_tried_every_few_seconds() -> None:
    fake = Cloudy(a=Unauthenticated("no"))
    async with running(fake) as cluster:
        cluster.put(silent("a"))
        await advance(29)
        assert fake.questions("a") == 1
        await advance(10)
        assert fake.questions("a") == 2


async def test_a_node_said_to_be_elsewhere_is_asked_about_again_with_back_off() -> None:
    fake = Cloudy(a=ImplementedElsewhere("not ours"))
    async with running(fake) as cluster:
        with capture_logs() as lines:
            cluster.put(silent("a"))
            await advance(100)  # at 0, 5, 15, 35 and 75

    assert fake.questions("a") == 5
    assert (said(lines, TROUBLE, "warning"), said(lines, OVER)) == (1, 0)


async def test_a_hold_is_said_once() -> None:
    """The cloud says gone and takes it back, again and again."""
    fake = FakeCloud()
    answers = iter([False, True] * 100)
    fake._exists = lambda: next(answers)  # type: ignore[method-assign]
    async with running(fake) as cluster:
        with capture_logs() as lines:
            cluster.put(silent("a"))
            await advance(21)

        assert cluster.deleted == []
    assert said(lines, "node held") == 1
    assert fake.calls.count("instance-exists") >= 8


async def test_a_brake_lets_so_many_nodes_be_deleted_in_a_while() -> None:
    """On the day when the cloud denies every instance, most of the cluster survives."""
    async with running(FakeCloud(exists=False), Protection(most_deletions=3)) as cluster:
        deleted: list[str] = cluster.deleted
        with capture_logs() as lines:
            for number in range(10):
                cluster.put(silent(f"n{number}"))
            await advance(BRAKE_WINDOW_S / 2)
            for name in set(deleted):
                cluster.drop(name)
            assert len(deleted) == 3

            await advance(BRAKE_WINDOW_S / 2 + 10)
            for name in set(deleted) & set(cluster.informer.store.keys()):
                cluster.drop(name)
            assert len(set(deleted)) == 6

            kept = set(cluster.informer.store.keys()) - set(deleted)
    warned = [line["node"] for line in lines if line["event"] == "node held"]
    assert len(kept) == 4
    assert all(warned.count(name) == 1 for name in kept)


async def test_a_young_node_is_not_deleted_before_its_time() -> None:
    fake = FakeCloud(exists=False)
    young = build("a", provider_id="fake://a", ready="False", created=format_time(clock.now()))
    async with running(fake, Protection(least_age_s=60)) as cluster:
        with capture_logs() as lines:
            cluster.put(young)
            cluster.put(silent("old"))
            await advance(58)
            assert set(cluster.deleted) == {"old"}
            await advance(8)
            assert "a" in cluster.deleted

    assert said(lines, "node held", "info") == 1
