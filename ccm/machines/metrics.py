"""Metrics of the machine controllers.

Metrics with the prefix `mcm` have the same names in Gardener's machine-controller-manager (MCM).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ccm.base import metrics
from ccm.machines import reasons, replicas
from ccm.machines.classes import ResolvedClass
from ccm.model import NodeCondition
from ccm.model.machines import Condition, Machine, MachineDeployment, MachineSet, Phase, Strategy
from ccm.model.owners import controller_uid

T = TypeVar("T")
Series = dict[tuple[metrics.Gauge, tuple[str, ...]], float]
"""Gauge and labels -> value."""
Sample = tuple[Mapping[str, str], float]
"""Labels and value."""

# --- machines -------------------------------------------------------------------------------------

MACHINES = metrics.gauge("mcm_machine_items_total", "Number of machines.")
PHASE = metrics.gauge(
    "mcm_machine_current_status_phase",
    "Phase of a machine: Terminating -4, Failed -3, CrashLoopBackOff -2, Unknown -1, Pending 0, "
    "Running 1, any other 0.",
    ["name", "namespace"],
)
MACHINE_INFO = metrics.gauge(
    "mcm_machine_info",
    "1 for each machine.",
    [
        "name",
        "namespace",
        "createdAt",
        "spec_provider_id",
        "spec_class_api_group",
        "spec_class_kind",
        "spec_class_name",
        "node_name",
    ],
)
MACHINE_CONDITION = metrics.gauge(
    "mcm_machine_status_condition",
    "Conditions of a machine's node: True 1, False 0, Unknown 2.",
    ["name", "namespace", "condition"],
)
MACHINES_FROZEN = metrics.ScrapedMetric(
    "mcm_machine_controller_frozen",
    "1 while machines are frozen because an API server is unreachable.",
)
PHASE_CHANGES = metrics.counter(
    "ccm_machine_phase_changes", "Phase changes of machines, by new phase.", ["phase"]
)
_COUNTED = (Phase.PENDING, Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED, Phase.CRASH_LOOP)
for _phase in _COUNTED:
    PHASE_CHANGES.labels(_phase.value)
WAITING = metrics.ScrapedMetric(
    "ccm_machine_replacements_waiting",
    "Machines with unhealthy nodes that wait for the replacement of other machines.",
)
BY_PHASE = metrics.ScrapedMetric(
    "ccm_machines", "Machines by API group and phase; New = no phase yet.", ["group", "phase"]
)
DRAINS = metrics.ScrapedMetric(
    "ccm_machine_drains",
    "Drains that have not ended, by state: running, blocked (an eviction was refused), failed "
    "(will be started again).",
    ["group", "state"],
)
LONGEST_DRAIN = metrics.ScrapedMetric(
    "ccm_machine_drain_longest_seconds",
    "Time since this process started the oldest drain that has not ended; 0 = no drain.",
    ["group"],
)
_WHO = ["namespace", "machine_deployment", "instance_type", "zone"]
FAILED_JOINS = metrics.plain_counter(
    "mcm_machine_num_failed_join", "Machines that did not join in time.", _WHO
)
DURATIONS = {
    step: metrics.gauge(
        f"mcm_machine_{step}_duration_seconds",
        f"Duration of the last {step} step of a machine.",
        _WHO,
    )
    for step in ("create", "initialize", "join", "delete")
}
DRAIN = metrics.gauge(
    "mcm_machine_drain_duration_seconds",
    "Duration of the last drain of a machine's node.",
    _WHO[:2],
)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
HISTOGRAMS = {
    "create": metrics.histogram(
        "ccm_machine_create_duration_seconds",
        "Duration of VM creations by the driver.",
        buckets=_SECONDS,
    ),
    "join": metrics.histogram(
        "ccm_machine_join_duration_seconds",
        "Time from the creation of a Machine until its node joined.",
        buckets=_SECONDS,
    ),
}

PHASES = {
    Phase.TERMINATING: -4,
    Phase.FAILED: -3,
    Phase.CRASH_LOOP: -2,
    Phase.UNKNOWN: -1,
    Phase.PENDING: 0,
    Phase.RUNNING: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSources:
    """Sources of the metrics of one API group's machines that are computed at each scrape.

    Attributes:
        phases: returns the phase of each machine that this daemon is responsible for.
        drains: returns state and age in seconds of each drain that has not ended.
        waiting: returns the number of machines that wait for the replacement of others.
        is_frozen: returns whether an API server is unreachable, so that machines are frozen.
    """

    phases: Callable[[], Iterable[Phase]]
    drains: Callable[[], Sequence[tuple[str, float]]]
    waiting: Callable[[], int]
    is_frozen: Callable[[], bool]


SOURCES: dict[str, MachineSources] = {}
"""API group -> its sources; set by the machine controller of the group."""

_STATES = ("running", "blocked", "failed")


def _by_phase() -> Iterator[Sample]:
    for group, sources in SOURCES.items():
        counts = Counter({Phase.TERMINATING: 0, **dict.fromkeys(_COUNTED, 0)})
        counts.update(sources.phases())
        for phase, count in counts.items():
            yield {"group": group, "phase": phase.value or "New"}, count


def _drains() -> Iterator[Sample]:
    for group, sources in SOURCES.items():
        counts = Counter(state for state, _ in sources.drains())
        for state in _STATES:
            yield {"group": group, "state": state}, counts[state]


def _longest_drain() -> Iterator[Sample]:
    for group, sources in SOURCES.items():
        yield {"group": group}, max((age_s for _, age_s in sources.drains()), default=0.0)


BY_PHASE.read, DRAINS.read, LONGEST_DRAIN.read = _by_phase, _drains, _longest_drain
WAITING.read = lambda: [({}, sum(sources.waiting() for sources in SOURCES.values()))]
MACHINES_FROZEN.read = lambda: [({}, any(sources.is_frozen() for sources in SOURCES.values()))]

# --- classes and VMs ------------------------------------------------------------------------------

CLASSES_INVALID = metrics.gauge(
    "ccm_machine_classes_invalid", "Invalid MachineClasses, from which no VM can be created."
)
VMS = metrics.gauge(
    "ccm_machine_vms",
    "VMs in the cloud's listings, by kind: ours; waiting (ours without a Machine, to be deleted "
    "later); held (ours without a Machine, kept); stranger (neither ours nor of a Machine).",
    ["kind"],
)
ORPHANS_DELETED = metrics.counter(
    "ccm_machine_orphans_deleted", "VMs deleted because no Machine owns them."
)
PASSES = metrics.counter(
    "ccm_machine_orphan_passes",
    "Orphan checks by outcome; each covers the VMs of one class.",
    ["outcome"],
)
for _kind in ("ours", "waiting", "held", "stranger"):
    VMS.labels(_kind)
for _outcome in ("success", "error"):
    PASSES.labels(_outcome)

# --- sets and deployments -------------------------------------------------------------------------

UNAVAILABLE = metrics.ScrapedMetric(
    "ccm_machine_replicas_unavailable",
    "Desired machines that are missing or not available, of each MachineDeployment and of each "
    "MachineSet without one.",
    ["group", "kind", "namespace", "name"],
)
OWNERS: dict[tuple[str, str], Callable[[], Iterable[MachineSet | MachineDeployment]]] = {}
"""API group and kind -> function that returns the cached objects; set by the kind's controller."""


