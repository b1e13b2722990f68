"""The labels of metrics about machines: what a driver says, made fit to be labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccm.cloud.calls.handle import Handle
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import MachineMetrics

SIZE = "size"
"""The label that every driver has; empty where nothing is known."""


def machine_labels(handle: Handle, spec: Mapping[str, Any]) -> Mapping[str, str]:
    """Labels for metrics about machines of that provider spec.

    `size` is among them whatever the driver says or raises: a metric is no reason to stop.
    """
    try:
        found: object = handle.compute(MachineMetrics.machine_metrics_labels, spec)
    except CloudError:
        found = {}
    said = found if isinstance(found, Mapping) else {}
    return {SIZE: "", **{str(name): str(value) for name, value in said.items()}}
