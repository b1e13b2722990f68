"""Metrics with the names of hcloud-cloud-controller-manager, for the dashboards of its users.

Requests to the API are counted here. The other metrics are aliases of the daemon's own metrics,
computed at each scrape.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from ccm.base import metrics
from ccm.base.clock import monotonic
from ccm.base.lazy_aiohttp import aiohttp

_REQUESTS = metrics.counter(
    "hcloud_api_requests",
    "Requests to the Hetzner Cloud API by status, method and path without IDs.",
    ["code", "method", "api_endpoint"],
)
_LATENCY = metrics.histogram(
    "hcloud_api_request_duration_seconds",
    "Duration of requests to the Hetzner Cloud API.",
    ["method"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_IN_FLIGHT = metrics.gauge(
    "hcloud_api_in_flight_requests", "Requests to the Hetzner Cloud API without a response."
)

_OPERATIONS = {
    "instance_exists": "hcloud/instancesv2.InstanceExists",
    "instance_shutdown": "hcloud/instancesv2.InstanceShutdown",
    "instance_metadata": "hcloud/instancesv2.InstanceMetadata",
    "get_load_balancer": "hcloud/loadBalancers.GetLoadBalancer",
    "ensure_load_balancer": "hcloud/loadBalancers.EnsureLoadBalancer",
    "update_load_balancer": "hcloud/loadBalancers.UpdateLoadBalancer",
    "ensure_load_balancer_deleted": "hcloud/loadBalancers.EnsureLoadBalancerDeleted",
    "list_routes": "hcloud/ListRoutes",
    "create_route": "hcloud/CreateRoute",
    "delete_route": "hcloud/DeleteRoute",
}
"""Operation of the daemon -> value of the label `op`; other operations keep their names."""


def _series(name: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield labels and value of each series of one of the daemon's metrics."""
    for family in metrics.REGISTRY.restricted_registry([name]).collect():
        for sample in family.samples:
            yield sample.labels, sample.value


def _operations() -> list[tuple[Mapping[str, str], float]]:
    totals = Counter[str]()
    for labels, value in _series("ccm_cloud_calls_total"):
        if labels["provider"] == "hcloud":
            totals[_OPERATIONS.get(labels["operation"], labels["operation"])] += int(value)
    return [({"op": operation}, number) for operation, number in totals.items()]


def _server_lookups() -> list[tuple[Mapping[str, str], float]]:
    return [
        (
            {
                "subsystem": "instances_v2",
                "mode": "all",
                "result": "hit" if labels["source"] == "listing" else "miss",
            },
            value,
        )
        for labels, value in _series("ccm_cloud_inventory_lookups_total")
    ]


def _type_lookups() -> list[tuple[Mapping[str, str], float]]:
    ensured = _OPERATIONS["ensure_load_balancer"]
    return [
        ({"result": "hit"}, value) for labels, value in _operations() if ensured == labels["op"]
    ]


metrics.ScrapedMetric(
    "cloud_controller_manager_operations_total",
    "Operations; see ccm_cloud_calls_total.",
    ["op"],
    is_counter=True,
).read = _operations
metrics.ScrapedMetric(
    "cloud_controller_manager_server_cache_requests_total",
    "Lookups of servers; see ccm_cloud_inventory_lookups_total.",
    ["subsystem", "mode", "result"],
    is_counter=True,
).read = _server_lookups
metrics.ScrapedMetric(
    "cloud_controller_manager_load_balancer_type_cache_requests_total",
    "Lookups of load balancer types; all are hits, since a load balancer contains its type.",
    ["result"],
    is_counter=True,
).read = _type_lookups


def request_tracing() -> aiohttp.TraceConfig:
    """Return hooks for an HTTP session that measure its requests."""
    tracing = aiohttp.TraceConfig()

    async def start(_: object, context: SimpleNamespace, __: object) -> None:
        context.started = monotonic()
        _IN_FLIGHT.inc()

    async def end(_: object, context: SimpleNamespace, params: Any) -> None:
        _IN_FLIGHT.dec()
        method = params.method.lower()
        _LATENCY.labels(method).observe(monotonic() - context.started)
        response = getattr(params, "response", None)  # None after a connection error
        if response is not None:
            # As the vendor's client does it: "/v1/servers/42" becomes "/servers/".
            endpoint = re.sub("[^a-z/_]+", "", params.url.path).replace("//", "/")
            endpoint = endpoint.replace("/v/", "/", 1)
            _REQUESTS.labels(str(response.status), method, endpoint).inc()

    tracing.on_request_start.append(start)
    tracing.on_request_end.append(end)
    tracing.on_request_exception.append(end)
    tracing.freeze()
    return tracing
