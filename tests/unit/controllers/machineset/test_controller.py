"""Sets beside other writers, and what is odd about their machines."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import SETS, Sets, moment

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"


async def test_a_set_of_the_reference_is_taken_over_without_a_write() -> None:
    """With the nulls that Go writes, and what it writes beside what we do."""
    world = Sets()
    template: dict[str, Any] = {
        "metadata": {"creationTimestamp": None, "labels": {"name": "web"}},
        "spec": {
            "class": {"apiGroup": names.GROUP, "kind": "MachineClass", "name": "small"},
            "nodeTemplate": {"metadata": {"creationTimestamp": None}, "spec": {}},
        },
    }
    owner = world.set(
        replicas=2, template=template, metadata={"finalizers": [names.FINALIZER]}, machineClass={}
    )
    for number in range(2):
        world.member(f"web-{number}", owner=owner, **template["spec"])
    frozen = {"type": "Frozen", "status": "False", "lastTransitionTime": None}
    status = {
        "replicas": 2,
        "fullyLabeledReplicas": 2,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "observedGeneration": 1,
        "machineSetCondition": [frozen],
        "lastOperation": {"lastUpdateTime": moment(-60)},
        "failedMachines": None,
    }
    world.change(f"{WEB}/status", status=status)
    async with world.running("machineset"):
        await advance(700)

    assert world.server.writes("machines") == 0
    assert world.server.writes("machinesets") == 0


@pytest.mark.row("machineset-status-03")
async def test_that_a_set_knows_how_many_are_wanted_is_said_at_once() -> None:
    world = Sets()
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        for count in (2, 3):
            world.change(WEB, spec={"replicas": count})
            await advance(0.4)
            generation = world.set_object()["metadata"]["generation"]
            assert world.set_status()["observedGeneration"] == generation


@pytest.mark.row("machineset-status-03")
async def test_counts_that_nobody_waits_for_are_said_now_and_then() -> None:
    world = Sets()
    world.set(replicas=9)
    async with world.running("machineset"):
        await advance(5)
        before = world.server.requests["PATCH", f"{WEB}/status"]
        for name in world.here():
            world.becomes(name, "Running", state="Successful")
            await advance(0.5)
        assert world.server.requests["PATCH", f"{WEB}/status"] - before <= 3
        await advance(2)

    assert world.set_status()["readyReplicas"] == 9
