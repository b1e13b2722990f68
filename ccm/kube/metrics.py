"""Metrics of the API client, with the names, labels and borders of the Go components.

Children are cached per label set, because they sit on the path of every request.
"""

from __future__ import annotations

from functools import cache

from ccm.base import metrics

ERROR_CODE = "<error>"
"""Value of the label `code` when there was no answer (client-go)."""

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
    "ccm_kube_writes_total",
    "Calls that change something, by the resource they are about; repetitions count once.",
    ("resource",),
)
_malformed = metrics.counter(
    "ccm_kube_malformed_objects_total",
    "Objects from the API server that could not be decoded and were left out.",
    ("resource",),
)


@cache
def request_duration(verb: str, host: str) -> metrics.Histogram:
    """Seconds from sending a request to its whole answer."""
    return _request_duration.labels(verb, host)


@cache
def limiter_duration(verb: str, host: str) -> metrics.Histogram:
    """Seconds a request waited for its rate limiter."""
    return _limiter_duration.labels(verb, host)


@cache
def request_size(verb: str, host: str) -> metrics.Histogram:
    """Bytes of request bodies."""
    return _request_size.labels(verb, host)


@cache
def response_size(verb: str, host: str) -> metrics.Histogram:
    """Bytes of answer bodies, uncompressed."""
    return _response_size.labels(verb, host)


@cache
def requests(code: str, method: str, host: str) -> metrics.Counter:
    """Attempts, the first of a call and its repetitions."""
    return _requests.labels(code, method, host)


@cache
def retries(code: str, verb: str, host: str) -> metrics.Counter:
    """Attempts after the first one of a call, by their own outcome."""
    return _retries.labels(code, verb, host)


@cache
def malformed(resource: str) -> metrics.Counter:
    """Objects that were left out because they could not be decoded."""
    return _malformed.labels(resource)


@cache
def writes(resource: str) -> metrics.Counter:
    """Calls that change something about a resource."""
    return _writes.labels(resource)
