"""Metrics of the service controller; the first four have the Go reference's names."""

from __future__ import annotations

from ccm.base import metrics

_LONG_S = metrics.exponential_buckets(1, 2, 15)

HOST_UPDATES = metrics.counter(
    "service_controller_loadbalancer_sync",
    "[ALPHA] Attempts to change the members of a load balancer after nodes changed.",
)
HOST_UPDATE_ERRORS = metrics.counter(
    "service_controller_nodesync_error",
    "[ALPHA] Attempts to change the members of a load balancer that failed.",
)
NODE_SYNC = metrics.histogram(
    "service_controller_nodesync_latency_seconds",
    "[ALPHA] Time until all load balancers had been given their members after nodes changed.",
    buckets=_LONG_S,
)
HOST_UPDATE = metrics.histogram(
    "service_controller_update_loadbalancer_host_latency_seconds",
    "[ALPHA] Time one change of the members of a load balancer took.",
    buckets=_LONG_S,
)
OPERATIONS = metrics.histogram(
    "ccm_service_operation_duration_seconds",
    "Time work for one Service took, writes to the API server included, by outcome.",
    ["operation", "outcome"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900),
)
STARTUP = metrics.counter(
    "ccm_service_startup_checks",
    "First looks at the Services that were there at the start, by what the listing said.",
    ["verdict"],
)
DRIFT = metrics.counter(
    "ccm_service_drift_found",
    "Load balancers that a drift check found to differ from what was wanted, or to be missing.",
)
ORPHANS = metrics.gauge(
    "ccm_service_orphans",
    "Load balancers of this cluster that belong to no Service, in the last two listings.",
)
REPAIRS = metrics.counter(
    "ccm_service_repairs",
    "Finalizers and statuses put back after others had changed them.",
)

for _verdict in ("equal", "different", "missing", "unlisted"):
    STARTUP.labels(_verdict)
