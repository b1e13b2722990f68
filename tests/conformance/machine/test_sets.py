"""MachineSets per row of the conformance table; with an in-memory API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ccm.gardener import names
from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.unit.controllers.machine.test_controller import Steady, jump_of_the_wall
from tests.unit.controllers.machines import BASE, SECRETS_PATH
from tests.unit.controllers.machinesets import (
    DEPLOYMENTS,
    MACHINES,
    SELECTOR,
    SETS,
    TEMPLATE,
    Sets,
    moment,
    owned,
    owned_by_deployment,
)

pytestmark = pytest.mark.virtual_time

WEB = f"{SETS}/web"
CLASS = TEMPLATE["spec"]["class"]
REFUSED = Forbidden(status=403, reason="Forbidden", message="not this one")


async def test_settled_set_causes_no_request(world: Sets) -> None:
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        world.all_become("Running")
        await advance(5)
        before = world.server.requests.total()
        await advance(1300)

    assert world.server.requests.total() == before


@pytest.mark.row("machineset-replicas-01")
async def test_missing_machine_is_created_from_the_template(world: Sets) -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"name": "web", "a": "1"}, "annotations": {"b": "2"}},
        "spec": {"class": CLASS, "drainTimeout": "5m"},
    }
    owner = world.set(replicas=3, template=template)
    for name in ("m0", "m1"):
        world.member(name, owner=owner, labels={"a": "1"})
    async with world.running("machineset"):
        await advance(5)
        made = [one for one in world.machines() if one["metadata"]["name"] not in ("m0", "m1")]

    assert len(made) == 1
    metadata = made[0]["metadata"]
    assert metadata["name"].startswith("web-")
    assert metadata["generateName"] == "web-"
    assert metadata["labels"] == template["metadata"]["labels"]
    assert metadata["annotations"] == template["metadata"]["annotations"]
    assert metadata["ownerReferences"] == [owned("MachineSet", "web", owner)]
    assert made[0]["spec"] == template["spec"]


@pytest.mark.row("machineset-replicas-02")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"selector": None}, "spec.selector selects everything"),
        ({"selector": {"matchLabels": {"name": "api"}}}, "spec.selector requires name"),
        ({"template": {"metadata": TEMPLATE["metadata"]}}, "spec.template.spec.class.kind is ''"),
        ({"replicas": -1}, "spec.replicas is -1"),
    ],
    ids=["no-selector", "other-labels", "no-class", "negative"],
)
async def test_invalid_set_creates_nothing_and_reports_invalid_spec(
    world: Sets, spec: dict[str, Any], said: str
) -> None:
    world.set(**{"replicas": 2, **spec})
    world.member("orphan")
    async with world.running("machineset"):
        await advance(700)

        assert world.here() == ["orphan"]
        assert world.owners("orphan") == []
        condition = world.conditions()["ReplicaFailure"]
        assert (condition["status"], condition["reason"]) == ("True", "InvalidSpec")
        assert condition["message"].startswith(said)
        assert world.events == [("InvalidSpec", condition["message"])]
        assert world.server.writes("machinesets") == 1

        world.change(WEB, spec={"replicas": 1, "selector": SELECTOR, "template": TEMPLATE})
        await advance(5)

    assert world.owners("orphan") != []
    assert world.conditions() == {}


@pytest.mark.row("machineset-replicas-03")
async def test_large_set_is_created_in_bursts(world: Sets) -> None:
    world.set(replicas=150)
    sizes = list[int]()
    async with world.running("machineset"):
        await advance(60)
        sizes = [text.count(",") + 1 for reason, text in world.events]

        assert len(world.here()) == 150
    more = [text for _, text in world.events]
    assert sizes == [5, 5]
    assert [text.rpartition(" and ")[2] for text in more] == ["95 more", "45 more"]
    assert world.server.writes("machines") == 150


@pytest.mark.row("machineset-replicas-07", "machineset-scaler-01")
async def test_machines_marked_by_the_autoscaler_are_deleted(world: Sets) -> None:
    told = {names.ANNOTATION_SCALER_TIME: moment(0)}
    owner = world.set(replicas=2, metadata={"annotations": told})
    for number in range(2):
        marks = {names.ANNOTATION_PRIORITY: "1", names.ANNOTATION_MARKED: moment(-1)}
        world.member(f"m{number}", owner=owner, annotations=marks)
    async with world.running("machineset"):
        await advance(5)

        replaced = world.here()
        assert len(replaced) == 2
        assert not {"m0", "m1"} & set(replaced)

        victim = replaced[1]
        world.all_become("Running")
        world.change(
            f"{MACHINES}/{victim}", metadata={"annotations": {names.ANNOTATION_PRIORITY: "1"}}
        )
        world.change(WEB, spec={"replicas": 1})
        await advance(5)

    assert world.here() == replaced[:1]


@pytest.mark.row("machineset-replicas-12", "machineset-freeze-12")
@pytest.mark.parametrize("label", [names.LABEL_FREEZE, names.LABEL_SCALE_UP_DISABLED])
async def test_frozen_or_scale_up_disabled_set_creates_no_machine(world: Sets, label: str) -> None:
    value = names.FROZEN if label == names.LABEL_FREEZE else "true"
    owner = world.set(replicas=2, metadata={"labels": {label: value}})
    world.member("m0", owner=owner, phase="Failed")
    async with world.running("machineset"):
        await advance(5)
        assert world.machines() == []

        world.change(WEB, metadata={"labels": {label: None}})
        await advance(5)

    assert len(world.here()) == 2


@pytest.mark.row("machineset-replicas-13")
async def test_scale_subresource_scales_the_set(world: Sets) -> None:
    world.set(replicas=1)
    async with world.running("machineset"):
        await advance(5)
        world.server.patch(f"{WEB}/scale", {"spec": {"replicas": 3}})
        await advance(5)

    assert len(world.here()) == 3
    scale = world.server.get(f"{WEB}/scale") or {}
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)


@pytest.mark.row("machineset-create-04")
async def test_creation_timeout_annotation_is_copied_to_the_spec(world: Sets) -> None:
    metadata = {"labels": {"name": "web"}, "annotations": {names.ANNOTATION_CREATION_TIMEOUT: "7m"}}
    world.set(replicas=1, template={"metadata": metadata, "spec": TEMPLATE["spec"]})
    async with world.running("machineset"):
        await advance(5)
        writes = world.server.writes("machines")
        await advance(700)

    made = world.machines()[0]
    assert made["metadata"]["annotations"] == {names.ANNOTATION_CREATION_TIMEOUT: "7m"}
    assert made["spec"]["creationTimeout"] == "7m"
    assert world.server.writes("machines") == writes == 1


@pytest.mark.row("machineset-create-05")
async def test_repeated_machine_failures_slow_creation_down(world: Sets) -> None:
    world.set(replicas=1)
    times = list[float]()

    async def minute_by_minute(minutes: float) -> None:
        for second in range(round(minutes * 60)):
            await advance(1)
            for name in world.here():
                times.append(second)
                world.becomes(name, "Failed", state="Failed", description=f"{name} did not join")

    async with world.running("machineset"):
        await minute_by_minute(8.5)
        assert [round(one / 60) for one in times] == [0, 0, 0, 1, 3, 7]
        condition = world.conditions()["CreationSlowed"]
        assert (condition["status"], condition["reason"]) == ("True", "RepeatedFailures")
        assert condition["message"].startswith(
            "6 machines in a row could not be created or did not join"
        )
        assert condition["message"].endswith("did not join")

        await advance(460)
        assert len(world.here()) == 1
        world.all_become("Running")
        await advance(5)
        assert "CreationSlowed" not in world.conditions()

        world.change(WEB, spec={"replicas": 5})
        await advance(5)
        assert len(world.here()) == 5


@pytest.mark.row("machineset-create-05")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_clock_jump_does_not_change_the_creation_pause(world: Sets, hours: int) -> None:
    world.server.clock = Steady()  # type: ignore[assignment]
    world.set(replicas=1)
    async with world.running("machineset"):
        for _ in range(3):
            await advance(1)
            world.all_become("Failed")
        await advance(10)
        jump_of_the_wall(hours * 3600)
        world.change(WEB, metadata={"labels": {"poke": "1"}})
        await advance(30)
        assert world.here() == []
        await advance(30)
        assert len(world.here()) == 1


@pytest.mark.row("machineset-create-05")
async def test_rejected_creations_slow_creation_down(world: Sets) -> None:
    world.set(replicas=3)
    world.server.fails(REFUSED, "POST")
    async with world.running("machineset"):
        await advance(50)
        assert world.server.requests["POST", MACHINES] == 3
        assert world.conditions()["ReplicaFailure"]["reason"] == "FailedCreate"
        assert "not this one" in world.conditions()["CreationSlowed"]["message"]
        assert ("FailedCreate", "not this one (403 Forbidden)") in world.events

        world.change(WEB, spec={"template": {"spec": {"drainTimeout": "9m"}}})
        await advance(1)
        assert world.server.requests["POST", MACHINES] > 3

        world.server.answers()
        await advance(200)
        world.all_become("Running")
        await advance(60)

    assert len(world.here()) == 3
    assert world.conditions() == {}


class Slowed(Sets):
    """Set whose machines fail with an error code until creation is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.ready_class()
        self.secret("other")
        self.machine_class("other", secretRef={"name": "other", "namespace": "default"})
        self.uid = self.set(replicas=3, metadata=owned_by_deployment(self.deployment(replicas=3)))

    async def slows(self, code: str = "") -> None:
        """Fail three machines, and assert that creation pauses."""
        await advance(5)
        for name in self.here():
            self.becomes(name, "Failed", state="Failed", description="no cores", errorCode=code)
        await advance(5)
        assert (self.here(), "CreationSlowed" in self.conditions()) == ([], True)

    def refused(self, name: str, text: str = "no cores", of: str = "small") -> None:
        """Reject the creation of a machine without a set."""
        self.machine(name, **{"class": {"kind": "MachineClass", "name": of}})
        self.becomes(
            name,
            "CrashLoopBackOff",
            state="Failed",
            description=text,
            errorCode="ResourceExhausted",
        )

    def created(self, name: str) -> None:
        """Let the creation of the machine succeed."""
        self.becomes(name, "Pending", state="Processing", errorCode=None)


