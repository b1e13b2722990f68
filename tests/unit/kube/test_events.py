"""The event recorder: what is written, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.kube import errors
from ccm.kube.events import QUEUE_SIZE, EventRecorder
from ccm.model.event import Event
from ccm.model.meta import ObjectReference
from ccm.testing.clock import advance, elapsed_s

pytestmark = pytest.mark.virtual_time

NODE = ObjectReference(kind="Node", api_version="v1", name="node-1", uid="u1", resource_version="9")


class Sink:
    """Keeps events by name; `weather` may make a request fail."""

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self.requests: list[tuple[float, str]] = []
        self.patches: list[Mapping[str, Any]] = []
        self.weather: Callable[[str], Exception | None] = lambda verb: None

    async def create(self, obj: Event, *, namespace: str) -> Event:
        self._note("create")
        assert namespace == obj.namespace
        assert obj.name not in self.events
        self.events[obj.name] = obj
        return obj

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str
    ) -> Event:
        self._note("patch")
        if name not in self.events:
            raise errors.from_response(404, {}, b"")
        self.patches.append(patch)
        changed = msgspec.structs.replace(
            self.events[name], count=patch["count"], last_timestamp=patch["lastTimestamp"]
        )
        self.events[name] = changed
        return changed

    def _note(self, verb: str) -> None:
        self.requests.append((elapsed_s(), verb))
        failure = self.weather(verb)
        if failure is not None:
            raise failure


@contextlib.asynccontextmanager
async def recording(sink: Sink, component: str = "test") -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(sink, component=component, rng=random.Random(3))
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def count(component: str, outcome: str) -> float | None:
    labels = {"component": component, "outcome": outcome}
    return REGISTRY.get_sample_value("ccm_kube_events_total", labels)


def unreachable() -> errors.Unreachable:
    return errors.Unreachable("connection refused", kind="refused")


async def test_an_event_about_a_node_is_created_in_the_default_namespace() -> None:
    sink = Sink()
    async with recording(sink, "cloud-node-controller") as recorder:
        recorder.event(NODE, "Normal", "Synced", "Node synced successfully")
        await advance(0)
    (event,) = sink.events.values()
    assert re.fullmatch(r"node-1\.[0-9a-f]{16}", event.name)
    assert int(event.name.partition(".")[2], 16) == int(clock.now().timestamp()) * 10**9
    assert event.namespace == "default"
    assert event.involved_object == NODE
    assert (event.type, event.reason) == ("Normal", "Synced")
    assert event.message == "Node synced successfully"
    assert event.source.component == event.reporting_component == "cloud-node-controller"
    assert event.count == 1
    assert event.first_timestamp == event.last_timestamp == "2026-01-01T00:00:00Z"


async def test_an_event_about_a_namespaced_object_lies_beside_it() -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        recorder.event(ObjectReference(kind="Lease", namespace="kube-system", name="ccm"), *"nrm")
        await advance(0)
    (event,) = sink.events.values()
    assert event.namespace == "kube-system"


async def test_a_repeated_event_is_patched() -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        recorder.event(NODE, "Normal", "Synced", "again")
        await advance(7)
        recorder.event(NODE, "Normal", "Synced", "again")
        await advance(0)
    assert [verb for _, verb in sink.requests] == ["create", "patch"]
    assert sink.patches == [
        {"count": 2, "lastTimestamp": "2026-01-01T00:00:07Z", "message": "again"}
    ]


async def test_a_repeated_event_that_expired_is_created_with_its_count() -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        recorder.event(NODE, "Normal", "Synced", "again")
        await advance(0)
        sink.events.clear()
        recorder.event(NODE, "Normal", "Synced", "again")
        await advance(0)
    assert [verb for _, verb in sink.requests] == ["create", "patch", "create"]
    (event,) = sink.events.values()
    assert event.count == 2


async def test_names_are_unique_even_when_time_stands_still() -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        for reason in ("A", "B", "C"):
            recorder.event(NODE, "Normal", reason, "m")
        await advance(0)
    assert len(sink.events) == 3


@pytest.mark.parametrize("name", ["Node_1", "x" * 250], ids=["letters", "length"])
async def test_a_name_the_server_would_refuse_becomes_a_uuid(name: str) -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        recorder.event(ObjectReference(kind="Node", name=name), "Normal", "R", "m")
        await advance(0)
    (written,) = sink.events
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", written)


async def test_an_unreachable_server_is_tried_twelve_times() -> None:
    sink = Sink()
    sink.weather = lambda verb: unreachable()
    async with recording(sink, "patient") as recorder:
        recorder.event(NODE, "Normal", "R", "m")
        await advance(300)
    at = [moment for moment, _ in sink.requests]
    assert len(at) == 12
    assert 0 < at[1] < 10
    assert [later - at[1] for later in at[1:]] == pytest.approx([10.0 * n for n in range(11)])
    assert count("patient", "undelivered") == 1


async def test_events_survive_an_outage() -> None:
    sink = Sink()
    sink.weather = lambda verb: unreachable()
    async with recording(sink, "survivor") as recorder:
        recorder.event(NODE, "Normal", "A", "m")
        recorder.event(NODE, "Normal", "B", "m")
        await advance(60)
        sink.weather = lambda verb: None
        await advance(10)
    assert [event.reason for event in sink.events.values()] == ["A", "B"]
    assert count("survivor", "created") == 2


@pytest.mark.parametrize("status", [403, 409, 422, 429, 500])
async def test_a_rejection_is_not_repeated(status: int) -> None:
    sink = Sink()
    sink.weather = lambda verb: errors.from_response(status, {}, b"")
    async with recording(sink, f"rejected-{status}") as recorder:
        recorder.event(NODE, "Normal", "R", "m")
        await advance(300)
    assert len(sink.requests) == 1
    assert count(f"rejected-{status}", "rejected") == 1


async def test_a_full_queue_drops_and_counts_without_waiting() -> None:
    sink = Sink()
    recorder = EventRecorder(sink, component="flooded")
    for number in range(QUEUE_SIZE + 3):
        reference = ObjectReference(kind="Node", name=f"n{number}")
        recorder.event(reference, "Normal", "R", "m")
    assert count("flooded", "overflow") == 3


async def test_spam_is_left_out_and_counted() -> None:
    sink = Sink()
    async with recording(sink, "spammer") as recorder:
        for _ in range(30):
            recorder.event(NODE, "Normal", "R", "m")
        await advance(0)
    assert len(sink.requests) == 25
    assert count("spammer", "spam") == 5
    assert count("spammer", "counted") == 24


async def test_flush_waits_for_what_is_queued_but_not_for_ever() -> None:
    sink = Sink()
    async with recording(sink) as recorder:
        recorder.event(NODE, "Normal", "A", "m")
        assert await recorder.flush(5)
        assert len(sink.events) == 1
        sink.weather = lambda verb: unreachable()
        recorder.event(NODE, "Normal", "B", "m")
        started = elapsed_s()
        assert not await recorder.flush(5)
        assert elapsed_s() - started == 5


async def test_one_event_that_fails_unexpectedly_costs_no_other() -> None:
    sink = Sink()
    defects: list[Exception] = [RuntimeError("a defect")]
    sink.weather = lambda verb: defects.pop() if defects else None

    async with recording(sink, "defect") as recorder:
        with capture_logs() as lines:
            recorder.event(NODE, "Normal", "First", "one")
            recorder.event(NODE, "Normal", "Second", "two")
            await advance(0)

    assert [event.reason for event in sink.events.values()] == ["Second"]
    assert count("defect", "undelivered") == 1
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "an event could not be written"
    ]
