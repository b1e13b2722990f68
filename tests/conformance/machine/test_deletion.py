"""From the wish to delete a Machine to its end, row by row, in texts that others read."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.machines import deletion
from ccm.machines.deletion import MARKERS, Cause, Event, Stage
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus
from ccm.testing.clock import advance
from tests.conformance.machine.going import ALL, LONG_S, NONE, SHORT_S, M, goes, left
from tests.unit.controllers.machines import NODES_PATH, SECRETS_PATH, World

pytestmark = pytest.mark.virtual_time


def said(stage: Stage, cause: Cause, text: str = "") -> str:
    """What the table says."""
    metadata = ObjectMeta(name=M, namespace="default", uid="u")
    machine = Machine(
        metadata=metadata,
        created=clock.now(),
        class_name="small",
        node_name="n",
        status=MachineStatus(),
    )
    return deletion.moved(stage, Event(cause=cause, said=text), machine).text


GIVEN_UP = (
    "Drain failed due to - Failed to update node. However, since it's a force deletion shall "
    "continue deletion of VM. Delete Volume Attachments"
)
UNTOLD = "failure in update of node conditions - x"
AGAIN = "Will retry in next sync. Initiate node drain"
ALONE = (
    "Running without target cluster, skipping node drain and volume attachment deletion. "
    "Initiate VM deletion"
)
UNLABELLED = (
    f'Label "node" not present on machine "{M}", continuing deletion flow. '
    "Initiate machine object finalizer removal"
)


# --- the texts ------------------------------------------------------------------------------


def test_the_markers_are_the_references() -> None:
    assert list(MARKERS.values()) == [
        "Set machine status to termination. Now, getting VM MachineStatus",
        "Initiate node drain",
        "Delete Volume Attachments",
        "Initiate VM deletion",
        "Initiate node object deletion",
        "Initiate machine object finalizer removal",
    ]


SAID = {
    "03": (Stage.STATUS, Cause.KNOWN, "", MARKERS[Stage.DRAIN]),
    "04": (Stage.DRAIN, Cause.DRAINED, "", "Drain successful. Initiate VM deletion"),
    "05": (
        Stage.DRAIN,
        Cause.NO_NODE,
        "",
        "Skipping drain as nodeName is not a valid one for machine. Initiate VM deletion",
    ),
    "06": (Stage.DRAIN, Cause.FORCED, "", "Force Drain successful. Delete Volume Attachments"),
    "09": (Stage.DRAIN, Cause.UNDRAINED_BY_FORCE, "- Failed to update node", GIVEN_UP),
    "10": (Stage.DRAIN, Cause.UNDRAINED, UNTOLD, f"Drain failed due to {UNTOLD}. {AGAIN}"),
    "12": (
        Stage.VM,
        Cause.GONE,
        "",
        "VM deletion was successful. Initiate node object deletion",
    ),
    "13": (
        Stage.NODE,
        Cause.RELEASED,
        "",
        'Deletion of Node Object "n" is successful. Initiate machine object finalizer removal',
    ),
    "16": (Stage.STATUS, Cause.NO_TARGET, "", ALONE),
    "17": (Stage.NODE, Cause.NO_LABEL, "", UNLABELLED),
}
"""Row -> stage, what came of it, the words of an error, and the text."""


@pytest.mark.parametrize(
    ("stage", "cause", "word", "text"),
    [
        pytest.param(*case, marks=pytest.mark.row(f"machine-delete-{row}"), id=row)
        for row, case in SAID.items()
    ],
)
def test_what_is_said(stage: Stage, cause: Cause, word: str, text: str) -> None:
    assert said(stage, cause, word) == text


# --- the stages -----------------------------------------------------------------------------


@pytest.mark.row("machine-delete-01")
async def test_without_finalizer_nothing_is_done() -> None:
    world = World()
    world.ready_class()
    goes(world, "hands off", phase="Running", finalizers=["example.com/other"])
    async with world.running():
        await advance(60)

    assert (left(world), world.phase(M)) == (ALL, "Running")
    assert world.operation(M)["description"] == "hands off"
    assert world.driver.calls["delete_machine"] == 0


@pytest.mark.row("machine-delete-02")
async def test_the_phase_is_written_before_anything_is_done() -> None:
    world = World()
    world.ready_class()
    world.drains.seconds = 60
    goes(world, "Machine machine-0 successfully joined the cluster", phase="Running")
    async with world.running():
        await advance(1)
        operation = world.operation(M)
        assert world.phase(M) == "Terminating"
        assert operation["description"] == MARKERS[Stage.DRAIN]
        assert (operation["state"], operation["type"]) == ("Processing", "Delete")
        assert left(world) == ALL
        await advance(60)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-02")
async def test_a_phase_that_cannot_be_written_stops_everything() -> None:
    world = World()
    world.ready_class()
    goes(world, phase="Running")
    world.server.refuse = lambda method, path: (
        Forbidden(status=403, reason="Forbidden", message="no")
        if method == "PATCH" and path.endswith("/status")
        else None
    )
    async with world.running():
        await advance(60)

    assert (left(world), world.drains.tasks) == (ALL, [])


FROM = {
    "03": (MARKERS[Stage.STATUS], 1, 1),
    "04": (MARKERS[Stage.DRAIN], 1, 1),
    "12": (f"Drain successful. {MARKERS[Stage.VM]}", 0, 1),
    "13": (f"VM deletion was successful. {MARKERS[Stage.NODE]}", 0, 0),
    "14": (MARKERS[Stage.FINALIZER], 0, 0),
    "15": ("Deleting machine from cloud provider", 1, 1),
}
"""Row -> text that stands, drains and deletions of VMs that follow."""


@pytest.mark.parametrize(
    ("text", "drains", "deletions"),
    [
        pytest.param(*case, marks=pytest.mark.row(f"machine-delete-{row}"), id=row)
        for row, case in FROM.items()
    ],
)
async def test_a_deletion_goes_on_from_its_text(text: str, drains: int, deletions: int) -> None:
    world = World()
    world.ready_class()
    goes(world, text)
    async with world.running("machine", "machineclass"):
        await advance(1)

    assert world.get(M) == {}
    assert (len(world.drains.tasks), world.driver.calls["delete_machine"]) == (drains, deletions)
    # The finalizer is all that is left to remove where the text says so.
    assert (world.node_object(M) == {}) is (text != MARKERS[Stage.FINALIZER])
    assert world.driver.calls["get_machine_status"] == 0


@pytest.mark.row("machine-delete-15")
async def test_our_annotation_counts_where_the_text_was_written_over() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    path = goes(world)
    async with world.running():
        await advance(1)
        assert names.ANNOTATION_DELETION in world.get(M)["metadata"]["annotations"]
        over = {"lastOperation": {"description": "Deleting machine from cloud provider"}}
    world.server.patch(f"{path}/status", {"status": over})
    async with world.running():
        await advance(10)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


async def test_the_annotation_of_another_machine_says_nothing() -> None:
    world = World()
    world.ready_class()
    note = '{"uid":"another","stage":"finalizer"}'
    goes(world, metadata={"annotations": {names.ANNOTATION_DELETION: note}})
    async with world.running():
        await advance(1)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


@pytest.mark.row("machine-delete-05")
@pytest.mark.parametrize("label", [M, ""], ids=["node-gone", "never-known"])
async def test_without_node_there_is_nothing_to_drain(label: str) -> None:
    world = World()
    world.ready_class()
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    world.driver.faults["get_machine_status"] = errors.NotFound("x")
    goes(world, labels={"node": label})
    world.server.patch(f"{NODES_PATH}/{M}", {"metadata": {"finalizers": None}})
    world.server.drop(f"{NODES_PATH}/{M}")
    async with world.running():
        await advance(20)

    assert (left(world), world.drains.tasks) == (NONE, [])


@pytest.mark.row("machine-delete-09")
@pytest.mark.row("machine-delete-11")
@pytest.mark.parametrize(
    ("more", "old_s"),
    [({"labels": {"force-deletion": "True"}}, 0), ({"drainTimeout": "5m"}, 400)],
    ids=["label", "drain-timeout"],
)
async def test_force_goes_on_where_the_drain_fails(more: dict[str, Any], old_s: float) -> None:
    world = World()
    world.ready_class()
    world.drains.fails = ["- Failed to update node"]
    goes(world, MARKERS[Stage.DRAIN], **more)
    await advance(old_s)
    async with world.running():
        await advance(1)

    (task,) = world.drains.tasks
    assert (task.force, task.max_evict_retries) == (True, 1)
    assert left(world) == NONE


@pytest.mark.row("machine-delete-10")
async def test_a_drain_that_fails_begins_anew() -> None:
    world = World()
    world.ready_class()
    world.drains.fails = ["failure in update of node conditions - x"]
    goes(world, MARKERS[Stage.DRAIN])
    await advance(180)
    async with world.running():
        await advance(SHORT_S - 1)
        operation = world.operation(M)
        assert operation["description"] == said(
            Stage.DRAIN, Cause.UNDRAINED, "failure in update of node conditions - x"
        )
        assert (operation["state"], len(world.drains.tasks)) == ("Failed", 1)
        await advance(2)

    assert (left(world), len(world.drains.tasks)) == (NONE, 2)


async def test_time_that_runs_out_in_the_middle_of_a_drain() -> None:
    world = World()
    world.ready_class()
    world.drains.seconds = 3600
    goes(world, drainTimeout="5m")
    async with world.running():
        await advance(400)

    forces = [task.force for task in world.drains.tasks]
    assert (forces[0], forces[-1]) == (False, True)
    deadlines = {task.deadline for task in world.drains.tasks}
    assert len(deadlines) == 1


@pytest.mark.row("machine-delete-16")
@pytest.mark.row("machine-delete-17")
async def test_without_target_only_the_vm_goes() -> None:
    world = World(has_target=False)
    world.ready_class()
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    goes(world, MARKERS[Stage.STATUS], labels={"node": ""})
    async with world.running():
        await advance(20)

    assert left(world) == (False, False, True)
    assert world.drains.tasks == []
    assert world.driver.calls["get_machine_status"] == 0


# --- the VM ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "after_s"),
    [
        pytest.param(fault, after_s, marks=pytest.mark.row(row), id=type(fault).__name__)
        for fault, after_s, row in (
            (errors.Unknown("x"), SHORT_S, "machine-delete-vm-01"),
            (errors.DeadlineExceeded("x"), SHORT_S, "machine-delete-vm-01"),
            (errors.Aborted("x"), SHORT_S, "machine-delete-vm-01"),
            (errors.Unavailable("x"), SHORT_S, "machine-delete-vm-01"),
            (errors.Internal("x"), LONG_S, "machine-delete-vm-02"),
            (errors.PermissionDenied("x"), LONG_S, "machine-delete-vm-02"),
        )
    ],
)
async def test_a_vm_that_the_cloud_does_not_delete(
    fault: errors.CloudError, after_s: float
) -> None:
    world = World()
    world.ready_class()
    world.driver.faults["delete_machine"] = [fault]
    goes(world)
    async with world.running():
        await advance(after_s - 1)
        operation = world.operation(M)
        assert MARKERS[Stage.VM] in operation["description"]
        assert (operation["state"], operation["errorCode"]) == ("Failed", type(fault).__name__)
        assert (left(world), world.driver.calls["delete_machine"]) == (ALL, 1)
        await advance(after_s * 0.2 + 2)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


@pytest.mark.row("machine-delete-vm-02")
async def test_what_was_refused_is_tried_at_once_with_other_credentials() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["delete_machine"] = [errors.PermissionDenied("x")]
    goes(world)
    async with world.running():
        await advance(10)
        assert left(world) == ALL
        encoded = base64.b64encode(b"new").decode()
        world.server.patch(f"{SECRETS_PATH}/small", {"data": {"key": encoded}})
        await advance(1)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-vm-03")
async def test_a_vm_that_was_deleted_behind_our_back() -> None:
    world = World()
    world.ready_class()
    goes(world)
    world.driver.vms.clear()
    world.driver.faults["delete_machine"] = errors.NotFound("x")
    async with world.running():
        await advance(1)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-vm-04")
async def test_a_deletion_that_was_accepted_and_then_failed() -> None:
    world = World()
    world.ready_class()
    world.driver.faults["delete_machine"] = [
        errors.RetryAfter("x", seconds=3),
        errors.Internal("x"),
        errors.RetryAfter("x", seconds=30),
        None,
    ]
    goes(world)
    async with world.running():
        await advance(10)
        assert (left(world), world.operation(M)["state"]) == (ALL, "Failed")
        await advance(LONG_S + 70)
        assert (left(world), world.operation(M)["state"]) == (ALL, "Processing")
        await advance(60)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


async def test_a_machine_that_is_set_free_in_the_middle_of_its_drain() -> None:
    """Somebody removes the finalizer: the machine is gone, and its drain ends."""
    world = World()
    world.ready_class()
    world.drains.seconds = 3600
    path = goes(world)
    async with world.running("machine", "machineclass"):
        await advance(10)
        world.server.patch(path, {"metadata": {"finalizers": None}})
        await advance(5)

    assert (left(world), len(world.drains.stopped)) == ((False, True, True), 1)
