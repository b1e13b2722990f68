"""Metrics of Kubermatic's objects, by the names of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base import metrics
from ccm.cloud import errors
from ccm.cloud.machines import Identity, MachineRequest
from ccm.kubermatic import names
from ccm.kubermatic.observer import MachineObserver, observe_deployments
from ccm.machines.driver import SharedComponents
from ccm.runtime.controller import Controller, Runnable
from ccm.testing.clock import advance
from tests.unit.controllers.machines import CLUSTER, FakeDriver
from tests.unit.kubermatic.test_machines import ALL, BASE, WEB, Kubermatic, value

pytestmark = [pytest.mark.virtual_time, pytest.mark.xdist_group("metrics of Kubermatic")]

PREFIX = "machine_controller_"
TIMES = ("provisioning_time_seconds", "deprovisioning_time_seconds")


class Metered(FakeDriver):
    """A driver with labels, and with metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: Any = {}
        self.updates: list[list[str]] = []
        self.fault: Exception | None = None

    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Mapping[str, str]:
        native = spec["cloudProviderSpec"]
        return {"size": native["size"], **self.labels}

    async def set_metrics_for_machines(self, requests: Sequence[MachineRequest]) -> None:
        self.updates.append(sorted(req.identity.name for req in requests))
        assert all(req.credentials["Secret/default/acme/token"] == b"secret" for req in requests)
        if self.fault is not None:
            raise self.fault


class Observed(Kubermatic):
    """The controllers with what the app adds to them."""

    def __init__(self) -> None:
        super().__init__()
        self.driver: Metered = Metered()

    def _machine(self, shared: SharedComponents, client: Any) -> Runnable:
        controller = super()._machine(shared, client)
        assert isinstance(controller, Controller)
        controller.tasks["metrics"] = MachineObserver(shared).run
        return controller

    def _machinedeployment(self, shared: SharedComponents, client: Any) -> Runnable:
        observe_deployments(shared.caches)
        return super()._machinedeployment(shared, client)


