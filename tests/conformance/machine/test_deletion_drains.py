"""Deletions with real drains: whom force spares, what it costs, who else deletes nodes."""

from __future__ import annotations

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.gardener import names
from ccm.machines.deletion import MARKERS, Stage
from ccm.model.names import CONDITION_TERMINATING
from ccm.testing.clock import advance
from tests.conformance.machine.going import NONE, M, goes, left
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.machines import BASE, NODES_PATH

pytestmark = pytest.mark.virtual_time

MANY, EACH, GRACE_S = 50, 2, 1


def draining() -> Drains:
    """A world with a class, Pods that end, and disruption budgets that count."""
    world = Drains()
    world.drains_really = True
    world.ready_class()
    return world


@pytest.mark.parametrize(
    ("kind", "status", "minutes", "forced"),
    [
        pytest.param(*case, marks=pytest.mark.row(f"machine-delete-{row}"))
        for row, *case in (
            ("06", "Ready", "Unknown", 6, True),
            ("06", "Ready", "False", 6, True),
            ("07", "ReadonlyFilesystem", "True", 6, True),
            ("08", "ReadonlyFilesystem", "True", 2, False),
            ("08", "ReadonlyFilesystem", "False", 6, False),
        )
    ],
)
async def test_a_node_that_is_sick(kind: str, status: str, minutes: float, forced: bool) -> None:
    world = draining()
    world.driver.faults["delete_machine"] = errors.RetryAfter("x", seconds=7)
    goes(world, MARKERS[Stage.DRAIN])
    world.sick(M, since_s=60 * minutes, **{kind: status})
    world.pod("p", node=M, grace_s=60)
    async with world.running():
        await advance(90)
        (text,) = [
            one["message"]
            for one in world.node_object(M)["status"]["conditions"]
            if one["type"] == CONDITION_TERMINATING
        ]

    assert "being deleted" in text
    note = world.get(M)["metadata"]["annotations"][names.ANNOTATION_DELETION]
    assert ('"forced":true' in note) is forced
    assert world.pods() == []
    assert MARKERS[Stage.VM] in world.operation(M)["description"]


@pytest.mark.row("machine-delete-node-04")
async def test_a_node_that_falls_sick_while_it_is_drained() -> None:
    world = draining()
    goes(world)
    world.pod("p", node=M)
    # Never healthy: the budget is not misconfigured then, and may be met some time.
    world.pod("elsewhere", node="m0")
    world.sick("m0", Ready="False")
    world.budget(minAvailable=2)
    async with world.running():
        await advance(60)
        assert world.pods() == ["elsewhere", "p"]
        world.sick(M, Ready="Unknown")
        await advance(240)
        assert world.pods() == ["elsewhere", "p"]
        await advance(120)

    assert (left(world), world.pods()) == (NONE, ["elsewhere"])


async def test_fifty_machines_with_two_pods_each() -> None:
    """Most 6 writes to the API server and 2 calls of the cloud each; 5 s beside the Pods' grace."""
    world = draining()
    for number in range(MANY):
        name = f"n{number}"
        metadata = {"labels": {"node": name, "name": "pool"}, "finalizers": [names.FINALIZER]}
        status = {"currentStatus": {"phase": "Running"}}
        world.machine(name, metadata=metadata, status=status, providerID=f"fake:///{name}")
        world.driver.add(world.identity(name))
        world.node(
            name,
            metadata={
                "finalizers": [names.FINALIZER_NODE],
                "labels": {names.LABEL_MACHINE_NAME: name},
            },
        )
        for each in range(EACH):
            world.pod(f"{name}-{each}", node=name, grace_s=GRACE_S)
    world.driver.faults["delete_machine"] = [errors.RetryAfter("x", seconds=1)] * MANY
    async with world.running("machine", "machineclass"):
        await advance(1)
        world.server.requests.clear()
        world.driver.calls.clear()
        for number in range(MANY):
            world.server.drop(f"{BASE}/machines/n{number}")
        await advance(GRACE_S + 5)
        writes = sum(
            count
            for (method, path), count in world.server.requests.items()
            if method != "GET" and "/pods/" not in path and "classes/" not in path
        )
        calls = world.driver.calls.total() - world.driver.calls["list_machines"]
        print(f"{writes / MANY} writes, {calls / MANY} calls a machine")

    gone = [one["metadata"]["name"] for one in world.server.list(NODES_PATH)]
    assert (gone, world.driver.vms, world.pods()) == (["m0"], {}, [])
    assert [world.get(f"n{number}") for number in range(MANY)] == [{}] * MANY
    assert (writes / MANY, calls / MANY) == (6, 2)
    assert world.evictions() == EACH * MANY
    assert REGISTRY.get_sample_value("workqueue_adds_total", {"name": "machinetermination"})
    took = {"namespace": "default", "machine_deployment": "pool"}
    assert REGISTRY.get_sample_value("mcm_machine_drain_duration_seconds", took) is not None
