"""Metrics of the machine controller; those that begin with `mcm` carry the reference's names."""

from __future__ import annotations

from ccm.base import metrics
from ccm.gardener import series
from ccm.gardener.series import Series
from ccm.machines.classes import ClassView
from ccm.model.machines import Machine, Phase

ITEMS = metrics.gauge("mcm_machine_items_total", "Machines there are.")
PHASE = metrics.gauge(
    "mcm_machine_current_status_phase",
    "Phase of a machine: Terminating -4, Failed -3, CrashLoopBackOff -2, Unknown -1, Pending 0, "
    "Running 1, any other 0.",
    ["name", "namespace"],
)
INFO = metrics.gauge(
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
CONDITION = metrics.gauge(
    "mcm_machine_status_condition",
    "Conditions of a machine's node: True 1, False 0, Unknown 2.",
    ["name", "namespace", "condition"],
)
FROZEN = metrics.gauge(
    "mcm_machine_controller_frozen",
    "1 while machines are left alone because an API server does not answer.",
)
PHASE_CHANGES = metrics.counter(
    "ccm_machine_phase_changes", "Changes of a machine's phase, by the new one.", ["phase"]
)
_COUNTED = (Phase.PENDING, Phase.RUNNING, Phase.UNKNOWN, Phase.FAILED, Phase.CRASH_LOOP)
for _phase in _COUNTED:
    PHASE_CHANGES.labels(_phase.value)
WAITING = metrics.gauge(
    "ccm_machine_replacements_waiting",
    "Machines whose nodes are sick for too long, and which wait for the replacement of others.",
)
_WHO = ["namespace", "machine_deployment", "instance_type", "zone"]
FAILED_JOINS = metrics.plain_counter(
    "mcm_machine_num_failed_join",
    "Machines that did not join in time.",
    _WHO,
)
DURATIONS = {
    step: metrics.gauge(
        f"mcm_machine_{step}_duration_seconds",
        f"Time that the last {step} of a machine took.",
        _WHO,
    )
    for step in ("create", "initialize", "join", "delete")
}
DRAIN = metrics.gauge(
    "mcm_machine_drain_duration_seconds",
    "Time that the last drain of a machine's node took.",
    _WHO[:2],
)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
HISTOGRAMS = {
    "create": metrics.histogram(
        "ccm_machine_create_duration_seconds",
        "Time the driver took to make a VM.",
        buckets=_SECONDS,
    ),
    "join": metrics.histogram(
        "ccm_machine_join_duration_seconds",
        "Time from the creation of a Machine to its node being in use.",
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


def took(step: str, machine: Machine, made_of: ClassView, seconds: float) -> None:
    """How long a step took; the gauges of the reference keep the last one only."""
    DURATIONS[step].labels(*_who(machine, made_of)).set(seconds)
    if step in HISTOGRAMS:
        HISTOGRAMS[step].observe(seconds)


def drained(machine: Machine, seconds: float) -> None:
    """How long a drain took."""
    DRAIN.labels(machine.namespace, machine.deployment).set(seconds)


def phase_changed(phase: Phase) -> None:
    """A machine is in another phase."""
    if phase in _COUNTED:
        PHASE_CHANGES.labels(phase.value).inc()


def failed_join(machine: Machine, made_of: ClassView) -> None:
    """A machine did not join in time."""
    FAILED_JOINS.labels(*_who(machine, made_of)).inc()


def _who(machine: Machine, made_of: ClassView) -> tuple[str, ...]:
    return (machine.namespace, machine.deployment, *made_of.place)


def note(old: Machine | None, new: Machine | None, *, total: int) -> None:
    """Keep the series of a machine in step with it; those of one that is gone vanish."""
    ITEMS.set(total)
    series.follow(_series(old), _series(new))


def _series(obj: Machine | None) -> Series:
    if obj is None:
        return {}
    who = (obj.name, obj.namespace)
    about = (
        *who,
        obj.metadata.creation_timestamp or "",
        obj.provider_id,
        *obj.class_reference,
        obj.node_name,
    )
    found: Series = {
        (PHASE, who): PHASES.get(obj.phase, 0),
        (INFO, about): 1,
    }
    return found | series.of_conditions(CONDITION, who, obj.status.conditions)
