"""The limit of machines per set (freeze), per row of the conformance table."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.controllers import machineovershoot as overshoot
from ccm.controllers.machineovershoot import FreezeAction, Margins, SetState
from ccm.gardener import decoding, names
from ccm.gardener.types import (
    MachineDeployment,
    MachineDeploymentSpec,
    MachineTemplateSpec,
    RollingUpdate,
    Strategy,
)
from ccm.machines import replicas
from ccm.model import ObjectMeta
from ccm.testing.clock import advance
from tests.unit.controllers.machinesets import (
    DEPLOYMENTS,
    MACHINES,
    SETS,
    Sets,
    owned_by_deployment,
)

pytestmark = pytest.mark.virtual_time

WEB, DEPLOYMENT = f"{SETS}/web", f"{DEPLOYMENTS}/web"
PERIOD_S = 66.0
"""Period of the check, including its jitter."""

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}
IN_PLACE = {"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 1, "maxUnavailable": 1}}


class Crowd(Sets):
    """A set with many machines, alone or of a deployment."""

    def crowd(self, count: int, *, replicas: int = 3, of: str = "") -> str:
        """Create the set with this number of machines; return its UID."""
        owner = self.set(replicas=replicas, metadata=owned_by_deployment(of) if of else {})
        self.more(count, owner)
        return owner

    def more(self, count: int, owner: str, start: int = 0) -> None:
        """Further machines of it."""
        for number in range(start, start + count):
            self.member(f"m{number}", owner=owner)

    def fewer(self, *numbers: int) -> None:
        """Delete machines by number."""
        for number in numbers:
            self.server.drop(f"{MACHINES}/m{number}")

    def frozen(self, path: str = WEB) -> tuple[bool, str]:
        """Return whether the object has the freeze label, and the reason of its condition."""
        found = self.server.get(path) or {}
        label = found["metadata"].get("labels", {}).get("freeze") == "True"
        status = found.get("status", {})
        said = status.get("machineSetCondition") or status.get("conditions") or ()
        reasons = [
            one["reason"] for one in said if one["type"] == "Frozen" and one["status"] == "True"
        ]
        return label, "".join(reasons)


FROZEN = (True, "OverShootingReplicaCount")
FREE = (False, "")


@pytest.mark.row("machineset-freeze-03", "machineset-freeze-04")
@pytest.mark.parametrize(
    ("stock", "expected"),
    [
        (SetState(count=7, replicas=3), FreezeAction.NONE),
        (SetState(count=8, replicas=3), FreezeAction.FREEZE),
        (SetState(count=9, replicas=3), FreezeAction.FREEZE),
        (SetState(count=8, replicas=3, is_frozen=True), FreezeAction.NONE),
        (SetState(count=7, replicas=3, is_frozen=True), FreezeAction.UNFREEZE),
        (SetState(count=5, replicas=9, most=4), FreezeAction.NONE),
        (SetState(count=6, replicas=9, most=4), FreezeAction.FREEZE),
        (SetState(count=6, replicas=9, most=4, is_frozen=True), FreezeAction.NONE),
        (SetState(count=5, replicas=9, most=4, is_frozen=True), FreezeAction.UNFREEZE),
        (SetState(count=2, replicas=0), FreezeAction.FREEZE),
        (SetState(count=9, replicas=3, was_unfrozen=True), FreezeAction.NONE),
        (SetState(count=9, replicas=3, wants_unfreeze=True), FreezeAction.UNFREEZE_REQUESTED),
        (
            SetState(count=8, replicas=3, is_frozen=True, has_condition=False),
            FreezeAction.ADD_CONDITION,
        ),
        (SetState(count=3, replicas=3, has_condition=False), FreezeAction.REMOVE_CONDITION),
    ],
)
def test_freeze_action_depends_on_machine_count_and_state(
    stock: SetState, expected: FreezeAction
) -> None:
    assert overshoot.decide(stock, Margins()) is expected


@pytest.mark.row("machineset-freeze-04")
@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2), ("30%", 1), ("34%", 2), ("0%", 0), (None, 1), ("many", 0), (-2, 0)],
)
def test_max_surge_percentage_is_rounded_up(value: int | str | None, expected: int) -> None:
    bounds = RollingUpdate(max_surge=value)
    strategy = Strategy(type="RollingUpdate", rolling_update=bounds)
    spec = MachineDeploymentSpec(replicas=3, strategy=strategy, template=MachineTemplateSpec())
    found = MachineDeployment(metadata=ObjectMeta(name="d"), spec=spec)
    assert replicas.max_machines(decoding.machine_deployment(found)) == 3 + expected


@pytest.mark.row("machineset-freeze-05", "machineset-freeze-06")
async def test_set_freezes_above_its_limit_and_unfreezes_below(world: Crowd) -> None:
    world.crowd(8)
    other = {"type": "ReplicaFailure", "status": "True"}
    world.change(f"{WEB}/status", status={"machineSetCondition": [other]})
    async with world.running("machineovershoot"):
        await advance(1)
        assert world.frozen() == FROZEN
        assert world.reasons() == ["FrozeMachineSet"]
        await advance(5 * PERIOD_S)
        assert world.reasons() == ["FrozeMachineSet"]

        world.fewer(0)
        await advance(PERIOD_S)
        assert world.frozen() == FREE
        assert list(world.conditions()) == ["ReplicaFailure"]
        await advance(5 * PERIOD_S)

    assert world.reasons() == ["FrozeMachineSet", "UnfrozeMachineSet"]
    assert "UnderShootingReplicaCount" in world.events[1][1]
    assert len(world.here()) == 7
    assert world.server.writes("machines") == 0
    assert world.server.writes("machinesets") == 4


@pytest.mark.row("machineset-freeze-04", "machineset-freeze-05", "machineset-freeze-06")
@pytest.mark.parametrize("strategy", [None, ROLLING, IN_PLACE], ids=["number", "percent", "place"])
async def test_deployment_freezes_and_unfreezes_with_its_set(world: Crowd, strategy: Any) -> None:
    of = world.deployment(replicas=3, **({"strategy": strategy} if strategy else {}))
    owner = world.crowd(5, of=of, replicas=9)
    async with world.running("machineovershoot"):
        await advance(2 * PERIOD_S)
        assert (world.frozen(), world.frozen(DEPLOYMENT)) == (FREE, FREE)

        world.more(1, owner, start=5)
        await advance(1)
        assert (world.frozen(), world.frozen(DEPLOYMENT)) == (FROZEN, FROZEN)

        world.fewer(5)
        await advance(1)
        assert (world.frozen(), world.frozen(DEPLOYMENT)) == (FREE, FREE)

    assert world.reasons() == ["FrozeMachineSet"] * 2 + ["UnfrozeMachineSet"] * 2


@pytest.mark.row("machineset-freeze-01")
async def test_machines_are_counted_on_creation_and_every_minute(world: Crowd) -> None:
    owner = world.crowd(7)
    async with world.running("machineovershoot"):
        await advance(5)
        world.more(1, owner, start=7)
        await advance(1)
        assert world.frozen() == FROZEN

        # A change of replicas alone triggers no check.
        world.change(WEB, spec={"replicas": 4})
        await advance(1)
        assert world.frozen() == FROZEN
        await advance(PERIOD_S)

    assert world.frozen() == FREE


@pytest.mark.row("machineset-freeze-02")
async def test_deleting_machines_count_for_the_freeze_and_foreign_ones_do_not(world: Crowd) -> None:
    owner = world.crowd(6)
    other = world.set("other", replicas=3)
    world.member("m6", owner=owner, finalizers=["example.com/hold"])
    world.server.drop(f"{MACHINES}/m6")
    world.member("foreign", owner=other)
    world.member("orphan")
    world.member("unlabeled", owner=owner, labels={"name": "api"})
    async with world.running("machineovershoot"):
        await advance(2 * PERIOD_S)
        assert world.frozen() == FREE

        world.member("m7", owner=owner)
        await advance(1)

    assert world.frozen() == FROZEN


@pytest.mark.row("machineset-freeze-07")
async def test_unfreeze_annotation_unfreezes_a_set_once(world: Crowd) -> None:
    owner = world.crowd(8)
    async with world.running("machineovershoot"):
        await advance(1)
        world.change(WEB, metadata={"annotations": {names.ANNOTATION_UNFREEZE: ""}})
        await advance(1)
        assert world.frozen() == FREE
        assert world.set_object()["metadata"].get("annotations", {}) == {}
        assert "UnfreezeAnnotation" in world.events[-1][1]

        await advance(10)
        assert world.frozen() == FREE
        world.more(1, owner, start=8)
        await advance(1)
        assert world.frozen() == FROZEN

        world.change(WEB, metadata={"annotations": {names.ANNOTATION_UNFREEZE: "now"}})
        await advance(1)
        assert world.frozen() == FREE
        await advance(PERIOD_S)

    assert world.frozen() == FROZEN


@pytest.mark.row("machineset-freeze-07")
async def test_unfreeze_annotation_of_an_unfrozen_set_is_only_removed(world: Crowd) -> None:
    world.crowd(1)
    world.change(WEB, metadata={"annotations": {names.ANNOTATION_UNFREEZE: "1"}})
    await world.run(5, "machineovershoot")

    assert world.set_object()["metadata"].get("annotations", {}) == {}
    assert world.events == []


@pytest.mark.row("machineset-freeze-08")
async def test_unfreeze_annotation_unfreezes_a_deployment_and_its_sets(world: Crowd) -> None:
    of = world.deployment(replicas=1)
    world.crowd(4, of=of)
    second = world.set("api", replicas=1, metadata=owned_by_deployment(of))
    for number in range(4):
        world.member(f"a{number}", owner=second, of="api")
    async with world.running("machineovershoot"):
        await advance(1)
        assert [world.frozen(f"{SETS}/{name}")[0] for name in ("web", "api")] == [True, True]
        assert world.frozen(DEPLOYMENT) == FROZEN

        world.change(DEPLOYMENT, metadata={"annotations": {names.ANNOTATION_UNFREEZE: "1"}})
        await advance(1)
        assert [world.frozen(f"{SETS}/{name}") for name in ("web", "api")] == [FREE, FREE]
        assert world.frozen(DEPLOYMENT) == FREE
        found = world.server.get(DEPLOYMENT) or {}
        assert found["metadata"].get("annotations", {}) == {}
        await advance(PERIOD_S)

    assert world.frozen(DEPLOYMENT) == FROZEN


@pytest.mark.row("machineset-freeze-09")
async def test_deployment_freeze_label_follows_its_sets(world: Crowd) -> None:
    of = world.deployment(replicas=3, metadata={"labels": {names.LABEL_FREEZE: names.FROZEN}})
    world.set(metadata=owned_by_deployment(of))
    async with world.running("machineovershoot"):
        await advance(1)
        assert world.frozen(DEPLOYMENT) == FREE
        assert "MachineDeploymentStateSync" in world.events[-1][1]

        world.more(6, str(world.set_object()["metadata"]["uid"]))
        await advance(1)
        assert world.frozen(DEPLOYMENT) == FROZEN

        world.server.drop(WEB)
        await advance(1)

    assert world.frozen(DEPLOYMENT) == FREE


@pytest.mark.row("machineset-freeze-10")
async def test_all_sets_are_checked_in_one_pass(world: Crowd) -> None:
    uids = {name: world.set(name, replicas=0) for name in ("a", "b", "c")}
    for name, uid in uids.items():
        for number in range(2):
            world.member(f"{name}{number}", owner=uid, of=name)
    await world.run(1, "machineovershoot")

    assert [world.frozen(f"{SETS}/{name}") for name in uids] == [FROZEN] * 3


@pytest.mark.row("machineset-freeze-11")
async def test_recreate_strategy_adds_no_surge_to_the_freeze_limit(world: Crowd) -> None:
    of = world.deployment(replicas=3, strategy={"type": "Recreate"})
    owner = world.crowd(4, of=of)
    async with world.running("machineovershoot"):
        await advance(2 * PERIOD_S)
        assert world.frozen() == FREE
        world.more(1, owner, start=4)
        await advance(1)

    assert (world.frozen(), world.frozen(DEPLOYMENT)) == (FROZEN, FROZEN)


@pytest.mark.row("machineset-freeze-13")
async def test_removed_freeze_label_or_condition_is_restored(world: Crowd) -> None:
    owner = world.crowd(8)
    async with world.running("machineovershoot"):
        await advance(1)
        world.change(f"{WEB}/status", status={"machineSetCondition": None, "replicas": 8})
        await advance(1)
        assert world.frozen() == FROZEN

        world.more(1, owner, start=8)
        world.change(WEB, metadata={"labels": {"freeze": None}})
        await advance(1)
        assert world.frozen() == FROZEN
        world.fewer(*range(6))
        world.change(WEB, metadata={"labels": {"freeze": None}})
        await advance(1)

    assert world.frozen() == FREE


@pytest.mark.row("machineset-freeze-13", "machineset-freeze-12")
async def test_overshoot_and_set_controllers_share_one_status(world: Crowd) -> None:
    owner = world.crowd(5, replicas=5)
    async with world.running("machineovershoot", "machineset"):
        await advance(1)
        world.change(WEB, spec={"replicas": 0})
        for number in range(5, 9):
            world.member(f"m{number}", owner=owner, finalizers=["example.com/hold"])
            await advance(0.2)
        await advance(2)
        assert world.frozen() == FROZEN
        assert world.set_status()["replicas"] == 4

        for number in range(5, 9):
            world.change(f"{MACHINES}/m{number}", metadata={"finalizers": None})
            await advance(0.2)
        await advance(PERIOD_S)

    assert world.frozen() == FREE
    assert world.set_status()["replicas"] == 0


async def test_deleting_set_is_not_frozen(world: Crowd) -> None:
    owner = world.set(replicas=0, metadata={"finalizers": ["example.com/hold"]})
    world.more(3, owner)
    world.server.drop(WEB)
    await world.run(2 * PERIOD_S, "machineovershoot")

    assert world.frozen() == FREE
