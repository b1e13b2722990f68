"""Metrics of the machine deployment controller, with the reference's names."""

from __future__ import annotations

from ccm.base import metrics
from ccm.gardener import series
from ccm.gardener.series import Series
from ccm.gardener.sets import MachineDeployment
from ccm.machines import bounds

ITEMS = metrics.gauge("mcm_machine_deployment_items_total", "Machine deployments there are.")
_WHO = ["name", "namespace"]
INFO = metrics.gauge(
    "mcm_machine_deployment_info",
    "1 for each machine deployment.",
    [*_WHO, "createdAt", "spec_strategy_type"],
)
CONDITION = metrics.gauge(
    "mcm_machine_deployment_status_condition",
    "Conditions of a machine deployment: True 1, False 0, Unknown 2.",
    [*_WHO, "condition"],
)
FAILED = metrics.gauge(
    "mcm_machine_deployment_failed_machines",
    "1 for each machine of a deployment whose last operation failed.",
    [*_WHO, *series.FAILURE_LABELS],
)


def _number(name: str, text: str) -> metrics.Gauge:
    return metrics.gauge(f"mcm_machine_deployment_{name}", f"{text} of a machine deployment.", _WHO)


PAUSED = _number("info_spec_paused", "1 where it is paused, else 0,")
REPLICAS_WANTED = _number("info_spec_replicas", "Machines wanted")
MIN_READY = _number("info_spec_min_ready_seconds", "Seconds until a machine is available,")
SURGE = _number("info_spec_rolling_update_max_surge", "Most machines too many")
MISSING = _number("info_spec_rolling_update_max_unavailable", "Most machines missing")
HISTORY = _number("info_spec_revision_history_limit", "Old sets kept")
DEADLINE = _number("info_spec_progress_deadline_seconds", "Seconds without progress allowed")
ROLLBACK = _number("info_spec_rollback_to_revision", "Revision wanted back")
AVAILABLE = _number("status_available_replicas", "Available machines")
UNAVAILABLE = _number("status_unavailable_replicas", "Missing machines")
READY = _number("status_ready_replicas", "Machines that run,")
UPDATED = _number("status_updated_replicas", "Machines of the newest template")
COLLISIONS = _number("status_collision_count", "Names that were taken")
REPLICAS = _number("status_replicas", "Machines")


def note(old: MachineDeployment | None, new: MachineDeployment | None, *, total: int) -> None:
    """Keep the series of a deployment in step with it; those of one that is gone vanish."""
    ITEMS.set(total)
    series.follow(_series(old), _series(new))


def _series(obj: MachineDeployment | None) -> Series:
    if obj is None:
        return {}
    who, status = (obj.name, obj.namespace), obj.status
    about = (obj.metadata.creation_timestamp or "", obj.spec.strategy.effective().type)
    numbers = _spec_numbers(obj) | {
        AVAILABLE: status.available_replicas,
        UNAVAILABLE: status.unavailable_replicas,
        READY: status.ready_replicas,
        UPDATED: status.updated_replicas,
        COLLISIONS: status.collision_count,
        REPLICAS: status.replicas,
    }
    found: Series = {(INFO, (*who, *about)): 1}
    found |= {(metric, who): value for metric, value in numbers.items() if value is not None}
    found |= series.of_conditions(CONDITION, who, status.conditions)
    return found | series.of_failures(FAILED, who, status.failed_machines)


def _spec_numbers(obj: MachineDeployment) -> dict[metrics.Gauge, int | None]:
    """Those that were not given are left out."""
    spec = obj.spec
    found: dict[metrics.Gauge, int | None] = {
        PAUSED: int(spec.paused),
        REPLICAS_WANTED: spec.replicas,
        MIN_READY: spec.min_ready_seconds,
        HISTORY: spec.revision_history_limit,
        DEADLINE: spec.progress_deadline_seconds,
        ROLLBACK: spec.rollback_to.revision if spec.rollback_to else None,
    }
    block = spec.strategy.effective().rolling_update
    if block is not None:
        for metric, value, up in (
            (SURGE, block.max_surge, True),
            (MISSING, block.max_unavailable, False),
        ):
            if value is not None and bounds.is_amount(value):
                found[metric] = bounds.amount(value, max(spec.replicas, 0), up=up)
    return found