UNFREEZE = {"annotations": {names.ANNOTATION_UNFREEZE: "true"}}
CLASSES = f"{BASE}/machineclasses"


@pytest.mark.row("machineset-create-07")
@pytest.mark.parametrize(
    "mend",
    [
        lambda world: world.change(f"{CLASSES}/small", providerSpec={"size": "tiny"}),
        lambda world: world.change(f"{SECRETS_PATH}/small", data={"token": "bmV3"}),
        lambda world: world.change(WEB, metadata=UNFREEZE),
        lambda world: world.change(f"{DEPLOYMENTS}/web", metadata=UNFREEZE),
    ],
    ids=["class", "secret", "set", "deployment"],
)
async def test_creation_pause_ends_when_its_cause_is_corrected(
    world: Slowed, mend: Callable[[Sets], None]
) -> None:
    async with world.running("machineset", "machineovershoot"):
        await world.slows()
        mend(world)
        await advance(3)

        assert len(world.here()) == 3
        assert world.conditions() == {}
        # Former failures do not count any more.
        for name in world.here()[:2]:
            world.becomes(name, "Failed", state="Failed")
        await advance(5)
        assert len(world.here()) == 3


@pytest.mark.row("machineset-create-07")
@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.change(f"{CLASSES}/other", providerSpec={"size": "tiny"}),
        lambda world: world.change(f"{SECRETS_PATH}/other", data={"token": "bmV3"}),
        lambda world: world.change(f"{CLASSES}/small", metadata={"labels": {"a": "b"}}),
        lambda world: world.change(f"{SECRETS_PATH}/small", metadata={"labels": {"a": "b"}}),
        lambda world: world.change(WEB, metadata={"labels": {"a": "b"}}),
        lambda world: world.change(f"{DEPLOYMENTS}/web", metadata={"labels": {"a": "b"}}),
    ],
    ids=["other class", "other secret", "class", "secret", "set", "deployment"],
)
async def test_creation_pause_ignores_unrelated_changes(
    world: Slowed, change: Callable[[Sets], None]
) -> None:
    async with world.running("machineset"):
        await world.slows()
        change(world)
        await advance(30)

    assert (world.here(), "CreationSlowed" in world.conditions()) == ([], True)


