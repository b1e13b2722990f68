"""Metrics of the route controller; the first has the name of the Go controller's metric."""

from __future__ import annotations

from ccm.base import metrics

PASSES = metrics.counter(
    "route_controller_route_sync",
    "[ALPHA] Comparisons of the nodes with the cloud's routes, failed ones included.",
)
CALLS = metrics.counter(
    "ccm_route_calls",
    "Calls of the route controller to the cloud provider.",
    ["operation", "outcome"],
)
DELETIONS = metrics.counter("ccm_route_deletions", "Deleted routes, by reason.", ["why"])
ROUTES = metrics.gauge(
    "ccm_routes", "Routes at the last comparison: kept, missing and to be deleted.", ["state"]
)


def observe_call(operation: str, outcome: str) -> None:
    """Count a cloud call."""
    CALLS.labels(operation, outcome).inc()