def _unavailable() -> Iterator[Sample]:
    for (group, kind), cached in OWNERS.items():
        for obj in cached():
            if not obj.is_deleting and not controller_uid(obj):
                labels = {"namespace": obj.namespace, "name": obj.name}
                missing = max(0, obj.replicas - obj.status.available)
                yield {"group": group, "kind": kind, **labels}, missing


UNAVAILABLE.read = _unavailable

SETS_FROZEN = metrics.gauge(
    "ccm_machine_sets_frozen", "MachineSets frozen because they have too many machines."
)
FREEZES = metrics.counter(
    "ccm_machine_set_freezes", "Freezes and unfreezes of MachineSets, by reason.", ["reason"]
)
for _reason in (reasons.REASON_OVERSHOOT, reasons.REASON_UNDERSHOOT, reasons.REASON_UNFREEZE):
    FREEZES.labels(_reason)
STALE = metrics.counter(
    "mcm_machine_stale_machines_total", "Failed machines that were deleted to be replaced."
)
_OBJECT = ["name", "namespace"]
_FAILURE = [
    "failed_machine_name",
    "failed_machine_provider_id",
    "failed_machine_owner_ref",
    "failed_machine_last_operation_state",
    "failed_machine_last_operation_machine_operation_type",
]


class _Family:
    """The gauges of MachineSets or of MachineDeployments.

    Args:
        prefix: prefix of the metric names.
        kind_name: name of the kind in help texts.
        info_labels: further labels of the info gauge.
        numbers: gauges with one series per object: suffix of the metric name -> help text.
    """

    def __init__(
        self, prefix: str, kind_name: str, info_labels: Sequence[str], numbers: Mapping[str, str]
    ) -> None:
        self.info = metrics.gauge(
            f"{prefix}_info", f"1 for each {kind_name}.", [*_OBJECT, "createdAt", *info_labels]
        )
        self.condition = metrics.gauge(
            f"{prefix}_status_condition",
            f"Conditions of a {kind_name}: True 1, False 0, Unknown 2.",
            [*_OBJECT, "condition"],
        )
        self.failed = metrics.gauge(
            f"{prefix}_failed_machines",
            f"1 for each machine of a {prefix.rpartition('_')[2]} whose last operation failed.",
            [*_OBJECT, *_FAILURE],
        )
        self.numbers = {
            name: metrics.gauge(f"{prefix}_{name}", f"{text} of a {kind_name}.", _OBJECT)
            for name, text in numbers.items()
        }

    def series(
        self,
        obj: MachineSet | MachineDeployment,
        info_values: Sequence[str],
        numbers: Mapping[str, float | None],
    ) -> Series:
        """Return the series of an object."""
        object_labels, status = (obj.name, obj.namespace), obj.status
        series: Series = {
            (self.info, (*object_labels, obj.metadata.creation_timestamp or "", *info_values)): 1
        }
        for name, value in numbers.items():
            if value is not None:
                series[self.numbers[name], object_labels] = value
        for machine in status.failed:
            last = machine.operation
            labels = (machine.name, machine.provider_id, machine.owner, last.state, last.kind)
            series[self.failed, (*object_labels, *labels)] = 1
        return series | _condition_series(self.condition, object_labels, status.conditions)


