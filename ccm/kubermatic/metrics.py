"""Metrics of Kubermatic's objects; the names are those of Kubermatic's machine-controller."""

from __future__ import annotations

from ccm.base import metrics

WORKERS = metrics.gauge(
    "machine_controller_workers", "Maximum number of Machines that are reconciled concurrently."
)
FAILURES = metrics.ScrapedMetric(
    "machine_controller_errors_total",
    "Failed reconciles of Machines, MachineSets and MachineDeployments of Kubermatic's API.",
    is_counter=True,
)
MACHINES = metrics.ScrapedMetric(
    "machine_controller_machines_total",
    "Number of Machines by kubelet version, provider, operating system and the provider's labels.",
)
CREATED = metrics.ScrapedMetric(
    "machine_controller_machine_created", "Creation time of a Machine (Unix time).", ["machine"]
)
DELETED = metrics.ScrapedMetric(
    "machine_controller_machine_deleted",
    "Time of the deletion request of a Machine that still exists (Unix time).",
    ["machine"],
)
_BUCKETS = metrics.exponential_buckets(32.0, 1.5, 10)
PROVISIONING = metrics.histogram(
    "machine_controller_provisioning_time_seconds",
    "Time from the creation of a Machine until its node joined.",
    buckets=_BUCKETS,
)
DEPROVISIONING = metrics.histogram(
    "machine_controller_deprovisioning_time_seconds",
    "Time from the deletion request of a Machine until it was gone.",
    buckets=_BUCKETS,
)
REPLICAS = {
    field: metrics.ScrapedMetric(
        f"machine_deployment_{name}", f"{text} of a MachineDeployment.", ["name", "namespace"]
    )
    for field, name, text in (
        ("replicas", "replicas", "Machines"),
        ("available", "available_replicas", "Available Machines"),
        ("ready", "ready_replicas", "Ready Machines"),
        ("updated", "updated_replicas", "Machines of the newest template"),
    )
}
"""Field of `DeploymentStatus` -> its gauge."""
