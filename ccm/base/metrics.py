"""Metrics: one registry for the process, and the only import of prometheus-client.

Declare a metric in the package that increments it, with the factories here. On hot paths, call
`metric.labels(...)` once and keep the child. No `_created` series are exported, because the Go
cloud-controller-manager has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

__all__ = [
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "Histogram",
]  # re-exported from prometheus_client, which only this module imports

disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of `exposition`."""

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bucket bounds by repeated multiplication, with the rounding errors that Go has."""
    borders = []
    border = start
    for _ in range(count):
        borders.append(border)
        border *= factor
    return tuple(borders)


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter; prometheus-client appends a missing `_total`."""
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge."""
    return Gauge(name, help_text, labels, registry=REGISTRY)


def plain_counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a counter with a name that a `Counter` of prometheus-client cannot have.

    A `Counter` appends a missing `_total`, but the names of some metrics of the Go
    cloud-controller-manager do not end in `_total`. A `Counter` also refuses the name `x_total` if
    there is a gauge `x`. The result is a gauge that only increases; `exposition` writes its type as
    counter.
    """
    _PLAIN_COUNTERS.add(name)
    return gauge(name, help_text, labels)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Iterable[float]
) -> Histogram:
    """Declare a histogram with the given upper bounds; +Inf is added."""
    return Histogram(name, help_text, labels, registry=REGISTRY, buckets=tuple(buckets))


class FormerName(Collector):
    """Collector for the former name of a gauge or plain counter, kept for one release."""

    def __init__(self, metric: Gauge, name: str) -> None:
        self.metric, self.name = metric, name
        if any(family.name in _PLAIN_COUNTERS for family in metric.describe()):
            _PLAIN_COUNTERS.add(name)
        REGISTRY.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of the metric under the former name."""
        for family in self.metric.collect():
            former = Metric(self.name, f"DEPRECATED: use {family.name}", family.type)
            former.samples = [each._replace(name=self.name) for each in family.samples]
            yield former


class ScrapedMetric(Collector):
    """Gauge or counter whose series are read from elsewhere at each scrape.

    Args:
        name: name of the metric.
        help_text: help text.
        labels: labels of every series; a series may have more.
        is_counter: whether the values only increase.

    Attributes:
        read: returns labels and value of each series; it must not raise an error.
    """

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, is_counter: bool = False
    ) -> None:
        self.read: Callable[[], Iterable[tuple[Mapping[str, str], float]]] = lambda: ()
        self._name, self._help, self._labelnames = name, help_text, labels
        if is_counter:
            _PLAIN_COUNTERS.add(name)
        REGISTRY.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the metric without series."""
        yield Metric(self._name, self._help, "gauge")

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        for family in self.describe():
            for labels, value in self.read():
                family.add_sample(self._name, dict(labels), value)
            yield family


def exposition(registry: CollectorRegistry = REGISTRY) -> bytes:
    """Return all metrics in the Prometheus text format."""
    text = generate_latest(registry)
    for name in _PLAIN_COUNTERS:
        kind = f"# TYPE {name} "
        text = text.replace(f"{kind}gauge\n".encode(), f"{kind}counter\n".encode(), 1)
    return text


_PLAIN_COUNTERS: set[str] = set()
