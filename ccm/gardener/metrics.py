"""Calls of the driver under the names that the reference counts them by."""

from __future__ import annotations

from ccm.base import metrics

REQUEST_DURATION = metrics.histogram(
    "mcm_cloud_api_driver_request_duration_seconds",
    "Time a call of the driver took.",
    ["provider", "operation"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
FAILED_REQUESTS = metrics.counter(
    "mcm_cloud_api_driver_requests_failed",
    "Calls of the driver that failed, by the code of the error.",
    ["provider", "operation", "error_code"],
)
