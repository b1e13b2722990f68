"""Metrics of the machine set controller, under the reference's names."""

from __future__ import annotations

from ccm.base import metrics
from ccm.gardener import series
from ccm.gardener.series import Series
from ccm.gardener.sets import MachineSet

STALE = metrics.counter(
    "mcm_machine_stale_machines_total", "Machines that failed, and were deleted to be replaced."
)
ITEMS = metrics.gauge("mcm_machine_set_items_total", "MachineSets there are.")
_WHO = ["name", "namespace"]
INFO = metrics.gauge(
    "mcm_machine_set_info",
    "1 for each machine set.",
    [
        *_WHO,
        "createdAt",
        "spec_machine_class_api_group",
        "spec_machine_class_kind",
        "spec_machine_class_name",
    ],
)
CONDITION = metrics.gauge(
    "mcm_machine_set_status_condition",
    "Conditions of a machine set: True 1, False 0, Unknown 2.",
    [*_WHO, "condition"],
)
FAILED = metrics.gauge(
    "mcm_machine_set_failed_machines",
    "1 for each machine of a set whose last operation failed.",
    [*_WHO, *series.FAILURE_LABELS],
)


def _number(name: str, text: str) -> metrics.Gauge:
    return metrics.gauge(f"mcm_machine_set_{name}", f"{text} of a machine set.", _WHO)


REPLICAS_WANTED = _number("info_spec_replicas", "Machines wanted")
MIN_READY = _number("info_spec_min_ready_seconds", "Seconds until a machine is available,")
AVAILABLE = _number("status_available_replicas", "Available machines")
LABELED = _number("status_fully_labelled_replicas", "Machines with all labels")
READY = _number("status_ready_replicas", "Machines that run,")
REPLICAS = _number("status_replicas", "Machines")


def note(old: MachineSet | None, new: MachineSet | None, *, total: int) -> None:
    """Keep the series of a set in step with it; those of one that is gone vanish."""
    ITEMS.set(total)
    series.follow(_series(old), _series(new))


def _series(obj: MachineSet | None) -> Series:
    if obj is None:
        return {}
    who, spec, status = (obj.name, obj.namespace), obj.spec, obj.status
    made_of = spec.template.spec.class_
    about = (made_of.api_group, made_of.kind, made_of.name)
    found: Series = {
        (INFO, (*who, obj.metadata.creation_timestamp or "", *about)): 1,
        (REPLICAS_WANTED, who): spec.replicas,
        (MIN_READY, who): spec.min_ready_seconds,
        (AVAILABLE, who): status.available_replicas,
        (LABELED, who): status.fully_labeled_replicas,
        (READY, who): status.ready_replicas,
        (REPLICAS, who): status.replicas,
    }
    found |= series.of_conditions(CONDITION, who, status.conditions)
    return found | series.of_failures(FAILED, who, status.failed_machines)
