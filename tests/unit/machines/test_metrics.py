"""Metrics of machines that are computed at each scrape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ccm.base.metrics import REGISTRY
from ccm.gardener.names import GROUP as GARDENER
from ccm.kubermatic.names import GROUP as KUBERMATIC
from ccm.machines import metrics
from ccm.machines.metrics import MachineSources
from ccm.model.machines import Phase
from ccm.testing.clock import advance
from tests.unit.controllers.drains import BUDGETS, Drains
from tests.unit.controllers.machines import World
from tests.unit.controllers.machinesets import SETS, Sets
from tests.unit.kubermatic.test_machines import ALL, BASE, Kubermatic


@pytest.fixture(autouse=True)
def no_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers of other tests have registered theirs."""
    monkeypatch.setattr(metrics, "SOURCES", {})
    monkeypatch.setattr(metrics, "OWNERS", {})


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def sources(**given: Any) -> MachineSources:
    calm: Mapping[str, Any] = {
        "phases": lambda: (),
        "drains": lambda: (),
        "waiting": lambda: 0,
        "is_frozen": lambda: False,
    }
    return MachineSources(**{**calm, **given})


def test_each_api_group_is_counted_by_itself_and_none_hides_the_other() -> None:
    phases = [Phase.NEW, Phase.RUNNING, Phase.RUNNING, Phase.UPDATING]
    drains = [("running", 3.0), ("blocked", 70.0), ("blocked", 5.0)]
    metrics.SOURCES[GARDENER] = sources(
        phases=lambda: phases, drains=lambda: drains, waiting=lambda: 2, is_frozen=lambda: True
    )
    metrics.SOURCES[KUBERMATIC] = sources(waiting=lambda: 1)

    counts = {phase: sample("ccm_machines", group=GARDENER, phase=phase) for phase in PHASES}
    assert counts == {**dict.fromkeys(PHASES, 0), "New": 1, "Running": 2, "InPlaceUpdating": 1}
    assert sample("ccm_machines", group=KUBERMATIC, phase="Running") == 0
    assert sample("ccm_machine_drains", group=GARDENER, state="blocked") == 2
    assert sample("ccm_machine_drains", group=GARDENER, state="failed") == 0
    assert sample("ccm_machine_drain_longest_seconds", group=GARDENER) == 70
    assert sample("ccm_machine_drain_longest_seconds", group=KUBERMATIC) == 0
    assert sample("mcm_machine_controller_frozen") == 1
    assert sample("ccm_machine_replacements_waiting") == 3


PHASES = (
    *("New", "Pending", "Running", "Unknown", "Failed", "CrashLoopBackOff", "Terminating"),
    "InPlaceUpdating",
)


@pytest.mark.virtual_time
async def test_phases_of_both_api_groups_are_those_of_the_machines() -> None:
    world = World()
    world.joined(phase="Running")
    world.machine("m1")
    async with world.running("machine"):
        await advance(2)
        assert sample("ccm_machines", group=GARDENER, phase="Running") == 1
        assert sample("ccm_machines", group=GARDENER, phase="CrashLoopBackOff") == 1

    kubermatic = Kubermatic()
    kubermatic.deployment(2)
    async with kubermatic.running(*ALL):
        await kubermatic.settle()
        assert sample("ccm_machines", group=KUBERMATIC, phase="Running") == 2
        other = {"metadata": {"labels": {"machine.k8s.io/controller": "other"}}}
        name = kubermatic.objects("machines")[0]["metadata"]["name"]
        kubermatic.server.patch(f"{BASE}/machines/{name}", other)
        await advance(2)
        assert sample("ccm_machines", group=KUBERMATIC, phase="Running") == 1


@pytest.mark.virtual_time
async def test_a_drain_is_counted_until_it_ends_and_keeps_its_age_after_a_failure() -> None:
    world = Drains()
    world.pod("p0")
    for name in ("web", "second"):
        world.budget(name, minAvailable=1)
    async with world.draining(counting=False):
        await advance(1)
        # Of two Pods, the other is not healthy.
        counted = {"expectedPods": 2, "currentHealthy": 1, "desiredHealthy": 1}
        status = {**counted, "disruptionsAllowed": 0, "observedGeneration": 1}
        world.server.patch(f"{BUDGETS}/web/status", {"status": status})
        world.start()
        await advance(10)
        assert world.drainer.states() == [("failed", 10.0)]
        world.server.drop(f"{BUDGETS}/second")
        world.start()
        await advance(5)
        assert world.drainer.states() == [("blocked", 15.0)]
        world.server.drop(f"{BUDGETS}/web")
        await advance(60)
        assert world.drainer.states() == []


def unavailable(group: str) -> dict[tuple[str, str], float]:
    """Kind and name -> value."""
    return {
        (each.labels["kind"], each.labels["name"]): each.value
        for family in REGISTRY.collect()
        for each in family.samples
        if each.name == "ccm_machine_replicas_unavailable" and each.labels["group"] == group
    }


@pytest.mark.virtual_time
async def test_replicas_without_any_machine_are_unavailable() -> None:
    """The status of the reference counts Machines, and there are none to count."""
    kubermatic = Kubermatic()
    kubermatic.deployment(2)
    async with kubermatic.running("machinedeployment"):
        await advance(5)
        assert kubermatic.objects("machines") == []
        assert unavailable(KUBERMATIC) == {("MachineDeployment", "web"): 2}
    async with kubermatic.running(*ALL):
        await kubermatic.settle()
        # The set of the deployment is not counted again.
        assert unavailable(KUBERMATIC) == {("MachineDeployment", "web"): 0}

    world = Sets()
    world.set("pool", replicas=3, metadata={"labels": {"freeze": "True"}})
    async with world.running("machineset", "machinedeployment"):
        await advance(5)
        assert world.machines() == []
        assert unavailable(GARDENER) == {("MachineSet", "pool"): 3}
        world.server.drop(f"{SETS}/pool")
        await advance(5)
        assert unavailable(GARDENER) == {}
