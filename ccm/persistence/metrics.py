"""What persistence tells Prometheus. Backends and operations are closed sets; an instance's name
has nothing of its configuration but a digest."""

from __future__ import annotations

from ccm.base import metrics

OPERATIONS = metrics.counter(
    "ccm_persistence_operations_total",
    "Operations on an instance of storage, by how they ended.",
    ["backend", "instance", "operation", "result"],
)
DURATION = metrics.histogram(
    "ccm_persistence_operation_duration_seconds",
    "How long an operation took, waiting for its turn included.",
    ["backend", "instance", "operation"],
    buckets=metrics.exponential_buckets(0.0005, 4, 9),
)
UP = metrics.gauge("ccm_persistence_instance_up", "1: the instance works.", ["instance"])
LATENCY = metrics.gauge(
    "ccm_persistence_mean_persist_latency_seconds",
    "Mean time of the last 256 writes and deletes that succeeded.",
    ["instance"],
)
CORRUPT = metrics.counter(
    "ccm_persistence_corrupt_objects_total", "Damaged objects that were met.", ["instance"]
)
REPAIRS = metrics.gauge(
    "ccm_persistence_repairs_pending", "Copies that an instance still has to get.", ["instance"]
)
DEGRADED = metrics.gauge(
    "ccm_persistence_degraded", "1: no instance works, and the daemon goes on without."
)
