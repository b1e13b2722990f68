"""A deletion that the Go reference began is finished, and one of ours can be by it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.machines.deletion import MARKERS, Stage
from ccm.model.times import format_time
from ccm.testing.clock import advance
from tests.conformance.machine.going import NONE, M, attached, goes, left
from tests.unit.controllers.machines import NODES_PATH, World

pytestmark = pytest.mark.virtual_time

# --- from and to the reference --------------------------------------------------------------

TEXTS = {
    "": "",
    "Running": "Machine machine-0 successfully joined the cluster",
    "Unknown": "Machine machine-0 is unhealthy - changing MachineState to Unknown.",
    "Failed": "Machine machine-0 failed to join the cluster in 20m0s minutes.",
    "CrashLoopBackOff": "Cloud provider message - machine codes error: code = [Internal]",
    "Pending": "Creating machine on cloud provider",
    "InPlaceUpdating": "Machine machine-0 is undergoing an in-place update",
    "InPlaceUpdateFailed": "update failed. Initiate node drain",
}
"""Phase -> what the reference says of a machine when its deletion is asked for."""


@pytest.mark.row("machine-delete-taken-over-01")
@pytest.mark.parametrize("phase", TEXTS)
async def test_a_machine_of_the_reference_goes(phase: str) -> None:
    world = World()
    world.ready_class()
    goes(world, TEXTS[phase], phase=phase)
    async with world.running():
        await advance(5)

    assert left(world) == NONE
    changes = {"create_machine", "initialize_machine", "delete_machine"} & set(world.driver.calls)
    assert changes == {"delete_machine"}
    assert (world.driver.calls["delete_machine"], len(world.drains.tasks)) == (1, 1)


@pytest.mark.row("machine-delete-taken-over-01")
@pytest.mark.parametrize(
    ("text", "deletions"),
    [
        (f"{MARKERS[Stage.DRAIN]}", 1),
        ("Force Drain successful. Delete Volume Attachments", 1),
        ("Drain successful. Initiate VM deletion", 1),
        ("VM deletion was successful. Initiate node object deletion", 0),
        (f'Deletion of Node Object "{M}" is successful. {MARKERS[Stage.FINALIZER]}', 0),
    ],
)
async def test_a_deletion_of_the_reference_is_finished(text: str, deletions: int) -> None:
    world = World()
    world.ready_class()
    goes(world, text)
    if not deletions:
        world.driver.vms.clear()
    async with world.running():
        await advance(5)

    assert (world.get(M), world.driver.vms) == ({}, {})
    assert world.driver.calls.total() - world.driver.calls["list_machines"] == deletions


@pytest.mark.row("machine-delete-handed-back-01")
@pytest.mark.row("machine-delete-leader-01")
@pytest.mark.parametrize("stage", [Stage.DRAIN, Stage.VOLUMES, Stage.VM, Stage.NODE])
async def test_where_we_rest_others_can_go_on(stage: Stage) -> None:
    world = World()
    world.ready_class()
    goes(world, phase="Running", labels={"force-deletion": "true"})
    if stage is Stage.DRAIN:
        world.drains.seconds = 3600
    if stage is Stage.VOLUMES:
        attached(world, "v0")
    if stage is Stage.VM:
        world.driver.faults["delete_machine"] = errors.RetryAfter("x", seconds=7)
    if stage is Stage.NODE:
        world.server.refuse = lambda method, path: (
            Forbidden(status=403, reason="Forbidden", message="no")
            if method == "DELETE" and path.startswith(NODES_PATH)
            else None
        )
    async with world.running():
        await advance(30)
    found = world.get(M)

    assert found["status"]["currentStatus"]["phase"] == "Terminating"
    text = found["status"]["lastOperation"]["description"]
    assert next(one for one, marker in MARKERS.items() if marker in text) is stage
    assert found["status"]["lastOperation"]["type"] == "Delete"
    assert found["metadata"]["finalizers"] == [names.FINALIZER]
    assert found["metadata"]["labels"]["node"] == M

    drained, deleted = len(world.drains.tasks), world.driver.calls["delete_machine"]
    world.drains.seconds, world.server.refuse = 0.0, lambda _method, _path: None
    world.driver.faults.clear()
    if stage is Stage.VOLUMES:
        attached(world)
    async with world.running():
        await advance(10)

    assert left(world) == NONE
    # A stage that is behind is not done again.
    assert (len(world.drains.tasks) == drained) is (stage is not Stage.DRAIN)
    assert (world.driver.calls["delete_machine"] == deleted) is (stage is Stage.NODE)


async def test_a_preserved_machine_that_goes_is_preserved_no_longer() -> None:
    world = World()
    world.ready_class()
    world.drains.seconds = 60
    path = goes(world, phase="Failed")
    until = format_time(clock.now() + timedelta(hours=1))
    world.server.patch(
        f"{path}/status", {"status": {"currentStatus": {"preserveExpiryTime": until}}}
    )
    async with world.running():
        await advance(1)

    assert "preserveExpiryTime" not in world.status(M)["currentStatus"]
