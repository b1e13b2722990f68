"""Metrics of the API client, with the names, labels and buckets of client-go's metrics.

The series are cached by their label values, because every request needs them.
"""

from __future__ import annotations

from functools import cache

from ccm.base import metrics

ERROR_CODE = "<error>"
"""Value of the label `code` for a request without a response (client-go)."""

_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_BYTES = (
    64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216,
)  # fmt: skip

_request_duration = metrics.histogram(
    "rest_client_request_duration_seconds",
    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
    ("verb", "host"),
    buckets=_SECONDS,
)
_limiter_duration = metrics.histogram(
    "rest_client_rate_limiter_duration_seconds",
    "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
    ("verb", "host"),
    buckets=_SECONDS,
)
_request_size = metrics.histogram(
    "rest_client_request_size_bytes",
    "[ALPHA] Request size in bytes. Broken down by verb and host.",
    ("verb", "host"),
    buckets=_BYTES,
)
_response_size = metrics.histogram(
    "rest_client_response_size_bytes",
    "[ALPHA] Response size in bytes. Broken down by verb and host.",
    ("verb", "host"),
    buckets=_BYTES,
)
_requests = metrics.counter(
    "rest_client_requests_total",
    "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
    ("code", "method", "host"),
)
_retries = metrics.counter(
    "rest_client_request_retries_total",
    "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
    ("code", "verb", "host"),
)
_writes = metrics.counter(
    "ccm_kube_writes_total", "Write calls by resource; a retried call counts once.", ("resource",)
)
_malformed = metrics.plain_counter(
    "ccm_kube_malformed_objects_total",
    "Objects from the API server that were skipped because they could not be decoded.",
    ("resource",),
)


request_duration = cache(_request_duration.labels)
"""(verb, host): seconds from sending a request to the end of its response."""

limiter_duration = cache(_limiter_duration.labels)
"""(verb, host): seconds that a request waited for its rate limiter."""

request_size = cache(_request_size.labels)
"""(verb, host): bytes of request bodies."""

response_size = cache(_response_size.labels)
"""(verb, host): bytes of response bodies, uncompressed."""

requests = cache(_requests.labels)
"""(code, method, host): attempts of calls, retries included."""

retries = cache(_retries.labels)
"""(code, verb, host): retries of calls, each counted with the code of its own response."""

malformed = cache(_malformed.labels)
"""(resource): objects that were skipped because they could not be decoded."""

writes = cache(_writes.labels)
"""(resource): calls that change a resource."""
