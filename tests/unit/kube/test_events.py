"""The event recorder: written events, and failures of writes."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.events import (
    COMBINED_PREFIX,
    NORMAL_BURST,
    NORMAL_QPS,
    QUEUE_SIZE,
    EventCorrelator,
    EventRecorder,
    EventWrite,
    stamp,
)
from ccm.model.meta import ObjectMeta, ObjectReference
from ccm.model.objects import Event, EventSource
from ccm.testing.clock import START, advance, elapsed_s
from tests.support.watches import api_error, refused

pytestmark = pytest.mark.virtual_time

NODE = ObjectReference(kind="Node", api_version="v1", name="node-1", uid="u1", resource_version="9")


class Sink:
    """API that stores events by name; `fault` may make a request fail."""

    def __init__(self, component: str) -> None:
        self.component = component
        self.recorder = EventRecorder(self, component=component, rng=random.Random(3))  # type: ignore[arg-type]
        self.events: dict[str, Event] = {}
        self.requests: list[tuple[float, str]] = []
        self.patches: list[Mapping[str, Any]] = []
        self.fault: Callable[[str], Exception | None] = lambda verb: None

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
            raise api_error(404)
        self.patches.append(patch)
        changed = msgspec.structs.replace(
            self.events[name], count=patch["count"], last_timestamp=patch["lastTimestamp"]
        )
        self.events[name] = changed
        return changed

    def count(self, outcome: str) -> float | None:
        labels = {"component": self.component, "outcome": outcome}
        return REGISTRY.get_sample_value("ccm_kube_events_total", labels)

    def _note(self, verb: str) -> None:
        self.requests.append((elapsed_s(), verb))
        failure = self.fault(verb)
        if failure is not None:
            raise failure


@pytest_asyncio.fixture
async def sink(request: pytest.FixtureRequest) -> AsyncIterator[Sink]:
    sink = Sink(request.node.name)
    task = spawn(sink.recorder.run(), name="recorder")
    yield sink
    assert not task.done()
    await cancel_and_join(task)


@pytest.mark.parametrize("name", ["Node_1", "x" * 250], ids=["letters", "length"])
async def test_event_name_is_a_uuid_when_the_object_name_is_unusable(name: str, sink: Sink) -> None:
    sink.recorder.event(ObjectReference(kind="Node", name=name), "Normal", "R", "m")
    await advance(0)
    (written,) = sink.events
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", written)


async def test_full_event_queue_drops_events_without_blocking(sink: Sink) -> None:
    for number in range(QUEUE_SIZE + 3):
        reference = ObjectReference(kind="Node", name=f"n{number}")
        sink.recorder.event(reference, "Warning", "R", "m")
    assert sink.count("overflow") == 3


async def test_spam_events_are_dropped_and_counted(sink: Sink) -> None:
    for _ in range(30):
        sink.recorder.event(NODE, "Normal", "R", "m")
    await advance(0)
    assert len(sink.requests) == 25
    assert sink.count("spam") == 5
    assert sink.count("counted") == 24


async def test_normal_events_about_many_objects_are_limited_by_reason(sink: Sink) -> None:
    """Each object has one event. Warnings and other reasons are not affected."""
    for number in range(2000):
        reference = ObjectReference(kind="Node", name=f"n{number}")
        sink.recorder.event(reference, "Normal", "Synced", "m")
        await advance(0.05)
    about = ObjectReference(kind="Node", name="last")
    sink.recorder.event(about, "Normal", "Other", "m")
    sink.recorder.event(about, "Warning", "Synced", "m")
    await advance(0)

    written = NORMAL_BURST + NORMAL_QPS * 100
    assert sink.count("created") == pytest.approx(written + 2, abs=1)
    assert sink.count("spam") == 2002 - (sink.count("created") or 0)
    assert [event.reason for event in sink.events.values()][-2:] == ["Other", "Synced"]


class Stream:
    """Component that passes events to a correlator, one after the other."""

    def __init__(self, memory: int = 4096) -> None:
        self.correlator = EventCorrelator(memory=memory)
        self.now = START
        self.number = 0

    def send(
        self,
        message: str = "m",
        *,
        node: str = "n",
        reason: str = "R",
        type_: str = "Normal",
        component: str = "c",
    ) -> EventWrite | None:
        self.number += 1
        event = Event(
            metadata=ObjectMeta(name=f"{node}.{self.number:x}", namespace="default"),
            involved_object=ObjectReference(kind="Node", name=node, uid=node),
            reason=reason,
            message=message,
            source=EventSource(component=component),
            type=type_,
        )
        return self.correlator.correlate(stamp(event, self.now), self.now)

    def expect(self, message: str = "m", **options: str) -> EventWrite:
        verdict = self.send(message, **options)
        assert verdict is not None
        return verdict

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_event_aggregation_ends_after_ten_quiet_minutes() -> None:
    stream = Stream()
    for number in range(9):
        stream.expect(f"message {number}")
    stream.wait(600)
    assert stream.expect("message 9").event.message == COMBINED_PREFIX + "message 9"
    stream.wait(601)
    assert stream.expect("message 10").event.message == "message 10"


def test_object_gets_25_events_and_then_one_per_five_minutes() -> None:
    stream = Stream()
    passed = [stream.send() is not None for _ in range(30)]
    assert passed == [True] * 25 + [False] * 5
    assert stream.send(node="other") is not None
    assert stream.send(type_="Warning") is not None
    stream.wait(299)
    assert stream.send() is None
    stream.wait(1)
    # Dropped events are counted too.
    assert stream.expect().event.count == 32
    assert stream.send() is None


def test_event_correlator_remembers_only_recent_keys() -> None:
    stream = Stream(memory=2)
    counts = [stream.expect(node=node).event.count for node in "abacab"]
    assert counts == [1, 1, 2, 1, 3, 1]


async def test_node_event_is_created_in_the_default_namespace(sink: Sink) -> None:
    sink.recorder.event(NODE, "Normal", "Synced", "Node synced successfully")
    await advance(0)
    (event,) = sink.events.values()
    assert re.fullmatch(r"node-1\.[0-9a-f]{16}", event.name)
    assert int(event.name.partition(".")[2], 16) == int(clock.now().timestamp()) * 10**9
    assert event.namespace == "default"
    assert event.involved_object == NODE
    assert (event.type, event.reason) == ("Normal", "Synced")
    assert event.message == "Node synced successfully"
    assert event.source.component == event.reporting_component == sink.component
    assert event.count == 1
    assert event.first_timestamp == event.last_timestamp == "2026-01-01T00:00:00Z"


async def test_event_write_is_tried_twelve_times_when_unreachable(sink: Sink) -> None:
    sink.fault = lambda verb: refused()
    sink.recorder.event(NODE, "Normal", "R", "m")
    await advance(300)
    at = [moment for moment, _ in sink.requests]
    assert len(at) == 12
    assert 0 < at[1] < 10
    assert [later - at[1] for later in at[1:]] == pytest.approx([10.0 * n for n in range(11)])
    assert sink.count("undelivered") == 1


async def test_repeated_event_is_patched(sink: Sink) -> None:
    sink.recorder.event(NODE, "Normal", "Synced", "again")
    await advance(7)
    sink.recorder.event(NODE, "Normal", "Synced", "again")
    await advance(0)
    assert [verb for _, verb in sink.requests] == ["create", "patch"]
    assert sink.patches == [
        {"count": 2, "lastTimestamp": "2026-01-01T00:00:07Z", "message": "again"}
    ]


async def test_expired_repeated_event_is_recreated_with_its_count(sink: Sink) -> None:
    sink.recorder.event(NODE, "Normal", "Synced", "again")
    await advance(0)
    sink.events.clear()
    sink.recorder.event(NODE, "Normal", "Synced", "again")
    await advance(0)
    assert [verb for _, verb in sink.requests] == ["create", "patch", "create"]
    (event,) = sink.events.values()
    assert event.count == 2


@pytest.mark.parametrize("status", [403, 409, 422, 429, 500])
async def test_rejected_event_is_not_retried(status: int, sink: Sink) -> None:
    sink.fault = lambda verb: api_error(status)
    sink.recorder.event(NODE, "Normal", "R", "m")
    await advance(300)
    assert len(sink.requests) == 1
    assert sink.count("rejected") == 1


async def test_flush_waits_for_queued_events_until_its_timeout(sink: Sink) -> None:
    sink.recorder.event(NODE, "Normal", "A", "m")
    assert await sink.recorder.flush(5)
    assert len(sink.events) == 1
    sink.fault = lambda verb: refused()
    sink.recorder.event(NODE, "Normal", "B", "m")
    started = elapsed_s()
    assert not await sink.recorder.flush(5)
    assert elapsed_s() - started == 5


async def test_unexpected_error_of_an_event_does_not_stop_the_recorder(sink: Sink) -> None:
    defects: list[Exception] = [RuntimeError("a defect")]
    sink.fault = lambda verb: defects.pop() if defects else None

    with capture_logs() as lines:
        sink.recorder.event(NODE, "Normal", "First", "one")
        sink.recorder.event(NODE, "Normal", "Second", "two")
        await advance(0)

    assert [event.reason for event in sink.events.values()] == ["Second"]
    assert sink.count("undelivered") == 1
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "event write failed"
    ]
