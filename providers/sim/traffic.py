"""What the simulated cloud does to traffic: its settings, rate limit and call log. No I/O."""

from __future__ import annotations

import collections
from typing import Annotated

import msgspec

from ccm.base import clock
from ccm.base.throttle import Bucket

from . import world

MAX_PAGE = 500
"""The most instances one page may hold."""

LOG_LENGTH = 100_000
"""Calls the log remembers; the counts go on."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Delay = Annotated[float, msgspec.Meta(ge=0, le=world.HISTORY_S)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the cloud behaves; every one can be changed while it runs.

    `latency_s` precedes every answer. `rate_limit` is calls per second, `order_rate_limit`
    orders of instances per second, 0 = no limit; as many may come at once, the rest gets 429
    with Retry-After. `list_delay_s` and `get_delay_s` are how far behind the truth listings
    and single reads are. `transition_s` is how long starting (of a new instance too) and
    stopping take, `removal_s` how long an instance is `deleting`, `linger_s` how long it is then
    still shown as `deleted` before it is gone. `provision_s` is how
    long a new load balancer takes, `change_s` how long a change of one takes;
    `instance_quota`, `balancer_quota` and `route_quota` are how many there may be,
    `zone_capacity` how many instances each zone holds, 0 = no limit.
    """

    latency_s: Seconds = 0.0
    rate_limit: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    order_rate_limit: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    page_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    list_delay_s: Delay = 0.0
    get_delay_s: Delay = 0.0
    transition_s: Seconds = 0.5
    removal_s: Seconds = 0.0
    linger_s: Delay = 0.0
    provision_s: Seconds = 0.0
    change_s: Seconds = 0.0
    instance_quota: Annotated[int, msgspec.Meta(ge=0)] = 0
    zone_capacity: Annotated[int, msgspec.Meta(ge=0)] = 0
    balancer_quota: Annotated[int, msgspec.Meta(ge=0)] = 0
    route_quota: Annotated[int, msgspec.Meta(ge=0)] = 0


class RateLimit:
    """A token bucket that refuses instead of waiting; it holds one second's worth."""

    def __init__(self, rate: float) -> None:
        self._bucket = Bucket(qps=rate, burst=max(1.0, rate)) if rate else None

    def take(self) -> float:
        """Take a token: 0.0 if there was one, else the seconds until there will be."""
        now = clock.monotonic()
        if self._bucket is None or self._bucket.take(now):
            return 0.0
        return self._bucket.missing_s(now)


class Entry(msgspec.Struct, kw_only=True):
    """One call in the log: `status` is None under way and 0 if no answer was sent."""

    sequence: int
    operation: str
    path: str
    time: str
    status: int | None = None


class CallLog:
    """Every cloud call in order of arrival, and how many there were of each operation."""

    def __init__(self) -> None:
        self._sequence = 0
        self.entries: collections.deque[Entry] = collections.deque(maxlen=LOG_LENGTH)
        self.counts: collections.Counter[str] = collections.Counter()

    def open(self, operation: str, path: str) -> Entry:
        """Note that a call arrived; the caller fills in the status later."""
        self._sequence += 1
        entry = Entry(
            sequence=self._sequence,
            operation=operation,
            path=path,
            time=clock.now().isoformat(timespec="milliseconds"),
        )
        self.entries.append(entry)
        self.counts[operation] += 1
        return entry

    def clear(self) -> None:
        """Forget the calls and their counts; sequence numbers go on."""
        self.entries.clear()
        self.counts.clear()
