"""Trouble and holds are said at their start and end, and nothing is kept about gone nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.errors import CloudError, Unauthenticated, Unavailable
from ccm.cloud.guarded import Guarded
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.node_calls import NodeCalls
from ccm.controllers.nodelifecycle.controller import NodeLifecycleController, Settings
from ccm.model import Node, ObjectReference
from ccm.testing.builders import node as build
from ccm.testing.clock import FakeClock
from ccm.testing.fakes import FakeCloud

TROUBLE = "node kept, its state is not known"
OVER = "the state of all nodes is known again"


def silent(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="Unknown")


def ready(name: str) -> Node:
    return build(name, provider_id=f"fake://{name}", uid=f"uid-{name}", ready="True")


class Cache:
    """A cache of nodes that the test fills; also the API, which refuses nothing."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.deleted: list[str] = []
        self.store = self

    def get(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def add_handler(
        self, *, name: str, on_add: Any, on_update: Any, on_delete: Callable[[Node], None]
    ) -> None:
        del name
        self._added, self._updated, self._gone = on_add, on_update, on_delete

    async def wait_synced(self, timeout_s: float) -> None:
        del timeout_s

    def put(self, new: Node) -> None:
        old = self.nodes.get(new.name)
        self.nodes[new.name] = new
        if old is None:
            self._added(new, False)
        else:
            self._updated(old, new)

    def drop(self, name: str) -> None:
        self._gone(self.nodes.pop(name))

    async def delete(self, name: str, *, uid: str | None = None) -> None:
        del uid
        self.deleted.append(name)

    async def patch_strategic(self, name: str, patch: Mapping[str, Any]) -> Node:
        del patch
        return self.nodes[name]

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Events are dropped."""


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
async def running(fake: FakeCloud, clock: FakeClock) -> AsyncIterator[Cache]:
    cache: Any = Cache()
    controller = NodeLifecycleController(
        nodes=cache,
        api=cache,
        lookup=InstanceLookup(NodeCalls(Guarded(fake.cloud(), clock=clock))),
        schemes=("fake",),
        events=cache,
        settings=Settings(workers=4, period_s=5.0),
        clock=clock,
    )
    task = spawn(controller.run(), name="controller")
    await clock.advance(0)
    try:
        yield cache
    finally:
        await cancel_and_join(task)


def said(lines: list[Any], text: str, level: str | None = None) -> int:
    return sum(line["event"] == text and level in (None, line["log_level"]) for line in lines)


@pytest.mark.parametrize("end", ["ready", "gone", "answered"])
@pytest.mark.asyncio
async def test_a_trouble_ends_however_its_last_node_leaves_it(end: str) -> None:
    clock, fake = FakeClock(), Cloudy(a=Unavailable("down"))
    async with running(fake, clock) as cache:
        with capture_logs() as lines:
            for _ in range(2):
                cache.put(silent("a"))
                await clock.advance(6)
                if end == "ready":
                    cache.put(ready("a"))
                elif end == "gone":
                    cache.drop("a")
                else:
                    trouble, fake.errors = fake.errors, {}
                    await clock.advance(60)
                    fake.errors = trouble
                    cache.put(ready("a"))

    assert said(lines, TROUBLE, "warning") == 2
    assert said(lines, OVER) == 2


@pytest.mark.asyncio
async def test_an_error_about_a_node_that_went_away_is_no_trouble() -> None:
    clock, fake = FakeClock(), Cloudy(a=Unavailable("down"))
    fake.delay_s, fake.clock = 1.0, clock
    async with running(fake, clock) as cache:
        with capture_logs() as lines:
            cache.put(silent("a"))
            await clock.advance(0.5)
            cache.drop("a")
            await clock.advance(2)

    assert fake.questions("a") == 1
    assert said(lines, TROUBLE) == 0


@pytest.mark.asyncio
async def test_when_an_outage_ends_for_one_node_the_others_are_asked_about_at_once() -> None:
    clock = FakeClock()
    fake = Cloudy(a=Unavailable("down"), b=Unavailable("down"))
    async with running(fake, clock) as cache:
        cache.put(silent("a"))
        await clock.advance(60)  # by now a is left alone for minutes
        before = fake.questions("a")
        cache.put(silent("b"))
        await clock.advance(1)
        fake.errors.clear()
        await clock.advance(11)

    assert fake.questions("a") > before


@pytest.mark.asyncio
async def test_refused_credentials_are_not_tried_every_few_seconds() -> None:
    clock, fake = FakeClock(), Cloudy(a=Unauthenticated("no"))
    async with running(fake, clock) as cache:
        cache.put(silent("a"))
        await clock.advance(29)
        assert fake.questions("a") == 1
        await clock.advance(10)
        assert fake.questions("a") == 2


@pytest.mark.asyncio
async def test_a_hold_is_said_once() -> None:
    """The cloud says gone and takes it back, again and again."""
    clock, fake = FakeClock(), FakeCloud()
    answers = iter([False, True] * 100)
    fake._exists = lambda: next(answers)  # type: ignore[method-assign]
    async with running(fake, clock) as cache:
        with capture_logs() as lines:
            cache.put(silent("a"))
            await clock.advance(21)

        assert cache.deleted == []
    assert said(lines, "node held") == 1
    assert fake.calls.count("instance-exists") >= 8