SETS = metrics.gauge("mcm_machine_set_items_total", "Number of machine sets.")
DEPLOYMENTS = metrics.gauge("mcm_machine_deployment_items_total", "Number of machine deployments.")
_SETS = _Family(
    "mcm_machine_set",
    "machine set",
    ["spec_machine_class_api_group", "spec_machine_class_kind", "spec_machine_class_name"],
    {
        "info_spec_replicas": "Desired machines",
        "info_spec_min_ready_seconds": "Minimum ready seconds",
        "status_available_replicas": "Available machines",
        "status_fully_labelled_replicas": "Machines with all template labels",
        "status_ready_replicas": "Running machines",
        "status_replicas": "Machines",
    },
)
_DEPLOYMENTS = _Family(
    "mcm_machine_deployment",
    "machine deployment",
    ["spec_strategy_type"],
    {
        "info_spec_paused": "Pause state (1 paused, else 0)",
        "info_spec_replicas": "Desired machines",
        "info_spec_min_ready_seconds": "Minimum ready seconds",
        "info_spec_rolling_update_max_surge": "Maximum surge",
        "info_spec_rolling_update_max_unavailable": "Maximum unavailable machines",
        "info_spec_revision_history_limit": "Maximum old sets kept",
        "info_spec_progress_deadline_seconds": "Progress deadline in seconds",
        "info_spec_rollback_to_revision": "Rollback target revision",
        "status_available_replicas": "Available machines",
        "status_unavailable_replicas": "Unavailable machines",
        "status_ready_replicas": "Running machines",
        "status_updated_replicas": "Machines of the newest template",
        "status_collision_count": "Name collisions",
        "status_replicas": "Machines",
    },
)


def observe_duration(
    step: str, machine: Machine, machine_class: ResolvedClass, seconds: float
) -> None:
    """Record the duration of a step in its gauge, and in its histogram if there is one."""
    DURATIONS[step].labels(*_labels_of(machine, machine_class)).set(seconds)
    if step in HISTOGRAMS:
        HISTOGRAMS[step].observe(seconds)


def observe_drain(machine: Machine, seconds: float) -> None:
    """Record the duration of a drain."""
    DRAIN.labels(machine.namespace, machine.deployment).set(seconds)


