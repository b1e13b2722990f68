"""Metrics of the service controller; the first four have the names of the Go controller's."""

from __future__ import annotations

from ccm.base import metrics

_LONG_S = metrics.exponential_buckets(1, 2, 15)

HOST_UPDATES = metrics.counter(
    "service_controller_loadbalancer_sync",
    "[ALPHA] Attempts to update the members of a load balancer after nodes changed.",
)
HOST_UPDATE_ERRORS = metrics.counter(
    "service_controller_nodesync_error",
    "[ALPHA] Failed attempts to update the members of a load balancer.",
)
NODE_SYNC = metrics.histogram(
    "service_controller_nodesync_latency_seconds",
    "[ALPHA] Time from a node change until the members of all load balancers were updated.",
    buckets=_LONG_S,
)
HOST_UPDATE = metrics.histogram(
    "service_controller_update_loadbalancer_host_latency_seconds",
    "[ALPHA] Duration of one update of the members of a load balancer.",
    buckets=_LONG_S,
)
OPERATIONS = metrics.histogram(
    "ccm_service_operation_duration_seconds",
    "Duration of an operation for one Service, including writes to the API server, by outcome.",
    ["operation", "outcome"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900),
)
STARTUP = metrics.counter(
    "ccm_service_startup_checks",
    "Comparisons of existing Services with the load balancers listed at the start, by verdict.",
    ["verdict"],
)
DRIFT = metrics.counter(
    "ccm_service_drift_found", "Load balancers that a drift check found missing or different."
)
ORPHANS = metrics.gauge(
    "ccm_service_orphans",
    "Load balancers of this cluster that belong to no Service, in the last two listings.",
)
REPAIRS = metrics.counter(
    "ccm_service_repairs", "Finalizers and statuses restored after changes by other clients."
)

for _verdict in ("equal", "different", "missing", "unlisted"):
    STARTUP.labels(_verdict)
