"""What becomes of an event before it is written: counted, combined, or left out.

Pure bookkeeping with client-go's rules. First, similar events (all the same but for the
message) are combined once ten different messages came within ten minutes. Then an event
that was written before is counted up instead of being created again. Last, a token
bucket per source, object and type keeps one broken object from flooding the API server.
Each of the three remembers a bounded number of keys and forgets the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Generic, TypeVar

import msgspec

from ccm.base.throttle import Bucket
from ccm.model.event import Event
from ccm.model.times import format_time

V = TypeVar("V")

COMBINED_PREFIX = "(combined from similar events): "
"""Begins the message of an event that stands for several similar ones (client-go)."""

SIMILAR_LIMIT = 10
SIMILAR_WINDOW_S = 600.0
"""So many different messages, none later than this after the one before, are combined."""

SPAM_BURST = 25
SPAM_QPS = 1 / 300
"""Events per source, object and type: at once, and then per second (client-go)."""

_NEW_BUCKET = partial(Bucket, qps=SPAM_QPS, burst=SPAM_BURST)

MEMORY = 4096
"""Keys each step remembers (client-go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to write.

    Attributes:
        event: the event; the name is that of the existing one if `repeated`.
        repeated: it was written before: patch count, time and message.
        key: give it back with `Correlator.written`.
    """

    event: Event
    repeated: bool
    key: Hashable


@dataclass(slots=True)
class _Similar:
    """Messages of similar events, and when the last one came."""

    last: datetime
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The event as it was last written."""

    name: str
    count: int
    first: str | None


class Correlator:
    """Decides about one event after the other.

    Args:
        memory: keys each step remembers.
    """

    def __init__(self, *, memory: int = MEMORY) -> None:
        self._similar: _Recent[_Similar] = _Recent(memory)
        self._seen: _Recent[_Seen] = _Recent(memory)
        self._buckets: _Recent[Bucket] = _Recent(memory)

    def judge(self, event: Event, now: datetime) -> Verdict | None:
        """Decide about an event with count 1; None leaves it out as spam."""
        origin = _origin(event)
        event, key = self._combine(event, origin, now)
        counted, repeated = self._count(event, key)
        bucket = self._buckets.get((origin, event.type), _NEW_BUCKET)
        if not bucket.take(now.timestamp()):
            return None
        return Verdict(event=counted, repeated=repeated, key=key)

    def written(self, key: Hashable, event: Event) -> None:
        """Remember how the server has the event now."""
        self._seen.put(key, _Seen(event.name, event.count, event.first_timestamp))

    def _combine(
        self, event: Event, origin: tuple[str, ...], now: datetime
    ) -> tuple[Event, Hashable]:
        kin = (origin, event.type, event.reason)
        similar = self._similar.get(kin, lambda: _Similar(now))
        if (now - similar.last).total_seconds() > SIMILAR_WINDOW_S:
            similar.messages.clear()
        similar.last = now
        if event.message not in similar.messages:
            similar.messages.append(event.message)
        if len(similar.messages) < SIMILAR_LIMIT:
            return event, (kin, event.message)
        # Never more than the limit: one that differs from the next keeps the list full.
        similar.messages.pop()
        combined = msgspec.structs.replace(event, message=COMBINED_PREFIX + event.message)
        return combined, kin

    def _count(self, event: Event, key: Hashable) -> tuple[Event, bool]:
        seen = self._seen.find(key)
        if seen is not None:
            event = msgspec.structs.replace(
                event,
                metadata=msgspec.structs.replace(event.metadata, name=seen.name),
                count=seen.count + 1,
                first_timestamp=seen.first,
            )
        self._seen.put(key, _Seen(event.name, event.count, event.first_timestamp))
        return event, seen is not None


class _Recent(Generic[V]):
    """The most recently used values by key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def find(self, key: Hashable) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def get(self, key: Hashable, default: Callable[[], V]) -> V:
        value = self.find(key)
        if value is None:
            value = default()
            self.put(key, value)
        return value

    def put(self, key: Hashable, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._limit:
            self._values.popitem(last=False)


def stamped(event: Event, now: datetime) -> Event:
    """The event as if it happened for the first time now."""
    moment = format_time(now)
    return msgspec.structs.replace(event, count=1, first_timestamp=moment, last_timestamp=moment)


def _origin(event: Event) -> tuple[str, ...]:
    """Who reports about what."""
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
