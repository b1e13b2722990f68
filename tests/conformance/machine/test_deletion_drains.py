"""Deletions with real drains: whom force spares, what it costs, who else deletes nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.gardener import names
from ccm.machines.deletion import MARKERS, Stage
from ccm.model.times import format_time
from ccm.testing.clock import advance
from tests.conformance.machine.going import NONE, M, goes, left
from tests.unit.controllers.machines import NODES_PATH, World
from tests.unit.controllers.memory_server import STRATEGIC

pytestmark = pytest.mark.virtual_time

PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MANY, EACH, GRACE_S = 50, 2, 1


def draining(**more: Any) -> World:
    """A world with a class, whose nodes are really drained."""
    world = World(**more)
    world.drains_really = True
    world.ready_class()
    return world


def pod(world: World, name: str, node: str, **more: Any) -> None:
    """A Pod runs there."""
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], **more}
    body = {"metadata": {"name": name, "labels": {"app": "a"}}, "spec": spec}
    world.server.put(PODS, {**body, "status": {"phase": "Running"}})


def evicted(world: World) -> int:
    """How many Pods were asked to go."""
    return world.server.writes("eviction")


def turns(world: World, kind: str, status: str, minutes: float) -> None:
    """The node's condition is so for that long already."""
    since = format_time(clock.now() - timedelta(minutes=minutes))
    told = {"type": kind, "status": status, "lastTransitionTime": since}
    path = f"{NODES_PATH}/{M}/status"
    world.server.patch(path, {"status": {"conditions": [told]}}, STRATEGIC)


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
    turns(world, kind, status, minutes)
    pod(world, "p", M)
    async with world.running():
        await advance(90)
        (text,) = [
            one["message"]
            for one in world.node_object(M)["status"]["conditions"]
            if one["type"] == names.CONDITION_TERMINATING
        ]

    assert "being deleted" in text
    assert (evicted(world) == 0) is forced
    assert world.server.list(PODS) == []
    assert MARKERS[Stage.VM] in world.operation(M)["description"]


@pytest.mark.row("machine-delete-node-04")
async def test_a_node_that_falls_sick_while_it_is_drained() -> None:
    world = draining()
    goes(world)
    pod(world, "p", M)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    world.server.put(BUDGETS, {"metadata": {"name": "b"}, "spec": budget})
    async with world.running():
        await advance(60)
        assert len(world.server.list(PODS)) == 1
        turns(world, "Ready", "Unknown", 0)
        await advance(240)
        assert len(world.server.list(PODS)) == 1
        await advance(120)

    assert (left(world), world.server.list(PODS)) == (NONE, [])


async def test_fifty_machines_with_two_pods_each() -> None:
    """Most 6 writes to the API server and 2 calls of the cloud each; 5 s beside the Pods' grace."""
    world = draining()
    for number in range(MANY):
        name = f"m{number}"
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
            pod(world, f"{name}-{each}", name, terminationGracePeriodSeconds=GRACE_S)
    world.driver.faults["delete_machine"] = [errors.RetryAfter("x", seconds=1)] * MANY
    async with world.running("machine", "machineclass"):
        await advance(1)
        world.server.requests.clear()
        world.driver.calls.clear()
        for number in range(MANY):
            world.server.drop(
                f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default/machines/m{number}"
            )
        await advance(GRACE_S + 5)
        writes = sum(
            count
            for (method, path), count in world.server.requests.items()
            if method != "GET" and not path.endswith("/eviction")
        )
        calls, gone = world.driver.calls.total(), world.server.list(NODES_PATH)
        print(f"{writes / MANY} writes, {calls / MANY} calls a machine")

    assert (gone, world.driver.vms, world.server.list(PODS)) == ([], {}, [])
    assert [world.get(f"m{number}") for number in range(MANY)] == [{}] * MANY
    assert (writes / MANY, calls / MANY) == (6, 2)
    assert evicted(world) == EACH * MANY
    took = {"namespace": "default", "machine_deployment": "pool"}
    assert REGISTRY.get_sample_value("mcm_machine_drain_duration_seconds", took) is not None
