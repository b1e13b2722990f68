"""Metrics: one registry for the process, and the only door to prometheus-client.

Declare a metric in the package that increments it, with the factories here. Label
children are cached by the factories' users on hot paths (`metric.labels(...)` once).
No `_created` series are written: the Go components have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

__all__ = [
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "Histogram",
]  # of prometheus_client, which has this one door

disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `exposition` returns."""

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


def exponential_buckets(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bucket borders by repeated multiplication, as Go computes them (rounding included)."""
    borders = []
    border = start
    for _ in range(count):
        borders.append(border)
        border *= factor
    return tuple(borders)


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter; prometheus-client appends `_total` where it is missing."""
    return Counter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge."""
    return Gauge(name, help_text, labels, registry=REGISTRY)


def plain_counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a counter whose name lacks `_total`, as some of the Go components' do.

    prometheus-client knows no such counter: this is a gauge that is only ever raised, and
    that `exposition` calls by its right type.
    """
    _PLAIN_COUNTERS.add(name)
    return gauge(name, help_text, labels)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Iterable[float]
) -> Histogram:
    """Declare a histogram with the given upper borders (+Inf is added)."""
    return Histogram(name, help_text, labels, registry=REGISTRY, buckets=tuple(buckets))


def exposition(registry: CollectorRegistry = REGISTRY) -> bytes:
    """Return all metrics in the Prometheus text format."""
    text = generate_latest(registry)
    for name in _PLAIN_COUNTERS:
        kind = f"# TYPE {name} "
        text = text.replace(f"{kind}gauge\n".encode(), f"{kind}counter\n".encode(), 1)
    return text


_PLAIN_COUNTERS: set[str] = set()
