"""What becomes of the machines of a set, and what is said of them, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import MACHINES, SETS, TEMPLATE, Sets, moment

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"
CLASS = TEMPLATE["spec"]["class"]
REFUSED = Forbidden(status=403, reason="Forbidden", message="not this one")


@pytest.mark.row("machineset-delete-04")
async def test_a_deletion_that_is_refused(world: Sets) -> None:
    owner = world.set(replicas=0)
    world.member("m0", owner=owner)
    world.server.fails(REFUSED, "DELETE")
    async with world.running("machineset"):
        await advance(5)

        assert world.phase("m0") == "Running"
        assert world.conditions()["ReplicaFailure"]["reason"] == "FailedDelete"
        assert ("FailedDelete", "not this one (403 Forbidden)") in world.events

        world.server.answers()
        await advance(120)

    assert world.machines() == []
    assert world.conditions() == {}


@pytest.mark.row("machineset-delete-05")
async def test_the_phase_belongs_to_the_machines_own_controller(world: Sets) -> None:
    owner = world.set(replicas=0)
    world.member("m0", owner=owner, finalizers=[names.FINALIZER])
    await world.run(5, "machineset")

    assert "deletionTimestamp" in world.get("m0")["metadata"]
    assert world.phase("m0") == "Running"
    assert world.server.writes("machines") == 1


@pytest.mark.row("machineset-delete-07")
@pytest.mark.parametrize(
    ("node", "machine", "last", "goes"),
    [
        (None, "now", None, False),
        (None, "false", None, True),
        ("when-failed", "false", "when-failed", False),
        ("false", "now", None, True),
        ("", "when-failed", "now", True),
        ("nonsense", "now", None, True),
        (None, "nonsense", None, True),
    ],
)
async def test_node_and_machine_say_what_is_kept(
    world: Sets, node: str | None, machine: str, last: str | None, goes: bool
) -> None:
    owner = world.set(replicas=1)
    said = {names.ANNOTATION_PRESERVE: machine, names.ANNOTATION_PRESERVED: last}
    world.member(
        "m0",
        owner=owner,
        phase="Failed",
        labels={names.LABEL_NODE: "n0"},
        annotations={key: value for key, value in said.items() if value is not None},
    )
    world.node("n0", metadata={"annotations": {names.ANNOTATION_PRESERVE: node} if node else {}})
    await world.run(5, "machineset")

    assert ("m0" not in world.here()) is goes


@pytest.mark.row("machineset-delete-07")
async def test_the_time_of_a_preserved_machine_ends(world: Sets) -> None:
    owner = world.set(replicas=1)
    world.member("m0", owner=owner, phase="Failed", status={"preserveExpiryTime": moment(300)})
    async with world.running("machineset"):
        await advance(295)
        assert world.here() == ["m0"]
        await advance(10)

    assert len(world.here()) == 1
    assert world.here() != ["m0"]


@pytest.mark.row("machineset-delete-07")
async def test_a_word_on_the_node_counts_at_once(world: Sets) -> None:
    owner = world.set(replicas=1)
    keep = {names.ANNOTATION_PRESERVE: "when-failed"}
    world.member("m0", owner=owner, phase="Failed", labels={names.LABEL_NODE: "n0"})
    world.node("n0", metadata={"annotations": keep})
    async with world.running("machineset"):
        await advance(5)
        assert world.here() == ["m0"]
        world.change(
            "/api/v1/nodes/n0", metadata={"annotations": {names.ANNOTATION_PRESERVE: "no"}}
        )
        await advance(5)

    assert "m0" not in world.here()


@pytest.mark.row("machineset-delete-08")
@pytest.mark.parametrize("is_valid", [True, False])
async def test_a_set_that_is_deleted(world: Sets, is_valid: bool) -> None:
    owner = world.set(replicas=2, metadata={"finalizers": [names.FINALIZER]})
    world.member("m0", owner=owner, finalizers=["example.com/hold"])
    world.member("m1", owner=owner)
    if not is_valid:
        world.change(WEB, spec={"selector": None})
    world.server.drop(WEB)
    async with world.running("machineset"):
        await advance(5)
        assert world.here() == []
        assert world.set_object() != {}

        world.change(f"{MACHINES}/m0", metadata={"finalizers": None})
        await advance(5)

    assert world.set_object() == {}
    assert world.machines() == []


@pytest.mark.row("machineset-own-01", "machineset-own-02")
async def test_orphans_are_adopted_and_those_that_left_are_released(world: Sets) -> None:
    owner = world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        made = world.here()[0]
        world.change(f"{MACHINES}/{made}", metadata={"labels": {"name": "api"}})
        await advance(5)
        assert world.owners(made) == []
        assert len(world.here()) == 2

        world.change(WEB, spec={"replicas": 2})
        world.member("orphan")
        await advance(5)

    assert world.owners("orphan") == [owner]
    assert world.owners(made) == []
    assert world.server.reads("machinesets") >= 1


@pytest.mark.row("machineset-push-01", "machineset-push-02")
async def test_what_of_the_template_reaches_the_machines(world: Sets) -> None:
    template: dict[str, Any] = {
        "metadata": TEMPLATE["metadata"],
        "spec": {
            "class": CLASS,
            "nodeTemplate": {
                "metadata": {"labels": {"zone": "a"}, "creationTimestamp": None},
                "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
            },
            "drainTimeout": "9m",
            "maxEvictRetries": 3,
        },
    }
    owner = world.set(replicas=3, template=template)
    old: dict[str, Any] = {"class": {"kind": "Old", "name": "small"}, "healthTimeout": "1m"}
    world.member(
        "m0",
        owner=owner,
        nodeTemplate={"metadata": {"labels": {"gone": "x"}, "annotations": {"gone": "y"}}},
        **old,
    )
    world.member("m1", owner=owner, phase="Failed", annotations={"a": "b"}, **old)
    world.change(f"{MACHINES}/m1", metadata={"annotations": {names.ANNOTATION_PRESERVE: "now"}})
    world.member("m2", owner=owner, finalizers=["example.com/hold"], **old)
    world.server.drop(f"{MACHINES}/m2")
    async with world.running("machineset"):
        await advance(5)
        writes = world.server.writes("machines")
        await advance(700)

    wanted = template["spec"]
    assert world.get("m0")["spec"] == {
        "class": CLASS,
        "drainTimeout": "9m",
        "maxEvictRetries": 3,
        "nodeTemplate": {
            "metadata": {"labels": {"zone": "a"}},
            "spec": wanted["nodeTemplate"]["spec"],
        },
    }
    for name in ("m1", "m2"):
        assert world.get(name)["spec"] == {"class": CLASS, "healthTimeout": "1m"}
    # Three that were there, and one in the place of the one that goes.
    assert world.server.writes("machines") == writes == 4


@pytest.mark.row("machineset-preserve-01", "machineset-preserve-06")
async def test_what_the_set_preserves_is_not_replaced(world: Sets) -> None:
    owner = world.set(replicas=2, autoPreserveFailedMachineMax=1)
    world.member("m0", owner=owner, phase="Failed")
    await advance(10)
    world.member("m1", owner=owner, phase="Failed")
    async with world.running("machineset"):
        await advance(5)
        assert "m1" in world.here()
        assert "m0" not in world.here()
        assert len(world.here()) == 2
        kept = world.get("m1")["metadata"]["annotations"]
        assert kept == {names.ANNOTATION_PRESERVE: "auto-preserved"}
        assert world.set_status()["autoPreserveFailedMachineCount"] == 1

        world.change(WEB, spec={"autoPreserveFailedMachineMax": 0})
        await advance(5)

    assert "m1" not in world.here()
    assert len(world.here()) == 2


@pytest.mark.row("machineset-status-01", "machineset-status-02")
async def test_the_status(world: Sets) -> None:
    owner = world.set(replicas=3, minReadySeconds=60)
    failed = {"state": "Failed", "description": "no quota"}
    world.member("m0", owner=owner)
    world.member("m1", owner=owner, phase="CrashLoopBackOff", last=failed, providerID="fake:///1")
    world.member(
        "m2", owner=owner, phase="Failed", last=failed, status={"preserveExpiryTime": moment(900)}
    )
    async with world.running("machineset"):
        await advance(50)
        status = world.set_status()
        await advance(15)
        assert world.set_status() == status | {"availableReplicas": 1}

    summary = status.pop("failedMachines")
    assert status == {
        "replicas": 3,
        "fullyLabeledReplicas": 3,
        "readyReplicas": 1,
        "availableReplicas": 0,
        "preservedFailedReplicas": 1,
        "observedGeneration": 1,
        "autoPreserveFailedMachineCount": 0,
    }
    assert summary == [
        {
            "name": "m1",
            "providerID": "fake:///1",
            "ownerRef": "web",
            "lastOperation": {"type": "Create", **failed},
        }
    ]


@pytest.mark.row("machineset-status-03")
async def test_a_burst_costs_a_write_a_machine_and_few_more(world: Sets) -> None:
    world.set(replicas=50)
    async with world.running("machineset"):
        await advance(5)
        assert world.server.writes("machines") == 50
        assert world.server.writes("machinesets") == 2  # the finalizer, and the status
        for name in world.here():
            world.becomes(name, "Running", state="Successful")
            await advance(0.01)
        await advance(5)
        assert world.set_status()["readyReplicas"] == 50
        assert world.server.writes("machinesets") <= 5

        world.change(WEB, spec={"replicas": 10})
        await advance(5)
        assert world.server.writes("machines") == 50 + 40
        assert world.server.writes("machinesets") <= 6

    assert world.server.reads("machines") == world.server.reads("machinesets") == 0
