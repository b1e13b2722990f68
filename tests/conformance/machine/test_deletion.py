"""Deletion of Machines per row of the conformance table, with the texts that other tools parse."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from ccm.base import clock
from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.machines import deletion
from ccm.machines.deletion import MARKERS, DeletionStage, StageOutcome, StageResult
from ccm.model import ObjectMeta
from ccm.model.machines import Machine, MachineStatus
from ccm.model.names import CONDITION_TERMINATING
from ccm.model.times import format_time
from ccm.testing.clock import advance
from tests.conformance.machine.going import ALL, LONG_S, NONE, SHORT_S, M, attached, goes, left
from tests.conformance.table import case
from tests.unit.controllers.drains import Drains
from tests.unit.controllers.machines import BASE, NODES_PATH, SECRETS_PATH, Ready

pytestmark = pytest.mark.virtual_time


def said(stage: DeletionStage, cause: StageOutcome, text: str = "") -> str:
    """What the table says."""
    metadata = ObjectMeta(name=M, namespace="default", uid="u")
    machine = Machine(
        metadata=metadata,
        created=clock.now(),
        class_name="small",
        node_name="n",
        status=MachineStatus(),
    )
    return deletion.transition(stage, StageResult(outcome=cause, text=text), machine).text


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


def test_stage_markers_equal_those_of_the_go_implementation() -> None:
    assert list(MARKERS.values()) == [
        "Set machine status to termination. Now, getting VM MachineStatus",
        "Initiate node drain",
        "Delete Volume Attachments",
        "Initiate VM deletion",
        "Initiate node object deletion",
        "Initiate machine object finalizer removal",
    ]


SAID = {
    "03": (DeletionStage.STATUS, StageOutcome.NODE_KNOWN, "", MARKERS[DeletionStage.DRAIN]),
    "04": (DeletionStage.DRAIN, StageOutcome.DRAINED, "", "Drain successful. Initiate VM deletion"),
    "05": (
        DeletionStage.DRAIN,
        StageOutcome.NO_NODE,
        "",
        "Skipping drain as nodeName is not a valid one for machine. Initiate VM deletion",
    ),
    "06": (
        DeletionStage.DRAIN,
        StageOutcome.FORCED,
        "",
        "Force Drain successful. Delete Volume Attachments",
    ),
    "09": (
        DeletionStage.DRAIN,
        StageOutcome.FORCED_DRAIN_FAILED,
        "- Failed to update node",
        GIVEN_UP,
    ),
    "10": (
        DeletionStage.DRAIN,
        StageOutcome.DRAIN_FAILED,
        UNTOLD,
        f"Drain failed due to {UNTOLD}. {AGAIN}",
    ),
    "12": (
        DeletionStage.VM,
        StageOutcome.VM_DELETED,
        "",
        "VM deletion was successful. Initiate node object deletion",
    ),
    "13": (
        DeletionStage.NODE,
        StageOutcome.RELEASED,
        "",
        'Deletion of Node Object "n" is successful. Initiate machine object finalizer removal',
    ),
    "16": (DeletionStage.STATUS, StageOutcome.NO_TARGET, "", ALONE),
    "17": (DeletionStage.NODE, StageOutcome.NO_LABEL, "", UNLABELLED),
}
"""Row -> stage, outcome, text of the error, and description."""


@pytest.mark.parametrize(
    ("stage", "cause", "word", "text"),
    [case(f"machine-delete-{row}", *values, id=row) for row, values in SAID.items()],
)
def test_deletion_texts_equal_those_of_the_go_implementation(
    stage: DeletionStage, cause: StageOutcome, word: str, text: str
) -> None:
    assert said(stage, cause, word) == text


# --- the stages -----------------------------------------------------------------------------


@pytest.mark.row("machine-delete-01")
async def test_deletion_without_our_finalizer_does_nothing(world: Ready) -> None:
    goes(world, "hands off", phase="Running", finalizers=["example.com/other"])
    await world.run(60)

    assert (left(world), world.phase(M)) == (ALL, "Running")
    assert world.operation(M)["description"] == "hands off"
    assert world.driver.calls["delete_machine"] == 0


@pytest.mark.row("machine-delete-02")
async def test_terminating_phase_is_written_before_the_drain(world: Ready) -> None:
    world.drains.seconds = 60
    goes(world, "Machine machine-0 successfully joined the cluster", phase="Running")
    async with world.running():
        await advance(1)
        operation = world.operation(M)
        assert world.phase(M) == "Terminating"
        assert operation["description"] == MARKERS[DeletionStage.DRAIN]
        assert (operation["state"], operation["type"]) == ("Processing", "Delete")
        assert left(world) == ALL
        await advance(60)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-02")
async def test_failed_phase_write_stops_the_deletion(world: Ready) -> None:
    goes(world, phase="Running")
    world.server.fails(Forbidden(status=403, reason="Forbidden", message="no"), "PATCH", "/status")
    await world.run(60)

    assert (left(world), world.drains.tasks) == (ALL, [])


FROM: list[tuple[Any, ...]] = [
    ("machine-delete-03", MARKERS[DeletionStage.STATUS], 1, 1),
    (("machine-delete-04", "machine-delete-taken-over-01"), MARKERS[DeletionStage.DRAIN], 1, 1),
    ("machine-delete-taken-over-01", "Force Drain successful. Delete Volume Attachments", 0, 1),
    ("machine-delete-12", f"Drain successful. {MARKERS[DeletionStage.VM]}", 0, 1),
    ("machine-delete-13", f"VM deletion was successful. {MARKERS[DeletionStage.NODE]}", 0, 0),
    ("machine-delete-14", MARKERS[DeletionStage.FINALIZER], 0, 0),
    (
        "machine-delete-taken-over-01",
        f'Node "{M}" is gone. {MARKERS[DeletionStage.FINALIZER]}',
        0,
        0,
    ),
    ("machine-delete-15", "Deleting machine from cloud provider", 1, 1),
]
"""Rows, stored description, and the drains and VM deletions that follow."""


@pytest.mark.parametrize(("text", "drains", "deletions"), [case(*each) for each in FROM])
async def test_deletion_resumes_at_the_stage_in_its_description(
    world: Ready, text: str, drains: int, deletions: int
) -> None:
    goes(world, text)
    await world.run(1, "machine", "machineclass")

    assert world.get(M) == {}
    assert (len(world.drains.tasks), world.driver.calls["delete_machine"]) == (drains, deletions)
    # In the last stage only the finalizer is left to remove.
    assert (world.node_object(M) == {}) is (MARKERS[DeletionStage.FINALIZER] not in text)
    assert world.driver.calls["get_machine_status"] == 0


@pytest.mark.row("machine-delete-15")
async def test_deletion_annotation_outlives_an_overwritten_description(world: Ready) -> None:
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    path = goes(world)
    async with world.running():
        await advance(1)
        assert names.ANNOTATION_DELETION in world.get(M)["metadata"]["annotations"]
        over = {"lastOperation": {"description": "Deleting machine from cloud provider"}}
    world.server.patch(f"{path}/status", {"status": over})
    await world.run(10)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


async def test_deletion_annotation_of_another_uid_is_ignored(world: Ready) -> None:
    note = '{"uid":"another","stage":"finalizer"}'
    goes(world, metadata={"annotations": {names.ANNOTATION_DELETION: note}})
    await world.run(1)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


@pytest.mark.row("machine-delete-05")
@pytest.mark.parametrize("label", [M, ""], ids=["node-gone", "never-known"])
async def test_machine_without_node_is_deleted_without_a_drain(world: Ready, label: str) -> None:
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    world.driver.faults["get_machine_status"] = errors.NotFound("x")
    goes(world, labels={"node": label})
    world.server.unmake(f"{NODES_PATH}/{M}")
    await world.run(20)

    assert (left(world), world.drains.tasks) == (NONE, [])


@pytest.mark.row("machine-delete-09", "machine-delete-11")
@pytest.mark.parametrize(
    ("more", "old_s"),
    [({"labels": {"force-deletion": "True"}}, 0), ({"drainTimeout": "5m"}, 400)],
    ids=["label", "drain-timeout"],
)
async def test_forced_deletion_continues_after_a_failed_drain(
    world: Ready, more: dict[str, Any], old_s: float
) -> None:
    world.drains.fails = ["- Failed to update node"]
    goes(world, MARKERS[DeletionStage.DRAIN], **more)
    await advance(old_s)
    await world.run(1)

    (task,) = world.drains.tasks
    assert (task.force, task.max_evict_retries) == (True, 1)
    assert left(world) == NONE


@pytest.mark.row("machine-delete-10")
async def test_failed_drain_is_retried(world: Ready) -> None:
    world.drains.fails = ["failure in update of node conditions - x"]
    goes(world, MARKERS[DeletionStage.DRAIN])
    await advance(180)
    async with world.running():
        await advance(SHORT_S - 1)
        operation = world.operation(M)
        assert operation["description"] == said(
            DeletionStage.DRAIN,
            StageOutcome.DRAIN_FAILED,
            "failure in update of node conditions - x",
        )
        assert (operation["state"], len(world.drains.tasks)) == ("Failed", 1)
        await advance(2)

    assert (left(world), len(world.drains.tasks)) == (NONE, 2)


async def test_drain_timeout_turns_a_running_drain_into_a_forced_one(world: Ready) -> None:
    world.drains.seconds = 3600
    goes(world, drainTimeout="5m")
    await world.run(400)

    forces = [task.force for task in world.drains.tasks]
    assert (forces[0], forces[-1]) == (False, True)
    deadlines = {task.deadline for task in world.drains.tasks}
    assert len(deadlines) == 1


@pytest.mark.row("machine-delete-16", "machine-delete-17")
async def test_deletion_without_target_cluster_deletes_only_the_vm() -> None:
    world = Ready(has_target=False)
    world.driver.faults["delete_machine"] = [errors.Unavailable("x")]
    goes(world, MARKERS[DeletionStage.STATUS], labels={"node": ""})
    await world.run(20)

    assert left(world) == (False, False, True)
    assert world.drains.tasks == []
    assert world.driver.calls["get_machine_status"] == 0


# --- the VM ---------------------------------------------------------------------------------


async def test_missing_vm_costs_one_status_call_per_deletion_pass(world: Ready) -> None:
    """As after a restart during a deletion: the owner of the VM is not confirmed yet."""
    goes(world)
    world.driver.vms.clear()
    await world.run(1, "machine", "machineclass")

    assert left(world) == NONE
    assert world.driver.calls["get_machine_status"] == 1


@pytest.mark.parametrize(
    ("fault", "after_s"),
    [
        case(row, fault, after_s, id=type(fault).__name__)
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
async def test_failed_vm_deletion_is_retried_after_a_delay_by_error_code(
    world: Ready, fault: errors.CloudError, after_s: float
) -> None:
    world.driver.faults["delete_machine"] = [fault]
    goes(world)
    async with world.running():
        await advance(after_s - 1)
        operation = world.operation(M)
        assert MARKERS[DeletionStage.VM] in operation["description"]
        assert (operation["state"], operation["errorCode"]) == ("Failed", type(fault).__name__)
        assert (left(world), world.driver.calls["delete_machine"]) == (ALL, 1)
        await advance(after_s * 0.2 + 2)

    assert (left(world), len(world.drains.tasks)) == (NONE, 1)


@pytest.mark.row("machine-delete-vm-02")
async def test_changed_credentials_retry_a_denied_deletion_at_once(world: Ready) -> None:
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
async def test_vm_that_is_not_found_completes_the_deletion(world: Ready) -> None:
    goes(world)
    world.driver.vms.clear()
    world.driver.faults["delete_machine"] = errors.NotFound("x")
    await world.run(1)

    assert left(world) == NONE


@pytest.mark.row("machine-delete-vm-04")
async def test_accepted_vm_deletion_that_fails_is_retried(world: Ready) -> None:
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


async def test_removed_finalizer_stops_the_drain(world: Ready) -> None:
    """A user removes the finalizer: the machine is gone, and its drain ends."""
    world.drains.seconds = 3600
    path = goes(world)
    async with world.running("machine", "machineclass"):
        await advance(10)
        world.server.patch(path, {"metadata": {"finalizers": None}})
        await advance(5)

    assert (left(world), len(world.drains.stopped)) == ((False, True, True), 1)


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
"""Phase -> description that the Go implementation leaves before a deletion."""


@pytest.mark.row("machine-delete-taken-over-01")
@pytest.mark.parametrize("phase", TEXTS)
async def test_machine_of_the_go_implementation_is_deleted_from_any_phase(
    world: Ready, phase: str
) -> None:
    goes(world, TEXTS[phase], phase=phase)
    await world.run(5)

    assert left(world) == NONE
    changes = {"create_machine", "initialize_machine", "delete_machine"} & set(world.driver.calls)
    assert changes == {"delete_machine"}
    assert (world.driver.calls["delete_machine"], len(world.drains.tasks)) == (1, 1)


@pytest.mark.row("machine-delete-handed-back-01", "machine-delete-leader-01")
@pytest.mark.parametrize(
    "stage", [DeletionStage.DRAIN, DeletionStage.VOLUMES, DeletionStage.VM, DeletionStage.NODE]
)
async def test_interrupted_deletion_is_resumed_by_a_successor(
    world: Ready, stage: DeletionStage
) -> None:
    goes(world, phase="Running", labels={"force-deletion": "true"})
    if stage is DeletionStage.DRAIN:
        world.drains.seconds = 3600
    if stage is DeletionStage.VOLUMES:
        attached(world, "v0")
    if stage is DeletionStage.VM:
        world.driver.faults["delete_machine"] = errors.RetryAfter("x", seconds=7)
    if stage is DeletionStage.NODE:
        world.server.fails(
            Forbidden(status=403, reason="Forbidden", message="no"), "DELETE", NODES_PATH
        )
    await world.run(30)
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
    if stage is DeletionStage.VOLUMES:
        attached(world)
    await world.run(10)

    assert left(world) == NONE
    # A completed stage is not repeated.
    assert (len(world.drains.tasks) == drained) is (stage is not DeletionStage.DRAIN)
    assert (world.driver.calls["delete_machine"] == deleted) is (stage is DeletionStage.NODE)


async def test_deletion_clears_the_preservation_expiry(world: Ready) -> None:
    world.drains.seconds = 60
    path = goes(world, phase="Failed")
    until = format_time(clock.now() + timedelta(hours=1))
    world.server.patch(
        f"{path}/status", {"status": {"currentStatus": {"preserveExpiryTime": until}}}
    )
    await world.run(1)

    assert "preserveExpiryTime" not in world.status(M)["currentStatus"]


MANY, EACH, GRACE_S = 50, 2, 1


def draining() -> Drains:
    """Return a world with a class, terminating Pods and a disruption controller."""
    world = Drains()
    world.drains_really = True
    world.ready_class()
    return world


@pytest.mark.parametrize(
    ("kind", "status", "minutes", "forced"),
    [
        case(f"machine-delete-{row}", *values)
        for row, *values in (
            ("06", "Ready", "Unknown", 6, True),
            ("06", "Ready", "False", 6, True),
            ("07", "ReadonlyFilesystem", "True", 6, True),
            ("08", "ReadonlyFilesystem", "True", 2, False),
            ("08", "ReadonlyFilesystem", "False", 6, False),
        )
    ],
)
async def test_deletion_forces_the_drain_if_unhealthy_for_five_minutes(
    kind: str, status: str, minutes: float, forced: bool
) -> None:
    world = draining()
    world.driver.faults["delete_machine"] = errors.RetryAfter("x", seconds=7)
    goes(world, MARKERS[DeletionStage.DRAIN])
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
    assert MARKERS[DeletionStage.VM] in world.operation(M)["description"]


@pytest.mark.row("machine-delete-node-04")
async def test_deletion_forces_a_drain_once_its_node_stays_unhealthy() -> None:
    world = draining()
    goes(world)
    world.pod("p", node=M)
    # The Pod is never healthy, so that the budget does not count as misconfigured.
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


async def test_deletion_of_fifty_machines_needs_few_writes_and_calls() -> None:
    """At most 6 API writes and 2 cloud calls per machine, and 5 s beyond the Pods' grace period."""
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
