"""MachineDeployments per row of the conformance table; with an in-memory API server."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ccm.gardener import decoding, names
from ccm.gardener.types import (
    ClassSpec,
    MachineDeployment,
    MachineDeploymentSpec,
    MachineSpec,
    MachineTemplateSpec,
    RollingUpdate,
    Strategy,
)
from ccm.machines import replicas
from ccm.model import ObjectMeta
from ccm.model.names import ANNOTATION_MAX_REPLICAS as MAX_REPLICAS
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    HOLD,
    MACHINES,
    REVISION,
    SETS,
    WEB,
    Rolling,
    all_run,
    owned_by_deployment,
    rolling,
    template,
)
from tests.unit.controllers.machines import DEFINITIONS
from tests.unit.controllers.machinesets import DEPLOYMENTS, SELECTOR
from tests.unit.machines.members import wanted

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")
TRIGGER = names.ANNOTATION_TRIGGER_DELETION
SCALER_TIME = names.ANNOTATION_SCALER_TIME


@pytest.mark.row("rollout-pass-01", "rollout-set-02")
async def test_deployment_creates_a_machine_set_with_template_hash(world: Rolling) -> None:
    uid = world.deployment(replicas=2)
    async with world.running(*ONLY):
        await all_run(world)

    (made,) = world.sets()
    name, digest = made["metadata"]["name"], made["metadata"]["labels"][names.LABEL_TEMPLATE_HASH]
    assert (name[:4], len(name), digest.isdecimal()) == ("web-", 9, True)
    assert made["spec"]["selector"]["matchLabels"] == {
        "name": "web",
        "machine-template-hash": digest,
    }
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels == {"name": "web", "machine-template-hash": digest}
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [uid]
    assert made["metadata"]["annotations"][REVISION] == "1"
    assert world.web()["metadata"]["annotations"][REVISION] == "1"
    assert world.web()["metadata"]["finalizers"] == [names.FINALIZER]
    status = world.status()
    assert [status[key] for key in ("replicas", "updatedReplicas", "availableReplicas")] == [2] * 3
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert world.said("Available") == ("True", "MinimumReplicasAvailable")


@pytest.mark.row("rollout-pass-02")
async def test_empty_selector_is_rejected(world: Rolling) -> None:
    world.deployment(replicas=2, selector={})
    await world.run(2, *ONLY)

    assert (world.sets(), world.said()) == ([], ("False", "InvalidDeployment"))
    assert world.reasons() == ["SelectingAll"]


@pytest.mark.row("rollout-pass-03")
async def test_deployment_deletion_deletes_sets_and_machines(world: Rolling) -> None:
    async with world.at_rest(replicas=2):
        world.server.drop(WEB)
        await advance(5)

    assert (world.web(), world.sets(), world.machines()) == ({}, [], [])


@pytest.mark.row("rollout-pass-04")
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (rolling("many"), "spec.strategy.rollingUpdate.maxSurge is 'many'"),
        ({"type": "InPlaceUpdate"}, "spec.strategy.inPlaceUpdate is missing"),
        ({"inPlaceUpdate": {"maxSurge": 1, "maxUnavailable": 1}}, "spec.strategy.type is ''"),
    ],
)
async def test_invalid_strategy_is_rejected(
    world: Rolling, strategy: dict[str, Any], said: str
) -> None:
    world.deployment(replicas=2, strategy=strategy)
    await world.run(2, *ONLY)

    (condition,) = world.status()["conditions"]
    assert (world.sets(), condition["status"]) == ([], "False")
    assert said in condition["message"]
    assert world.events == [("InvalidDeployment", condition["message"])]


class AnyStrategy(Rolling):
    """The CRD has no enum of strategy types, like that of Gardener."""

    def define(self) -> None:
        super().define()
        path = f"{DEFINITIONS}/machinedeployments.{names.GROUP}"
        strategy = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/strategy"
        change = [{"op": "remove", "path": f"{strategy}/properties/type/enum"}]
        self.server.patch(path, change, "application/json-patch+json")  # type: ignore[arg-type]


@pytest.mark.row("rollout-pass-04")
async def test_unknown_strategy_type_is_rejected(world: AnyStrategy) -> None:
    world.deployment(replicas=2, strategy={"type": "Magic"})
    await world.run(2, *ONLY)

    (condition,) = world.status()["conditions"]
    assert (world.sets(), condition["status"]) == ([], "False")
    assert "spec.strategy.type is 'Magic'" in condition["message"]


@pytest.mark.row("rollout-pass-13")
@pytest.mark.parametrize(
    ("strategy", "surge", "unavailable"),
    [
        (Strategy(), 1, 1),
        (Strategy(type="RollingUpdate"), 1, 1),
        (Strategy(rolling_update=RollingUpdate(max_surge=2)), 2, 1),
        (Strategy(rolling_update=RollingUpdate(max_surge=0)), 0, 1),
        (Strategy(rolling_update=RollingUpdate(max_unavailable=0)), 1, 0),
        (Strategy(type="Recreate"), 0, 0),
    ],
    ids=["none", "no bounds", "no type", "no unavailable", "no surge", "recreate"],
)
def test_omitted_strategy_fields_get_their_defaults(
    strategy: Strategy, surge: int, unavailable: int
) -> None:
    made_of = MachineTemplateSpec(spec=MachineSpec(class_=ClassSpec(kind="MachineClass", name="c")))
    spec = MachineDeploymentSpec(replicas=3, template=made_of, strategy=strategy)
    found = MachineDeployment(metadata=ObjectMeta(name="d"), spec=spec)
    view = decoding.machine_deployment(found)

    assert not [one for one in view.faults if "strategy" in one]
    assert (replicas.surge(view), replicas.unavailable(view)) == (surge, unavailable)


@pytest.mark.row("rollout-pass-13")
async def test_deployment_without_strategy_rolls_with_the_defaults(world: Rolling) -> None:
    spec = {"replicas": 3, "selector": SELECTOR, "template": template()}
    world.server.put(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    async with world.running(*ONLY):
        await all_run(world)
        (made,) = world.sets()
        world.edit(template=template("large"))
        for _ in range(5):
            await all_run(world)

    assert made["metadata"]["annotations"][MAX_REPLICAS] == "4"
    assert world.kinds() == {"large": 3}
    assert "strategy" not in world.web()["spec"]


@pytest.mark.row("rollout-pass-05")
async def test_recreate_strategy_waits_until_all_old_machines_are_gone(world: Rolling) -> None:
    async with world.at_rest(replicas=2, strategy={"type": "Recreate"}):
        assert world.kinds() == {"small": 2}
        for name in world.here():
            world.change(f"{MACHINES}/{name}", metadata={"finalizers": ["example.com/slow"]})
        world.edit(template=template("large"))
        await advance(5)
        assert (world.here(), world.kinds(), world.sizes()) == ([], {"small": 2}, {})
        for one in world.machines():
            path = f"{MACHINES}/{one['metadata']['name']}"
            world.change(path, metadata={"finalizers": None})
        await advance(5)

    assert (world.kinds(), world.sizes()) == ({"large": 2}, {"large": 2})


@pytest.mark.row("rollout-pass-06", "rollout-set-05")
async def test_rollback_restores_the_previous_template(world: Rolling) -> None:
    async with world.at_rest(replicas=1, template=template(extra="one")):
        world.edit(template=template("large") | {"metadata": {"labels": {"extra": None}}})
        await advance(5)
        world.edit(rollbackTo={"revision": 0})
        await advance(5)

    spec = world.web()["spec"]
    assert "rollbackTo" not in spec
    assert spec["template"] == template(extra="one")
    assert ("DeploymentRollback", 'Rolled back deployment "web" to revision 1') in world.events
    notes = [one["metadata"]["annotations"] for one in world.sets()]
    known = {(one[REVISION], one.get(f"{REVISION}-history")) for one in notes}
    assert known == {("3", "1"), ("2", None)}
    assert world.web()["metadata"]["annotations"][REVISION] == "3"


@pytest.mark.row("rollout-pass-07")
@pytest.mark.parametrize(
    ("revision", "reason"),
    [
        (0, "DeploymentRollbackRevisionNotFound"),
        (7, "DeploymentRollbackRevisionNotFound"),
        (1, "DeploymentRollbackTemplateUnchanged"),
    ],
)
async def test_impossible_rollback_emits_an_event_and_is_cleared(
    world: Rolling, revision: int, reason: str
) -> None:
    async with world.at_rest(replicas=1):
        world.edit(rollbackTo={"revision": revision})
        await advance(5)

    assert "rollbackTo" not in world.web()["spec"]
    assert reason in [each for each, _ in world.events]
    assert len(world.sets()) == 1


@pytest.mark.row("rollout-pass-08")
async def test_paused_deployment_scales_but_does_not_roll(world: Rolling) -> None:
    async with world.at_rest(replicas=2):
        world.edit(paused=True, template=template("large"), replicas=3)
        await advance(5)
        assert (world.sizes(), world.said()) == ({"small": 3}, ("Unknown", "DeploymentPaused"))
        world.edit(paused=False)
        await advance(5)

    assert (world.sizes(), world.said()[0]) == ({"small": 3, "large": 1}, "True")


@pytest.mark.row("rollout-pass-12")
async def test_ready_replicas_count_running_machines_only(world: Rolling) -> None:
    world.deployment(replicas=3)
    async with world.running(*ONLY):
        await advance(2)
        runs, works, _ = world.here()
        world.becomes(runs, "Running", state="Successful")
        world.becomes(works, "Available", state="Successful")
        await advance(3)

    (only,) = world.sets()
    for status in (world.status(), only["status"]):
        assert (status["readyReplicas"], status["availableReplicas"]) == (1, 2)


@pytest.mark.row("rollout-pass-09")
async def test_progress_deadline_is_reported_until_machines_run(world: Rolling) -> None:
    world.deployment(replicas=2, progressDeadlineSeconds=60)
    async with world.running(*ONLY):
        await advance(50)
        assert world.said() == ("True", "MachineSetUpdated")
        await advance(20)
        assert world.said() == ("False", "ProgressDeadlineExceeded")
        await all_run(world)

    assert world.said() == ("True", "NewMachineSetAvailable")


# --- sets ---------------------------------------------------------------------------------


@pytest.mark.row("rollout-set-01")
async def test_non_rolling_template_fields_are_copied_to_the_set(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        more = {
            "drainTimeout": "5m",
            "nodeConditions": "KernelDeadlock",
            "nodeTemplate": {"metadata": {"labels": {"a": "b"}}},
        }
        world.edit(template={"spec": more}, minReadySeconds=7)
        await advance(5)
        (only,) = world.sets()
        assert more.items() <= only["spec"]["template"]["spec"].items()
        assert only["spec"]["minReadySeconds"] == 7
        world.edit(template={"spec": {"drainTimeout": None}})
        await advance(5)

    (only,) = world.sets()
    assert "drainTimeout" not in only["spec"]["template"]["spec"]
    assert only["metadata"]["annotations"][REVISION] == "1"


@pytest.mark.row("rollout-set-03")
async def test_set_name_collision_increments_the_collision_count(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        (first,) = world.sets()
    name = first["metadata"]["name"]
    other = Rolling()
    other.set(name, selector={"matchLabels": {"name": "other"}}, template={
        "metadata": {"labels": {"name": "other"}},
        "spec": {"class": {"kind": "MachineClass", "name": "small"}},
    })  # fmt: skip
    other.deployment(replicas=1)
    async with other.running(*ONLY):
        await all_run(other)

    assert other.status()["collisionCount"] == 1
    assert len(other.sets()) == 2
    assert other.said() == ("True", "NewMachineSetAvailable")


@pytest.mark.row("rollout-set-04", "rollout-autoscaler-03")
async def test_deployment_annotations_are_copied_to_the_set(world: Rolling) -> None:
    unsaid = {TRIGGER: "gone~2026-01-01T00:00:00Z", names.ANNOTATION_UNFREEZE: "now"}
    copied = {"example.com/team": "blue", SCALER_TIME: "2026-01-01T00:00:00Z"}
    async with world.at_rest(replicas=1, metadata={"annotations": {**unsaid, **copied}}):
        world.note(**{"example.com/team": "red"})
        await advance(5)

    (made,) = world.sets()
    found = made["metadata"]["annotations"]
    assert found["example.com/team"] == "red"
    assert found[SCALER_TIME] == copied[SCALER_TIME]
    assert not unsaid.keys() & found.keys()
    assert TRIGGER not in world.web()["metadata"]["annotations"]


@pytest.mark.row("rollout-set-06")
@pytest.mark.parametrize(("limit", "left"), [(None, 5), (1, 2), (0, 1)])
async def test_revision_history_limit_deletes_old_sets(
    world: Rolling, limit: int | None, left: int
) -> None:
    more: dict[str, Any] = {} if limit is None else {"revisionHistoryLimit": limit}
    world.deployment(replicas=1, **more)
    async with world.running(*ONLY):
        for number in range(4):
            world.edit(template=template(number=str(number)))
            for _ in range(3):
                await all_run(world)

    assert len(world.sets()) == left
    assert world.said() == ("True", "NewMachineSetAvailable")


# --- what brings a pass -------------------------------------------------------------------


@pytest.mark.row("rollout-event-01", "rollout-event-04")
async def test_machine_changes_trigger_a_deployment_sync(world: Rolling) -> None:
    uid = world.deployment(replicas=1)
    world.set(metadata=owned_by_deployment(uid) | {"labels": {"name": "web"}}, replicas=1)
    async with world.running("machinedeployment"):
        await advance(1)
        world.member("m0", owner=world.set_object()["metadata"]["uid"], phase="Pending")
        await advance(2)
        assert world.status()["replicas"] == 1
        world.becomes("m0", "Running")
        await advance(3)
        assert world.status()["availableReplicas"] == 1
        world.server.drop(f"{MACHINES}/m0")
        await advance(3)

    assert world.status().get("replicas", 0) == 0


@pytest.mark.row("rollout-event-02")
def test_resync_of_an_unchanged_set_is_ignored() -> None:
    from ccm.controllers.machinedeployment import plan

    one = wanted(1)

    assert not plan.set_matters(one, one)
    metadata = structs.replace(one.metadata, resource_version="8")
    other = structs.replace(one, metadata=metadata)
    assert plan.set_matters(one, other)


@pytest.mark.row("rollout-event-03")
async def test_former_owner_creates_a_new_set_when_its_set_is_reassigned(world: Rolling) -> None:
    first = world.deployment("first", replicas=1)
    second = world.deployment("second", replicas=1)
    labels = {"labels": {"name": "web"}}
    world.set(metadata=owned_by_deployment(first, "first") | labels, replicas=1)
    async with world.running("machinedeployment"):
        await advance(2)
        own = owned_by_deployment(second, "second")["ownerReferences"]
        made = {one["metadata"]["name"] for one in world.sets()}
        world.change(f"{SETS}/web", metadata={"ownerReferences": own})
        await advance(2)

    assert made == {"web"} | {one for one in made if one.startswith("second-")}
    new = {one["metadata"]["name"] for one in world.sets()} - made
    assert [one[:6] for one in new] == ["first-"]


OLD_TAINT = names.TAINT_OLD_SET


@pytest.mark.row("rollout-autoscaler-01", "rollout-autoscaler-03")
async def test_autoscaler_trigger_deletes_the_chosen_machine(world: Rolling) -> None:
    async with world.at_rest(replicas=4):
        names_ = world.here()
        chosen, failed = names_[1], names_[2]
        world.becomes(failed, "Failed", state="Failed")
        when = "2026-01-01T00:00:00Z"
        world.note(**{TRIGGER: f"{chosen}~{when},{failed}~{when},gone~{when},odd~odd"})
        await advance(1)
        got = world.get(chosen)["metadata"]["annotations"]
        assert got[names.ANNOTATION_PRIORITY] == "1"
        assert got[names.ANNOTATION_MARKED] == when
        assert world.web()["metadata"]["annotations"][TRIGGER] == f"{chosen}~{when}"
        await all_run(world)
        world.edit(replicas=3)
        world.note(**{SCALER_TIME: when})
        await advance(5)

    assert set(names_) - set(world.here()) == {chosen, failed}
    assert len(world.here()) == 3
    assert TRIGGER not in {key for one in world.sets() for key in one["metadata"]["annotations"]}


@pytest.mark.row("rollout-autoscaler-03")
async def test_autoscaler_trigger_deletes_the_chosen_machine_in_a_rollout(world: Rolling) -> None:
    async with world.at_rest(replicas=4):
        world.edit(template=template("large"))
        await advance(2)
        chosen = world.of_class("small")[0]
        when = "2026-01-01T00:00:00Z"
        world.server.patch(
            WEB,
            {
                "metadata": {"annotations": {TRIGGER: f"{chosen}~{when}", SCALER_TIME: when}},
                "spec": {"replicas": 3},
            },
        )
        await advance(5)
        assert chosen not in world.here()
        assert len(world.here()) == 4
        for _ in range(6):
            await all_run(world)

    assert world.kinds() == {"large": 3}


IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1, "orchestrationType": "Manual"}


@pytest.mark.row("rollout-autoscaler-07")
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("in_place", [False, True], ids=["paused", "in-place"])
async def test_only_the_chosen_machine_is_deleted_in_a_stopped_rollout(
    world: Rolling, kind: str, in_place: bool
) -> None:
    """Holds for machines of the old and of the new set."""
    async with world.at_rest(replicas=6, strategy=rolling(0, 3)):
        world.edit(template=template("large"))
        await advance(3)
        # From here on the rollout replaces no machine.
        if in_place:
            world.edit(strategy={"type": "InPlaceUpdate", "inPlaceUpdate": IN_PLACE})
        else:
            world.edit(paused=True)
        await all_run(world)
        assert world.kinds() == {"small": 3, "large": 3}
        before = world.here()
        chosen = world.of_class(kind)[0]
        when = "2026-01-01T00:00:00Z"
        notes = {TRIGGER: f"{chosen}~{when}", SCALER_TIME: when}
        body = {"metadata": {"annotations": notes}, "spec": {"replicas": 5}}
        world.server.patch(WEB, body)
        await advance(5)

    assert set(before) - set(world.here()) == {chosen}
    assert len(world.here()) == 5


@pytest.mark.row("rollout-autoscaler-04", "rollout-autoscaler-05")
async def test_rollout_taints_old_nodes_and_disables_their_scale_down(world: Rolling) -> None:
    async with world.at_rest(replicas=2):
        mine, theirs = world.here()
        for name in (mine, theirs):
            world.change(f"{MACHINES}/{name}", metadata={"labels": {"node": name}})
            notes = {HOLD: "true"} if name == theirs else {}
            world.node(name, metadata={"annotations": notes})
        world.edit(template=template("large"))
        await advance(2)
        found = {one["metadata"]["name"]: one for one in world.nodes()}
        for name in (mine, theirs):
            taint = {"key": OLD_TAINT, "value": "True", "effect": "PreferNoSchedule"}
            assert taint in found[name]["spec"]["taints"]
        assert found[mine]["metadata"]["annotations"] == {HOLD: "true", f"{HOLD}-by-mcm": "true"}
        assert found[theirs]["metadata"]["annotations"] == {HOLD: "true"}
        world.edit(template=template("small"))
        for _ in range(3):
            await all_run(world)

    nodes = {one["metadata"]["name"]: one for one in world.nodes()}
    left = [name for name in (mine, theirs) if name in world.here()]
    assert left
    for name in left:
        assert OLD_TAINT not in {one["key"] for one in nodes[name]["spec"].get("taints", ())}
        wanted = {HOLD: "true"} if name == theirs else None
        assert (nodes[name]["metadata"].get("annotations") or None) == wanted


@pytest.mark.row("rollout-autoscaler-04")
async def test_scale_down_stays_disabled_for_a_preserved_machine(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        (name,) = world.here()
        notes = {HOLD: "true", f"{HOLD}-by-mcm": "true"}
        world.node(name, metadata={"annotations": notes})
        status = {"currentStatus": {"preserveExpiryTime": "2099-01-01T00:00:00Z"}}
        world.server.patch(f"{MACHINES}/{name}/status", {"status": status})
        world.change(f"{MACHINES}/{name}", metadata={"labels": {"node": name}})
        await advance(5)
        assert world.node_object(name)["metadata"]["annotations"] == notes
        kept = {"currentStatus": {"preserveExpiryTime": None}}
        world.server.patch(f"{MACHINES}/{name}/status", {"status": kept})
        await advance(5)

    assert not world.node_object(name)["metadata"].get("annotations")


HASHES = {"small": "2894136487", "large": "743915321"}
"""Hashes of the Go implementation, over a dump of Go structs; they cannot be recomputed here."""


def set_of_the_reference(world: Rolling, uid: str, kind: str, count: int, revision: str) -> None:
    """A set as the reference leaves it in a roll, with machines that run."""
    mark = {"machine-template-hash": HASHES[kind]}
    name = f"web-{kind[:5]}"
    notes = {
        REVISION: revision,
        "deployment.kubernetes.io/desired-replicas": "3",
        "deployment.kubernetes.io/max-replicas": "4",
    }
    if kind == "small":
        notes[names.TAINT_OLD_SET] = "True"
    made = template(kind)
    made["metadata"] = {"creationTimestamp": None, "labels": {"name": "web", **mark}}
    made["spec"] |= {"nodeTemplate": {"metadata": {"creationTimestamp": None}, "spec": {}}}
    world.set(
        name,
        replicas=count,
        metadata={
            **owned_by_deployment(uid),
            "labels": {"name": "web", **mark},
            "annotations": notes,
            "finalizers": [names.FINALIZER],
        },
        selector={"matchLabels": {"name": "web", **mark}},
        template=made,
    )
    owner = world.set_object(name)["metadata"]
    world.server.patch(f"{SETS}/{name}/status", {"status": {"observedGeneration": 1}})
    for number in range(count):
        machine = f"{name}-{number}"
        made_of: dict[str, Any] = {"class": {"kind": "MachineClass", "name": kind}}
        world.member(machine, owner=owner["uid"], labels=mark, **made_of)
        reference = [{**world.get(machine)["metadata"]["ownerReferences"][0], "name": name}]
        world.change(f"{MACHINES}/{machine}", metadata={"ownerReferences": reference})


def in_mid_roll() -> Rolling:
    """A deployment of 3 of which one machine is new."""
    world = Rolling()
    uid = world.deployment(
        replicas=3,
        strategy=rolling(1, 0),
        template=template("large"),
        metadata={"annotations": {REVISION: "2"}, "finalizers": [names.FINALIZER]},
    )
    set_of_the_reference(world, uid, "small", 3, "1")
    set_of_the_reference(world, uid, "large", 1, "2")
    return world


def essentials(world: Rolling) -> list[dict[str, Any]]:
    """Return the fields of sets that the Go implementation reads."""
    return [
        {
            "labels": one["metadata"]["labels"],
            "selector": one["spec"]["selector"],
            "template": one["spec"]["template"],
            "revision": one["metadata"]["annotations"][REVISION],
            "finalizers": one["metadata"]["finalizers"],
            "owner": one["metadata"]["ownerReferences"],
        }
        for one in sorted(world.sets(), key=lambda one: str(one["metadata"]["name"]))
    ]


@pytest.mark.row("rollout-handover-01", "rollout-handover-02", "rollout-pass-11")
async def test_rollout_of_the_go_implementation_is_taken_over() -> None:
    world = in_mid_roll()
    before = essentials(world)
    async with world.running("machinedeployment"):
        await advance(0.5)
        assert world.said() == ("True", "FoundNewMachineSet")
    async with world.running(*ONLY):
        for _ in range(6):
            await all_run(world)

    assert (world.kinds(), world.said()) == ({"large": 3}, ("True", "NewMachineSetAvailable"))
    assert essentials(world) == before
    assert world.web()["metadata"]["annotations"][REVISION] == "2"


@pytest.mark.row("rollout-handover-02")
async def test_rollout_can_be_handed_back_to_the_go_implementation(world: Rolling) -> None:
    async with world.at_rest(replicas=3, strategy=rolling(1, 0)):
        world.edit(template=template("large"))
        await advance(2)

    assert world.sizes() == {"small": 3, "large": 1}
    for one in world.sets():
        notes = one["metadata"]["annotations"]
        assert notes["deployment.kubernetes.io/desired-replicas"] == "3"
        assert notes["deployment.kubernetes.io/max-replicas"] == "4"
        digest = one["metadata"]["labels"]["machine-template-hash"]
        made = one["spec"]["template"]["metadata"]["labels"]
        assert made == one["spec"]["selector"]["matchLabels"] == {
            "name": "web", "machine-template-hash": digest,
        }  # fmt: skip
    revisions = {one["metadata"]["annotations"][REVISION] for one in world.sets()}
    assert revisions == {"1", "2"}
    (old,) = [one for one in world.sets() if one["spec"]["replicas"] == 3]
    assert old["metadata"]["annotations"][names.TAINT_OLD_SET] == "True"
    assert world.server.get(WEB)["status"]["observedGeneration"] == 2  # type: ignore[index]
