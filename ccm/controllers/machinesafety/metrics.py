"""Metrics of the machine safety controller."""

from __future__ import annotations

from ccm.base import metrics

VMS = metrics.gauge(
    "ccm_machine_vms",
    "VMs that the cloud listed, by what they are: ours, of them ownerless ones that wait or are "
    "held back, and strangers without marker or with another one.",
    ["kind"],
)
ORPHANS_DELETED = metrics.counter(
    "ccm_machine_orphans_deleted", "VMs that were deleted because no Machine owns them."
)
PASSES = metrics.counter(
    "ccm_machine_orphan_passes", "Passes over the VMs of one class by outcome.", ["outcome"]
)
for _kind in ("ours", "waiting", "held", "stranger"):
    VMS.labels(_kind)
for _outcome in ("success", "error"):
    PASSES.labels(_outcome)
