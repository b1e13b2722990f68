"""Event recorder: reports events to users without delaying the caller.

`event` puts an event into a bounded queue and returns; a task writes the events one after another.
Events are best effort: an event that cannot be queued or written is dropped and counted in a
metric. Rules and limits are client-go's (tools/record):

- Events that differ only in their message are combined from the tenth different message on, until
  ten minutes pass without such an event.
- The count of an event that was written before is increased.
- A token bucket for each source, object and type limits the events about one broken object.

Each of these steps keeps a bounded number of keys in memory.

client-go's limits are about one object, so a thousand healthy objects make a thousand events.
`Deviation:` a token bucket for each reason limits Normal events in addition. Such an event reports
a success that the object shows itself. Warnings report what the object does not show, and a flood
of Normal events no longer drives them out of the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from ccm.base import clock, metrics, redact, tasks
from ccm.base.log import Outage, logger
from ccm.base.throttle import Bucket
from ccm.kube import errors
from ccm.kube.client import Resource
from ccm.model.meta import ObjectMeta, ObjectReference
from ccm.model.names import NORMAL
from ccm.model.objects import Event, EventSource
from ccm.model.times import format_time

V = TypeVar("V")

COMBINED_PREFIX = "(combined from similar events): "
"""Prefix of the message of an event that combines similar events (client-go)."""

SIMILAR_LIMIT = 10
SIMILAR_WINDOW_S = 600.0
"""Number of different messages at which similar events begin to be combined, and maximum seconds
between two similar events (client-go)."""

SPAM_BURST = 25
SPAM_QPS = 1 / 300
"""Size of the token bucket for each source, object and type, and its tokens per second
(client-go)."""

NORMAL_BURST = 500
NORMAL_QPS = 5.0
"""Size of the token bucket of Normal events for each component and reason, and its tokens per
second: the default rate of client-go's clients, after more objects than most clusters have."""

MAX_KEYS = 4096
"""Maximum number of keys that each step keeps in memory (client-go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWrite:
    """Event to write.

    Attributes:
        event: the event; if `repeated`, its name is the name of the existing Event.
        repeated: whether the event was written before, so that count, time and message of the
            existing Event are patched.
        key: argument for `EventCorrelator.record_written`.
    """

    event: Event
    repeated: bool
    key: Hashable


@dataclass(slots=True)
class _SimilarEvents:
    """Different messages of similar events, and the time of the last similar event."""

    last: datetime
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _WrittenEvent:
    """Name, count and first timestamp of an Event as last written."""

    name: str
    count: int
    first: str | None


class EventCorrelator:
    """Aggregation, counting and spam filter of events, as in client-go.

    Args:
        memory: maximum number of keys that each step keeps in memory.
    """

    def __init__(self, *, memory: int = MAX_KEYS) -> None:
        self._memory = memory
        self._similar: OrderedDict[Hashable, _SimilarEvents] = OrderedDict()
        self._seen: OrderedDict[Hashable, _WrittenEvent] = OrderedDict()
        self._buckets: OrderedDict[Hashable, Bucket] = OrderedDict()

    def correlate(self, event: Event, now: datetime) -> EventWrite | None:
        """Return the write for an event that `stamp` returned; None = drop the event as spam."""
        origin = _origin(event)
        event, key = self._combine(event, origin, now)
        counted, repeated = self._count(event, key)
        bucket = self._buckets.get((origin, event.type)) or Bucket(qps=SPAM_QPS, burst=SPAM_BURST)
        self._remember(self._buckets, (origin, event.type), bucket)
        if not bucket.take(now.timestamp()):
            return None
        return EventWrite(event=counted, repeated=repeated, key=key)

    def record_written(self, key: Hashable, event: Event) -> None:
        """Record the Event that the API server returned for a write."""
        self._remember(
            self._seen, key, _WrittenEvent(event.name, event.count, event.first_timestamp)
        )

    def _combine(
        self, event: Event, origin: tuple[str, ...], now: datetime
    ) -> tuple[Event, Hashable]:
        kin = (origin, event.type, event.reason)
        similar = self._similar.get(kin) or _SimilarEvents(now)
        self._remember(self._similar, kin, similar)
        if (now - similar.last).total_seconds() > SIMILAR_WINDOW_S:
            similar.messages.clear()
        similar.last = now
        if event.message not in similar.messages:
            similar.messages.append(event.message)
        if len(similar.messages) < SIMILAR_LIMIT:
            return event, (kin, event.message)
        # Keep the list one message below the limit, so that the next new message is combined too
        # and the list cannot grow.
        similar.messages.pop()
        combined = msgspec.structs.replace(event, message=COMBINED_PREFIX + event.message)
        return combined, kin

    def _count(self, event: Event, key: Hashable) -> tuple[Event, bool]:
        seen = self._seen.get(key)
        if seen is not None:
            event = msgspec.structs.replace(
                event,
                metadata=msgspec.structs.replace(event.metadata, name=seen.name),
                count=seen.count + 1,
                first_timestamp=seen.first,
            )
        self._remember(
            self._seen, key, _WrittenEvent(event.name, event.count, event.first_timestamp)
        )
        return event, seen is not None

    def _remember(self, values: OrderedDict[Hashable, V], key: Hashable, value: V) -> None:
        """Store a value as the most recent value; beyond the limit, drop the oldest value."""
        values[key] = value
        values.move_to_end(key)
        if len(values) > self._memory:
            values.popitem(last=False)


def stamp(event: Event, now: datetime) -> Event:
    """Return the event with count 1 and the timestamp `now`."""
    moment = format_time(now)
    return msgspec.structs.replace(event, count=1, first_timestamp=moment, last_timestamp=moment)


def _origin(event: Event) -> tuple[str, ...]:
    """Return the fields that identify the source and the object of an event."""
    about = event.involved_object
    return (
        event.source.component,
        event.source.host,
        about.kind,
        about.namespace,
        about.name,
        about.uid,
        about.api_version,
        about.field_path,
    )


QUEUE_SIZE = 1000
"""Maximum number of events that wait to be written; further events are dropped (client-go)."""

MAX_ATTEMPTS = 12
RETRY_PAUSE_S = 10.0
"""Maximum attempts to write one event while the API server is unreachable, and seconds between two
attempts. The first delay is a random fraction of `RETRY_PAUSE_S` (client-go).
"""

DEFAULT_NAMESPACE = "default"
"""Namespace of events about cluster-scoped objects (client-go)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS_NAME_LIMIT = 253
"""Maximum length of an object's name (Kubernetes); the API server rejects longer names."""