def count_phase_change(phase: Phase) -> None:
    """Count a change of a machine's phase."""
    if phase in _COUNTED:
        PHASE_CHANGES.labels(phase.value).inc()


def count_failed_join(machine: Machine, machine_class: ResolvedClass) -> None:
    """Count a machine that did not join in time."""
    FAILED_JOINS.labels(*_labels_of(machine, machine_class)).inc()


def _labels_of(machine: Machine, machine_class: ResolvedClass) -> tuple[str, ...]:
    return (machine.namespace, machine.deployment, *machine_class.place)


def update_machine_series(old: Machine | None, new: Machine | None, *, total: int) -> None:
    """Update the series of a machine; those of a deleted machine are removed."""
    MACHINES.set(total)
    _update_series(old, new, _machine_series)


def _machine_series(obj: Machine) -> Series:
    object_labels = (obj.name, obj.namespace)
    info_values = (
        *object_labels,
        obj.metadata.creation_timestamp or "",
        obj.provider_id,
        *obj.class_reference,
        obj.node_name,
    )
    series: Series = {
        (PHASE, object_labels): PHASES.get(obj.phase, 0),
        (MACHINE_INFO, info_values): 1,
    }
    return series | _condition_series(MACHINE_CONDITION, object_labels, obj.status.conditions)


def update_set_series(old: MachineSet | None, new: MachineSet | None, *, total: int) -> None:
    """Update the series of a set; those of a deleted set are removed."""
    SETS.set(total)
    _update_series(old, new, _set_series)


def update_deployment_series(
    old: MachineDeployment | None, new: MachineDeployment | None, *, total: int
) -> None:
    """Update the series of a deployment; those of a deleted deployment are removed."""
    DEPLOYMENTS.set(total)
    _update_series(old, new, _deployment_series)


def _set_series(obj: MachineSet) -> Series:
    status = obj.status
    numbers = {
        "info_spec_replicas": obj.replicas,
        "info_spec_min_ready_seconds": obj.min_ready_s,
        "status_available_replicas": status.available,
        "status_fully_labelled_replicas": status.labeled,
        "status_ready_replicas": status.ready,
        "status_replicas": status.replicas,
    }
    return _SETS.series(obj, obj.template.class_reference, numbers)


def _deployment_series(obj: MachineDeployment) -> Series:
    status = obj.status
    numbers: dict[str, float | None] = {
        "info_spec_paused": int(obj.is_paused),
        "info_spec_replicas": obj.replicas,
        "info_spec_min_ready_seconds": obj.min_ready_s,
        "info_spec_revision_history_limit": obj.history_limit,
        "info_spec_progress_deadline_seconds": obj.deadline_s,
        "info_spec_rollback_to_revision": obj.rollback_to,
        "status_available_replicas": status.available,
        "status_unavailable_replicas": status.unavailable,
        "status_ready_replicas": status.ready,
        "status_updated_replicas": status.updated,
        "status_collision_count": status.collisions,
        "status_replicas": status.replicas,
    }
    rolling = {"max_surge": (obj.max_surge, True), "max_unavailable": (obj.max_unavailable, False)}
    for name, (value, up) in rolling.items():
        if obj.strategy is Strategy.ROLLING and replicas.is_amount(value):
            amount = replicas.resolve_amount(value, max(obj.replicas, 0), up=up)
            numbers[f"info_spec_rolling_update_{name}"] = amount
    return _DEPLOYMENTS.series(obj, (obj.strategy_type,), numbers)


# --- series of an object --------------------------------------------------------------------------

_CONDITIONS = {"True": 1, "False": 0, "Unknown": 2}
"""Metric values of a condition's status (Gardener's MCM)."""


def _update_series(old: T | None, new: T | None, series: Callable[[T], Series]) -> None:
    before, after = ({} if obj is None else series(obj) for obj in (old, new))
    for metric, labels in before.keys() - after.keys():
        metric.remove(*labels)
    for (metric, labels), value in after.items():
        metric.labels(*labels).set(value)


def _condition_series(
    metric: metrics.Gauge,
    object_labels: tuple[str, ...],
    conditions: Iterable[Condition | NodeCondition],
) -> Series:
    return {
        (metric, (*object_labels, condition.type)): _CONDITIONS.get(condition.status, 2)
        for condition in conditions
    }
