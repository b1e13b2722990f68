"""The autoscaler and deployments, row by row; before an API server in memory."""

from __future__ import annotations

import pytest

from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    HOLD,
    MACHINES,
    WEB,
    Rolling,
    all_run,
    rolling,
    template,
)

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")
TRIGGER = names.ANNOTATION_TRIGGER_DELETION
SCALER_TIME = names.ANNOTATION_SCALER_TIME
OLD_TAINT = names.TAINT_OLD_SET


@pytest.mark.row("rollout-autoscaler-01", "rollout-autoscaler-03")
async def test_the_autoscaler_chooses(world: Rolling) -> None:
    world.deployment(replicas=4)
    async with world.running(*ONLY):
        await all_run(world)
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
async def test_the_autoscaler_chooses_in_mid_roll(world: Rolling) -> None:
    world.deployment(replicas=4)
    async with world.running(*ONLY):
        await all_run(world)
        world.edit(template=template("large"))
        await advance(2)
        chosen = next(
            one["metadata"]["name"]
            for one in world.machines()
            if one["spec"]["class"]["name"] == "small"
        )
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
async def test_nobody_else_goes_in_mid_roll(world: Rolling, kind: str, in_place: bool) -> None:
    """Whichever set the machine belongs to."""
    world.deployment(replicas=6, strategy=rolling(0, 3))
    async with world.running(*ONLY):
        await all_run(world)
        world.edit(template=template("large"))
        await advance(3)
        # From here on nothing is exchanged of itself.
        if in_place:
            world.edit(strategy={"type": "InPlaceUpdate", "inPlaceUpdate": IN_PLACE})
        else:
            world.edit(paused=True)
        await all_run(world)
        assert world.kinds() == {"small": 3, "large": 3}
        before = world.here()
        chosen = next(
            one["metadata"]["name"]
            for one in world.machines()
            if one["spec"]["class"]["name"] == kind
        )
        when = "2026-01-01T00:00:00Z"
        notes = {TRIGGER: f"{chosen}~{when}", SCALER_TIME: when}
        body = {"metadata": {"annotations": notes}, "spec": {"replicas": 5}}
        world.server.patch(WEB, body)
        await advance(5)

    assert set(before) - set(world.here()) == {chosen}
    assert len(world.here()) == 5


@pytest.mark.row("rollout-autoscaler-04", "rollout-autoscaler-05")
async def test_nodes_of_a_rollout(world: Rolling) -> None:
    world.deployment(replicas=2)
    async with world.running(*ONLY):
        await all_run(world)
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
async def test_a_preserved_machine_stays_held(world: Rolling) -> None:
    world.deployment(replicas=1)
    async with world.running(*ONLY):
        await all_run(world)
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
