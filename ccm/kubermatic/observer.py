"""Updates of Kubermatic's metrics: from the caches when scraped, or when objects change."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial

import msgspec

from ccm.base import log
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import MachineMetrics, MachineMetricsUpdate
from ccm.kube.informer import InformerStore
from ccm.kubermatic import metrics
from ccm.kubermatic.codec import CODEC
from ccm.machines.caches import Caches
from ccm.machines.driver import SharedComponents
from ccm.model.machines import CREATION_PHASES, Machine, MachineDeployment, Phase
from ccm.model.times import parse_optional_time
from ccm.runtime.controller import ERRORS

NAME = "kubermaticmetrics"

PERIOD_S = 600.0
"""Seconds between two updates of the provider's metrics (Kubermatic)."""

MAX_LABEL = 128
"""Maximum length of a label value: users choose the values in their provider specs."""

_LABEL_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
MAX_SPECS = 1024
"""Maximum number of specs whose labels are cached; no cluster has as many different specs."""

Series = tuple[Mapping[str, str], float]


def _failures() -> list[Series]:
    samples = (sample for family in ERRORS.collect() for sample in family.samples)
    return [({}, sum(one.value for one in samples if one.labels["name"].startswith(CODEC.prefix)))]


metrics.FAILURES.read = _failures


class MachineObserver:
    """Metrics of the creation and deletion of Machines, and updates of the provider's own metrics.

    Args:
        shared: components of the machine controllers; the caches are ready.
    """

    def __init__(self, shared: SharedComponents) -> None:
        self._caches, self._driver = shared.caches, shared.driver
        self._machines = shared.caches.machines.store
        self._labels_of = lru_cache(MAX_SPECS)(self._labels)
        self._adopted: set[str] = set()
        """UIDs of Machines that another program managed while they joined, as their conditions
        show."""
        self._has_failed = False
        """Whether the last update of the provider's metrics failed; only the first of several
        failures in a row is logged."""
        metrics.MACHINES.read = self._counts
        metrics.CREATED.read = self._creations
        metrics.DELETED.read = self._deletions

    async def run(self) -> None:
        """Follow the cache and update the provider's metrics periodically, until cancelled."""
        machines = self._caches.machines
        handler = machines.add_handler(name=NAME, on_update=self._changed, on_delete=self._deleted)
        try:
            while True:
                await self._update_provider_metrics()
                await asyncio.sleep(PERIOD_S)
        finally:
            machines.remove_handler(handler)

    async def _update_provider_metrics(self) -> None:
        if not self._driver.caller.offers(MachineMetricsUpdate):
            return
        caches, request = self._caches, self._driver.request
        try:
            requests = [
                request(machine, machine_class)
                for machine in self._managed()
                if not (machine_class := caches.class_of(machine)).faults
            ]
            await self._driver.call(MachineMetricsUpdate.set_metrics_for_machines, requests)
            self._has_failed = False
        except Exception as error:  # noqa: BLE001 - metrics must not stop the controller
            if not self._has_failed:
                logger = log.logger(CODEC.controller_name("machine"))
                logger.warning("metrics of the provider not updated", error=str(error))
            self._has_failed = True

    def _managed(self) -> Iterator[Machine]:
        """Return the Machines that this daemon is responsible for, without those with initializers.

        A daemon with another `--kubermatic-name` exports the metrics of its own Machines.
        """
        is_ignored = self._caches.codec.is_ignored
        return (machine for machine in self._machines.list() if not is_ignored(machine))

    def _changed(self, old: Machine, new: Machine) -> None:
        if old.phase is Phase.NEW and old.status.conditions:
            self._adopted.add(old.uid)
        joins = old.phase in (*CREATION_PHASES, Phase.PENDING) and new.phase is Phase.RUNNING
        if joins and old.uid == new.uid and new.uid not in self._adopted:
            metrics.PROVISIONING.observe(self._caches.ages.of(new))

    def _deleted(self, obj: Machine, is_observed: bool) -> None:
        self._adopted.discard(obj.uid)
        requested = parse_optional_time(obj.metadata.deletion_timestamp)
        if is_observed and requested is not None and not self._caches.codec.is_ignored(obj):
            took_s = (self._caches.now() - requested).total_seconds()
            metrics.DEPROVISIONING.observe(max(0.0, took_s))

    # --- values at a scrape -------------------------------------------------------------------

    def _creations(self) -> Iterator[Series]:
        for machine in self._managed():
            yield {"machine": machine.name}, machine.created.timestamp()

    def _deletions(self) -> Iterator[Series]:
        for machine in self._managed():
            requested = parse_optional_time(machine.metadata.deletion_timestamp)
            if requested is not None:
                yield {"machine": machine.name}, requested.timestamp()

    def _counts(self) -> list[Series]:
        specs = (machine.source.spec for machine in self._managed())
        texts = (
            msgspec.json.encode((spec.versions.kubelet, spec.provider_spec.value or {}))
            for spec in specs
        )
        counts = Counter(map(self._labels_of, texts)) or {(): 0}
        return [(dict(labels), count) for labels, count in counts.items()]

    def _labels(self, text: bytes) -> tuple[tuple[str, str], ...]:
        """Return the metric labels of Machines; `text` = JSON of their kubelet version and spec."""
        version, config = msgspec.json.decode(text)
        labels = {"size": ""}
        with suppress(AttributeError, CloudError):  # the response may have any type
            given = self._driver.caller.compute(MachineMetrics.machine_metrics_labels, config)
            labels |= {str(name): value for name, value in given.items()}
        own = {
            "kubelet_version": version,
            "provider": config.get("cloudProvider"),
            "os": config.get("operatingSystem"),
        }
        labels |= {name: value for name, value in own.items() if value}
        return tuple(
            (name, str(value)[:MAX_LABEL])
            for name, value in sorted(labels.items())
            if _LABEL_NAME.fullmatch(name)
        )


def observe_deployments(caches: Caches) -> None:
    """Let scrapes read the replicas of MachineDeployments from the cache."""
    for field, gauge in metrics.REPLICAS.items():
        gauge.read = partial(_replicas, caches.machine_deployments.store, field)


def _replicas(deployments: InformerStore[MachineDeployment], field: str) -> Iterator[Series]:
    for obj in deployments.list():
        yield {"name": obj.name, "namespace": obj.namespace}, getattr(obj.status, field)
