"""Metrics of the process as a whole, and the figures it says when it stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ccm.base import metrics

MANAGER = "cloud-controller-manager"

RUNNING = metrics.gauge(
    "running_managed_controllers",
    "Controllers that run now.",
    ["name", "manager"],
)

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@contextmanager
def running(name: str) -> Iterator[None]:
    """Count a controller as running inside the block."""
    gauge = RUNNING.labels(name, MANAGER)
    gauge.set(1)
    try:
        yield
    finally:
        gauge.set(0)


def summary() -> dict[str, int]:
    """What the process did so far: requests to the API server and calls to the cloud.

    `api_writes` counts every request that changes something, those about events and the
    Lease included; `node_writes`, `service_writes` and `event_writes` are calls about those
    alone.
    """
    reads = writes = calls = 0
    about = {"nodes": 0, "services": 0, "events": 0}
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            if sample.name == "rest_client_requests_total":
                if sample.labels.get("method") in _WRITES:
                    writes += int(sample.value)
                else:
                    reads += int(sample.value)
            elif sample.name == "ccm_cloud_calls_total":
                calls += int(sample.value)
            elif sample.name == "ccm_kube_writes_total" and sample.labels["resource"] in about:
                about[sample.labels["resource"]] += int(sample.value)
    return {
        "api_reads": reads,
        "api_writes": writes,
        "node_writes": about["nodes"],
        "service_writes": about["services"],
        "event_writes": about["events"],
        "cloud_calls": calls,
    }