_outcomes = metrics.counter(
    "ccm_kube_events_total",
    "Events by outcome: created, counted (patched), spam (too many about one object, or Normal "
    "events with one reason), overflow, rejected by the server, undelivered.",
    ("component", "outcome"),
)
_OUTCOMES = ("created", "counted", "spam", "overflow", "rejected", "undelivered")


class EventRecorder:
    """Records the events of one component.

    Args:
        sink: resource of Events; its client should have a rate limiter of its own.
        component: name of the reporting component.
        rng: source of the random first delay.
    """

    def __init__(
        self, sink: Resource[Event], *, component: str, rng: random.Random | None = None
    ) -> None:
        self._sink = sink
        self._component = component
        self._rng = rng or random.Random()
        self._log = logger("events", component=component)
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE_SIZE)
        self._correlator = EventCorrelator()
        self._normal: defaultdict[str, Bucket] = defaultdict(
            lambda: Bucket(qps=NORMAL_QPS, burst=NORMAL_BURST)
        )
        self._last_ns = 0
        self._write_outage = Outage(
            self._log,
            start_message="event writes failed, retrying",
            end_message="event writes recovered",
        )
        self._counts = {outcome: _outcomes.labels(component, outcome) for outcome in _OUTCOMES}

    def event(self, reference: ObjectReference, type_: str, reason: str, message: str) -> None:
        """Record an event about an object; returns at once and never fails.

        Args:
            reference: the object.
            type_: `Normal` or `Warning`.
            reason: machine-readable reason in CamelCase.
            message: text for users; secrets are masked, and a long text is cut.
        """
        # Logged at verbosity 2 only, because the controller logs the same fact.
        self._log.v(2).info(
            "event",
            object=f"{reference.namespace}/{reference.name}".lstrip("/"),
            kind=reference.kind,
            type=type_,
            reason=reason,
            message=message,
        )
        if type_ == NORMAL and not self._normal[reason].take(clock.monotonic()):
            self._counts["spam"].inc()
            return
        event = Event(
            metadata=ObjectMeta(
                name=self._name(reference.name), namespace=reference.namespace or DEFAULT_NAMESPACE
            ),
            involved_object=reference,
            reason=reason,
            message=redact.mask_for_api(message),
            source=EventSource(component=self._component),
            type=type_,
            reporting_component=self._component,
        )
        try:
            self._queue.put_nowait(stamp(event, clock.now()))
        except asyncio.QueueFull:
            self._counts["overflow"].inc()

    async def run(self) -> None:
        """Write events until cancelled; call `flush` before the cancellation, to lose no event."""
        while True:
            event = await self._queue.get()
            try:
                await self._handle(event)
            except Exception:  # noqa: BLE001 - one event must not cost all later ones
                self._counts["undelivered"].inc()
                self._log.error("event write failed", exc_info=True)
            finally:
                self._queue.task_done()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until `run` has handled all events; return False after `timeout_s` seconds."""
        try:
            await tasks.with_timeout(timeout_s, self._queue.join(), name="events-flush")
        except TimeoutError:
            return False
        return True

    async def _handle(self, event: Event) -> None:
        verdict = self._correlator.correlate(event, clock.now())
        if verdict is None:
            self._counts["spam"].inc()
            return
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                first = attempt == 1
                await asyncio.sleep(RETRY_PAUSE_S * (self._rng.random() if first else 1.0))
            try:
                await self._write(verdict)
            except errors.ApiError as refusal:
                self._counts["rejected"].inc()
                self._log.debug("event rejected by the API server", error=str(refusal))
                return
            except errors.Unreachable as problem:
                self._write_outage.record_failure(error=str(problem))
            else:
                self._write_outage.record_success()
                return
        self._counts["undelivered"].inc()

    async def _write(self, verdict: EventWrite) -> None:
        event = verdict.event
        written = None
        if verdict.repeated:
            patch = {
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            }
            with contextlib.suppress(errors.NotFound):  # the Event expired: create it again
                written = await self._sink.patch_strategic(
                    event.name, patch, namespace=event.namespace
                )
        outcome = "counted" if written is not None else "created"
        written = written or await self._sink.create(event, namespace=event.namespace)
        self._counts[outcome].inc()
        self._correlator.record_written(verdict.key, written)

    def _name(self, subject: str) -> str:
        """Return the name `<object>.<unix nanoseconds in hex>`; if that is invalid, a UUID."""
        microseconds = (clock.now() - _EPOCH) // timedelta(microseconds=1)
        # The clock is coarser than a nanosecond; two events must not share a name.
        self._last_ns = max(self._last_ns + 1, microseconds * 1000)
        name = f"{subject}.{self._last_ns:x}"
        if len(name) <= _DNS_NAME_LIMIT and _DNS_NAME.fullmatch(name):
            return name
        return str(uuid.uuid4())
