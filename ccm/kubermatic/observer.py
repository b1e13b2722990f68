"""Updates the metrics of Kubermatic's objects when an object in a cache changes.

A scrape only reads the results.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ccm.base import log
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import MachineMetrics, MachineMetricsUpdate, MachineRequest
from ccm.kubermatic import metrics
from ccm.kubermatic import types as documents
from ccm.kubermatic.codec import CODEC
from ccm.machines.caches import Caches
from ccm.machines.driver import SharedComponents
from ccm.machines.metrics import Series, update_series
from ccm.model.machines import (
    Machine,
    MachineDeployment,
    OperationState,
    OperationType,
    Phase,
)
from ccm.model.names import CONDITION_READY, STATUS_TRUE
from ccm.model.times import parse_optional_time
from ccm.runtime.controller import ERRORS

NAME = "kubermaticmetrics"

PERIOD_S = 600.0
"""Seconds between two updates of the provider's metrics (Kubermatic)."""

MAX_LABEL = 128
"""Maximum length of a label value: users choose the values in their provider specs."""

_LABEL_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_BATCH = 100
"""Number of Machines after which other tasks run."""

Labels = tuple[tuple[str, str], ...]


def _failures() -> list[tuple[Mapping[str, str], float]]:
    samples = (sample for family in ERRORS.collect() for sample in family.samples)
    names = (sample for sample in samples if sample.labels["name"].startswith(CODEC.prefix))
    return [({}, sum(sample.value for sample in names))]


metrics.FAILURES.read = _failures

# --- Machines -------------------------------------------------------------------------------------


class MachineObserver:
    """Updates the metrics of Machines, and lets the provider update its own.

    Args:
        shared: components of the machine controllers; the caches are ready.
    """

    def __init__(self, shared: SharedComponents) -> None:
        self._caches, self._driver = shared.caches, shared.driver
        self._labels: dict[str, Labels] = {}
        self._counts: Counter[Labels] = Counter()
        self._adopted: set[str] = set()
        """UIDs of Machines with a ready node before this program managed them."""
        self._has_failed = False
        """Whether the last update of the provider's metrics failed, so that it is logged once."""
        metrics.MACHINES.read = lambda: [(dict(labels), n) for labels, n in self._counts.items()]

    async def run(self) -> None:
        """Follow the cache and update the provider's metrics periodically, until cancelled."""
        machines = self._caches.machines
        handler = machines.add_handler(
            name=NAME,
            on_add=lambda obj, _: self._changed(None, obj),
            on_update=self._changed,
            on_delete=self._deleted,
        )
        try:
            while True:
                await self.update_provider_metrics()
                await asyncio.sleep(PERIOD_S)
        finally:
            machines.remove_handler(handler)

    async def update_provider_metrics(self) -> None:
        """Let the provider update its metrics of all its Machines, if it has any."""
        try:
            if self._driver.caller.offers(MachineMetricsUpdate):
                requests = await self._requests()
                await self._driver.call(MachineMetricsUpdate.set_metrics_for_machines, requests)
                self._has_failed = False
        except Exception as error:  # noqa: BLE001 - metrics must not stop the controller
            if not self._has_failed:
                log.logger(NAME).warning("metrics of the provider not updated", error=str(error))
            self._has_failed = True

    async def _requests(self) -> list[MachineRequest]:
        requests = []
        for number, machine in enumerate(self._caches.machines.store.list()):
            machine_class = self._caches.class_of(machine)
            if not machine_class.faults and not self._caches.codec.is_ignored(machine):
                requests.append(self._driver.request(machine, machine_class))
            if number % _BATCH == 0:
                await asyncio.sleep(0)
        return requests

    def _changed(self, old: Machine | None, new: Machine) -> None:
        update_series(old, new, _machine_series)
        if old is None or old.uid != new.uid or old.spec != new.spec:
            self._count(new.key, self._labels_of(new))
        if new.phase is Phase.NEW and _is_ready(new):
            self._adopted.add(new.uid)
        if (
            old is not None
            and (old.uid, old.status.kind) == (new.uid, OperationType.CREATE.value)
            and old.status.state != OperationState.SUCCESSFUL.value
            and new.phase is Phase.RUNNING
            and new.uid not in self._adopted
        ):
            metrics.PROVISIONING.observe(self._caches.ages.of(new))

    def _deleted(self, obj: Machine, is_observed: bool) -> None:
        update_series(obj, None, _machine_series)
        self._count(obj.key, None)
        self._adopted.discard(obj.uid)
        requested = parse_optional_time(obj.metadata.deletion_timestamp)
        if is_observed and requested is not None and not self._caches.codec.is_ignored(obj):
            took_s = (self._caches.now() - requested).total_seconds()
            metrics.DEPROVISIONING.observe(max(0.0, took_s))

    def _count(self, key: str, labels: Labels | None) -> None:
        """Count a Machine under other labels; None = it is gone."""
        before = self._labels.pop(key, None)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if labels is not None:
            self._labels[key] = labels
            self._counts[labels] += 1

    def _labels_of(self, machine: Machine) -> Labels:
        document: documents.Machine = machine.source
        config = document.spec.provider_spec.value or {}
        own = {
            "kubelet_version": document.spec.versions.kubelet,
            "provider": config.get("cloudProvider"),
            "os": config.get("operatingSystem"),
        }
        given = {"size": "", **self._provider_labels(config)}
        named = given | {name: value for name, value in own.items() if value}
        return tuple(
            (name, str(value)[:MAX_LABEL])
            for name, value in sorted(named.items())
            if _LABEL_NAME.fullmatch(name)
        )

    def _provider_labels(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        try:
            labels = self._driver.caller.compute(MachineMetrics.machine_metrics_labels, config)
            return {str(name): value for name, value in labels.items()}
        except (AttributeError, CloudError):  # the response may have any type
            return {}


def _machine_series(obj: Machine) -> Series:
    series: Series = {(metrics.CREATED, (obj.name,)): obj.created.timestamp()}
    requested = parse_optional_time(obj.metadata.deletion_timestamp)
    if requested is not None:
        series[metrics.DELETED, (obj.name,)] = requested.timestamp()
    return series


def _is_ready(machine: Machine) -> bool:
    return any(
        (condition.type, condition.status) == (CONDITION_READY, STATUS_TRUE)
        for condition in machine.status.conditions
    )


# --- MachineDeployments ---------------------------------------------------------------------------


async def observe_deployments(caches: Caches) -> None:
    """Update the metrics of MachineDeployments until cancelled."""
    deployments = caches.machine_deployments
    handler = deployments.add_handler(
        name=NAME,
        on_add=lambda obj, _: update_series(None, obj, _deployment_series),
        on_update=lambda old, new: update_series(old, new, _deployment_series),
        on_delete=lambda obj, _: update_series(obj, None, _deployment_series),
    )
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        deployments.remove_handler(handler)


def _deployment_series(obj: MachineDeployment) -> Series:
    labels = (obj.name, obj.namespace)
    return {
        (gauge, labels): getattr(obj.status, field) for field, gauge in metrics.REPLICAS.items()
    }