@pytest.mark.row("machineset-create-08")
@pytest.mark.parametrize(
    ("code", "of", "step", "wanted"),
    [
        ("ResourceExhausted", "small", lambda world: world.created("m"), 3),
        ("ResourceExhausted", "small", lambda world: world.refused("n", "no such zone"), 3),
        ("ResourceExhausted", "small", lambda world: world.refused("n"), 0),
        ("ResourceExhausted", "other", lambda world: world.created("m"), 0),
        ("", "small", lambda world: world.created("m"), 0),
    ],
    ids=["created", "other text", "same text", "other class", "did not join"],
)
async def test_creation_pause_ends_when_the_cloud_answers_differently(
    world: Slowed, code: str, of: str, step: Callable[[Slowed], None], wanted: int
) -> None:
    async with world.running("machineset"):
        await world.slows(code)
        world.refused("m", of=of)
        await advance(1)
        step(world)
        await advance(3)
        made = [name for name in world.here() if name.startswith("web-")]

    assert len(made) == wanted


@pytest.mark.row("machineset-create-05")
async def test_creation_pause_survives_a_restart(world: Sets) -> None:
    slow = {"type": "CreationSlowed", "status": "True", "lastTransitionTime": moment(-600)}
    world.set(replicas=3)
    world.change(f"{WEB}/status", status={"machineSetCondition": [slow]})
    async with world.running("machineset"):
        await advance(50)
        assert world.here() == []
        await advance(20)
        assert len(world.here()) == 1


