"""Metrics of work queues, with client-go's names, borders and moments of counting.

What has not ended yet (unfinished work, longest running) is computed when somebody
reads the metrics, from the start times kept here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from ccm.base import clock, metrics

K = TypeVar("K", bound=Hashable)

_BORDERS = metrics.exponential_buckets(10e-9, 10, 10)

_depth = metrics.gauge("workqueue_depth", "[BETA] Current depth of workqueue", ("name",))
_adds = metrics.counter(
    "workqueue_adds_total", "[BETA] Total number of adds handled by workqueue", ("name",)
)
_waited = metrics.histogram(
    "workqueue_queue_duration_seconds",
    "[BETA] How long in seconds an item stays in workqueue before being requested.",
    ("name",),
    buckets=_BORDERS,
)
_worked = metrics.histogram(
    "workqueue_work_duration_seconds",
    "[BETA] How long in seconds processing an item from workqueue takes.",
    ("name",),
    buckets=_BORDERS,
)
_unfinished = metrics.gauge(
    "workqueue_unfinished_work_seconds",
    "[BETA] How many seconds of work has been done that is in progress and hasn't been observed "
    "by work_duration. Large values indicate stuck threads.",
    ("name",),
)
_longest = metrics.gauge(
    "workqueue_longest_running_processor_seconds",
    "[BETA] How many seconds has the longest running processor for workqueue been running.",
    ("name",),
)
_retries = metrics.counter(
    "workqueue_retries_total", "[BETA] Total number of retries handled by workqueue", ("name",)
)


def longest_running() -> Mapping[str, float]:
    """Seconds of the longest work in progress, by queue."""
    (family,) = _longest.collect()
    return {sample.labels["name"]: sample.value for sample in family.samples}


class QueueMetrics(Generic[K]):
    """The metrics of one queue; a later queue of the same name takes the series over."""

    def __init__(self, name: str) -> None:
        self._added: dict[K, float] = {}
        self._started: dict[K, float] = {}
        self._depth = _depth.labels(name)
        self._adds = _adds.labels(name)
        self._waited = _waited.labels(name)
        self._worked = _worked.labels(name)
        self._retries = _retries.labels(name)
        self._depth.set(0)
        _unfinished.labels(name).set_function(self.unfinished_s)
        _longest.labels(name).set_function(self.longest_s)

    def added(self, key: K) -> None:
        """A key became due for work."""
        self._adds.inc()
        self._depth.inc()
        self._added.setdefault(key, clock.monotonic())

    def got(self, key: K) -> None:
        """A worker took the key."""
        now = clock.monotonic()
        self._depth.dec()
        self._started[key] = now
        self._waited.observe(now - self._added.pop(key))

    def done(self, key: K) -> None:
        """The worker is through with the key."""
        started = self._started.pop(key, None)
        if started is not None:
            self._worked.observe(clock.monotonic() - started)

    def retried(self) -> None:
        """A key asked to come back later."""
        self._retries.inc()

    def unfinished_s(self) -> float:
        """Seconds of work in progress, summed over the workers."""
        now = clock.monotonic()
        return sum(now - started for started in self._started.values())

    def longest_s(self) -> float:
        """Seconds of the longest work in progress."""
        now = clock.monotonic()
        return max((now - started for started in self._started.values()), default=0.0)
