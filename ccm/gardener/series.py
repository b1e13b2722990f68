"""Series of gauges that an object has while it is there, kept in step with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ccm.base import metrics
from ccm.gardener.sets import MachineSummary

Series = dict[tuple[metrics.Gauge, tuple[str, ...]], float]
"""Gauge and labels -> value."""

CONDITIONS = {"True": 1, "False": 0, "Unknown": 2}
"""Values of a condition's status (reference)."""

FAILURE_LABELS = (
    "failed_machine_name",
    "failed_machine_provider_id",
    "failed_machine_owner_ref",
    "failed_machine_last_operation_state",
    "failed_machine_last_operation_machine_operation_type",
)
"""Of a machine whose last operation failed, behind those of its owner (reference)."""


class Condition(Protocol):
    """Of an object or a node."""

    @property
    def type(self) -> str:
        """What it is about."""
        ...

    @property
    def status(self) -> str:
        """True, False or Unknown."""
        ...


def follow(before: Series, after: Series) -> None:
    """Set the series of an object as it is now; those that it has no more vanish."""
    for metric, labels in before.keys() - after.keys():
        metric.remove(*labels)
    for (metric, labels), value in after.items():
        metric.labels(*labels).set(value)


def of_conditions(
    metric: metrics.Gauge, who: tuple[str, ...], found: Iterable[Condition] | None
) -> Series:
    """A series for each condition of the object with these labels."""
    return {(metric, (*who, one.type)): CONDITIONS.get(one.status, 2) for one in found or ()}


def of_failures(
    metric: metrics.Gauge, who: tuple[str, ...], found: Iterable[MachineSummary] | None
) -> Series:
    """A series for each machine of the object with these labels that failed."""
    return {
        (
            metric,
            (
                *who,
                each.name,
                each.provider_id,
                each.owner_ref,
                each.last_operation.state,
                each.last_operation.type,
            ),
        ): 1
        for each in found or ()
    }