@pytest.mark.row("machineset-delete-04")
async def test_rejected_deletion_is_reported_and_retried(world: Sets) -> None:
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
async def test_set_deletes_machines_without_writing_their_phase(world: Sets) -> None:
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
async def test_preserve_annotations_of_node_and_machine_prevent_deletion(
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
async def test_machine_is_replaced_when_its_preservation_expires(world: Sets) -> None:
    owner = world.set(replicas=1)
    world.member("m0", owner=owner, phase="Failed", status={"preserveExpiryTime": moment(300)})
    async with world.running("machineset"):
        await advance(295)
        assert world.here() == ["m0"]
        await advance(10)

    assert len(world.here()) == 1
    assert world.here() != ["m0"]


@pytest.mark.row("machineset-delete-07")
async def test_preserve_annotation_change_on_the_node_applies_at_once(world: Sets) -> None:
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
async def test_deleted_set_waits_for_its_machines(world: Sets, is_valid: bool) -> None:
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
async def test_orphans_are_adopted_and_machines_that_do_not_match_released(world: Sets) -> None:
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
async def test_template_changes_are_pushed_to_existing_machines(world: Sets) -> None:
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
    # Three existing machines, and one replacement of the deleting machine.
    assert world.server.writes("machines") == writes == 4


@pytest.mark.row("machineset-preserve-01", "machineset-preserve-06")
async def test_auto_preserved_machine_is_not_replaced(world: Sets) -> None:
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
async def test_set_status_summarises_its_machines(world: Sets) -> None:
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
async def test_burst_costs_one_write_per_machine_and_few_status_writes(world: Sets) -> None:
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
