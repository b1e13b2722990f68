"""Metrics of the machine overshoot controller."""

from __future__ import annotations

from ccm.base import metrics
from ccm.gardener import names

FROZEN = metrics.gauge(
    "ccm_machine_sets_frozen", "MachineSets that make no machines, because they have too many."
)
FREEZES = metrics.counter(
    "ccm_machine_set_freezes",
    "MachineSets that were frozen, and that thawed, by the reason.",
    ["reason"],
)
for _reason in (names.REASON_OVERSHOOT, names.REASON_UNDERSHOOT, names.REASON_UNFREEZE):
    FREEZES.labels(_reason)