def sample(metric: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(metric, labels)


def series(name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """All series of a metric: labels and values."""
    return {
        tuple(sorted(each.labels.items())): each.value
        for family in metrics.REGISTRY.collect()
        for each in family.samples
        if each.name == name
    }


def counts() -> dict[tuple[tuple[str, str], ...], float]:
    return series(f"{PREFIX}machines_total")


def machines_of(size: str, **more: str) -> tuple[tuple[str, str], ...]:
    labels = {"kubelet_version": "1.35.1", "provider": "fake", "os": "ubuntu", "size": size}
    return tuple(sorted((labels | more).items()))


def observations() -> list[float]:
    return [sample(f"{PREFIX}{name}_count") or 0 for name in TIMES]


@pytest.mark.row("kubermatic-metrics-01", "kubermatic-metrics-02", "kubermatic-metrics-04")
@pytest.mark.row("kubermatic-machine-23")
async def test_life_of_a_deployment_is_measured() -> None:
    world = Observed()
    before, took_s = observations(), sample(f"{PREFIX}{TIMES[0]}_sum") or 0
    failures = sample(f"{PREFIX}errors_total")
    async with world.running(*ALL):
        assert counts() == {(): 0}
        world.deployment(2)
        await world.settle()
        assert counts() == {machines_of("small"): 2}
        assert observations() == [before[0] + 2, before[1]]
        assert 0 < (sample(f"{PREFIX}{TIMES[0]}_sum") or 0) - took_s < 240
        created = series(f"{PREFIX}machine_created")
        names_of = {one["metadata"]["name"] for one in world.objects("machines")}
        assert {labels[0][1] for labels in created} == names_of
        assert all(1.7e9 < stamp < 2e9 for stamp in created.values())
        labels = {"name": "web", "namespace": "default"}
        wanted = ("replicas", "available_replicas", "ready_replicas", "updated_replicas")
        assert [sample(f"machine_deployment_{one}", **labels) for one in wanted] == [2] * 4

        # A node that is not ready for a while does not join again.
        (name, _) = sorted(names_of)
        world.heartbeat(name, Ready="False")
        await advance(30)
        world.heartbeat(name, Ready="True")
        await world.settle()
        assert observations() == [before[0] + 2, before[1]]

        world.drains.seconds = 50.0
        world.server.drop(WEB)
        await advance(10)
        deleted = series(f"{PREFIX}machine_deleted")
        assert {labels[0][1] for labels in deleted} == names_of
        await world.settle(300)
        assert world.objects("machines") == []

    assert observations() == [count + 2 for count in before]
    assert series(f"{PREFIX}machine_created") == series(f"{PREFIX}machine_deleted") == {}
    assert series("machine_deployment_replicas") == {}
    assert counts() == {(): 0}
    assert sample(f"{PREFIX}errors_total") == failures, "no pass failed, also after the deletion"


@pytest.mark.row("kubermatic-metrics-01")
def test_buckets_are_those_of_the_reference() -> None:
    for name in TIMES:
        borders = {dict(labels)["le"] for labels in series(f"{PREFIX}{name}_bucket")}
        assert sorted(map(float, borders)) == [
            *(32, 48, 72, 108, 162, 243, 364.5, 546.75, 820.125, 1230.1875),
            float("inf"),
        ]


@pytest.mark.row("kubermatic-metrics-01")
async def test_machine_of_the_reference_does_not_count_as_provisioned() -> None:
    """Its age is months, and it joined long ago."""
    world = Observed()
    before = observations()
    labels = {"app": "web"}
    status = {
        "nodeRef": {"kind": "Node", "name": "old"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    metadata = {
        "name": "old",
        "labels": labels,
        "finalizers": [names.FINALIZER_MACHINE, names.FINALIZER_NODE],
    }
    body = {"metadata": metadata, "spec": {"providerSpec": {"value": value()}}, "status": status}
    made = world.server.put(f"{BASE}/machines", body)
    uid = made["metadata"]["uid"]
    world.driver.add(Identity(cluster=CLUSTER, namespace="default", pool="", name="old", uid=uid))
    async with world.running(*ALL):
        await world.settle()
        (machine,) = world.objects("machines")
        assert machine["status"]["phase"] == "Running"

    assert observations() == before


@pytest.mark.row("kubermatic-metrics-03")
async def test_labels_of_the_provider_are_bounded_and_valid() -> None:
    world = Observed()
    world.driver.labels = {
        "zone": "z" * 500,
        "os": "mine",
        "bad name": "x",
        "__name__": "x",
        "number": 5,
    }
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        assert counts() == {machines_of("small", zone="z" * 128, number="5"): 1}
        assert b'zone="zzz' in metrics.exposition()


@pytest.mark.row("kubermatic-metrics-03")
@pytest.mark.parametrize("labels", [None, 5, {"size": None}])
async def test_invalid_answer_of_the_provider_breaks_no_metric(labels: Any) -> None:
    world = Observed()

    def broken(spec: Mapping[str, Any]) -> Any:
        if labels == 5:
            raise RuntimeError("no labels")
        return labels

    world.driver.machine_metrics_labels = broken  # type: ignore[method-assign]
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        ((found, number),) = counts().items()

    assert (dict(found).keys(), number) == (dict(machines_of("")).keys(), 1)


@pytest.mark.row("kubermatic-metrics-05")
async def test_provider_updates_its_metrics_every_ten_minutes() -> None:
    world = Observed()
    world.deployment(2)
    async with world.running(*ALL):
        await world.settle(300)
        assert world.driver.updates[1:] == []
        await advance(300)
        known = sorted(one["metadata"]["name"] for one in world.objects("machines"))
        assert world.driver.updates[1:] == [known]
        await advance(1200)
        assert world.driver.updates[1:] == [known] * 3


@pytest.mark.row("kubermatic-metrics-05")
async def test_error_of_the_provider_is_logged_once_and_changes_nothing() -> None:
    world = Observed()
    world.driver.fault = ValueError("no metrics today")
    world.deployment(1)
    with capture_logs() as lines:
        async with world.running(*ALL):
            await world.settle()
            await advance(2400)
            assert len(world.driver.updates) == 5
            assert world.sizes() == ["small"]

            world.driver.fault = None
            await advance(600)
            world.driver.fault = errors.Unavailable("away")
            await advance(1200)

    logged = [line for line in lines if line["event"] == "metrics of the provider not updated"]
    assert ["no metrics today" in line["error"] for line in logged] == [True, False]


@pytest.mark.row("kubermatic-metrics-05")
async def test_machines_without_credentials_and_of_other_programs_are_left_out() -> None:
    world = Observed()
    world.deployment(1)
    for name, labels, spec in (
        ("foreign", {names.LABEL_CONTROLLER: "other"}, value()),
        ("other-cloud", {}, {**value(), "cloudProvider": "aws"}),
    ):
        metadata = {"name": name, "labels": labels}
        body = {"metadata": metadata, "spec": {"providerSpec": {"value": spec}}}
        world.server.put(f"{BASE}/machines", body)
    async with world.running(*ALL):
        await world.settle(660)
        created = {labels[0][1] for labels in series(f"{PREFIX}machine_created")}
        assert sum(counts().values()) == 2

    (mine,) = {name for update in world.driver.updates for name in update}
    assert mine.startswith("web-")
    assert created == {mine, "other-cloud"}


@pytest.mark.row("kubermatic-metrics-05")
async def test_driver_without_metrics_is_not_called() -> None:
    world = Observed()
    world.driver = FakeDriver()  # type: ignore[assignment]
    world.deployment(1)
    with capture_logs() as lines:
        async with world.running(*ALL):
            await world.settle(660)
            assert counts() == {machines_of(""): 1}

    assert [line for line in lines if line["event"] == "metrics of the provider not updated"] == []


@pytest.mark.row("kubermatic-metrics-04")
async def test_failed_reconciles_are_counted() -> None:
    world = Observed()
    before = sample(f"{PREFIX}errors_total") or 0
    async with world.running(*ALL):
        world.server.fails(RuntimeError("broken"), "PATCH", "machinedeployments")
        world.deployment(1)
        await advance(5)

    assert (sample(f"{PREFIX}errors_total") or 0) > before
