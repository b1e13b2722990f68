"""Metrics of the machine class controller."""

from __future__ import annotations

from ccm.base import metrics

INVALID = metrics.gauge(
    "ccm_machine_classes_invalid", "MachineClasses of which no VM can be made as they are."
)
