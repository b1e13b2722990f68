"""Metrics of the node lifecycle controller; the first two are named as in the Go controller."""

from __future__ import annotations

from ccm.base import metrics

PASS_DURATION = metrics.histogram(
    "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
    "Duration of a pass over the nodes that need a check.",
    buckets=metrics.exponential_buckets(0.001, 2, 15),
)
CLOUD_CALLS = metrics.counter(
    "cloud_node_lifecycle_controller_cloud_provider_calls",
    "Calls of the node lifecycle controller to the cloud provider.",
    ["operation", "result"],
)
DECISIONS = metrics.counter(
    "ccm_node_lifecycle_decisions",
    "Decisions about nodes that are not ready, by decision and reason.",
    ["fate", "reason"],
)

FOREIGN = metrics.gauge(
    "ccm_nodes_foreign", "Ignored nodes: of other clouds, or not selected by --node-selector."
)

_RESULTS = {
    "success": "success",
    "not_found": "instance_not_found",
    "not_implemented": "not_implemented",
    "canceled": "canceled",
}


def observe_call(operation: str, outcome: str) -> None:
    """Count a cloud call with the label values of the Go controller."""
    CLOUD_CALLS.labels(operation, _RESULTS.get(outcome, "error")).inc()
