"""Machines that are kept although they failed; the table of it is proved beside the plan."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ccm.gardener import names
from ccm.model.names import ANNOTATION_SCALE_DOWN_DISABLED
from ccm.testing.clock import START, advance
from tests.unit.controllers.machines import NODES_PATH, World

pytestmark = pytest.mark.virtual_time


@pytest.mark.row("machine-preserve-13")
async def test_a_machine_whose_node_is_not_there_is_kept(world: World) -> None:
    wish = {names.ANNOTATION_PRESERVE: "now"}
    world.lived(phase="Unknown", metadata={"annotations": wish}, machinePreserveTimeout="1h")
    async with world.running("machine"):
        await advance(5)
        kept = world.status()["currentStatus"]["preserveExpiryTime"]
        await advance(700)
        assert (world.phase(), world.status()["currentStatus"]["preserveExpiryTime"]) == (
            "Failed",
            kept,
        )
        assert world.get()["metadata"]["annotations"][names.ANNOTATION_PRESERVE] == "now"

    assert kept == "2026-01-01T01:00:00Z"


@pytest.mark.row("machine-preserve-24", "machine-preserve-25")
async def test_a_preserved_node_until_its_time_is_over(world: World) -> None:
    world.joined(machinePreserveTimeout="1h")
    path = f"{NODES_PATH}/m0"

    def notes() -> dict[str, str]:
        return dict(world.node_object()["metadata"].get("annotations") or {})

    def disabled() -> bool:
        return ANNOTATION_SCALE_DOWN_DISABLED in notes()

    async with world.running("machine"):
        note = {"metadata": {"annotations": {names.ANNOTATION_PRESERVE: "now"}}}
        world.server.patch(path, note)
        await advance(5)
        assert disabled()
        gone = {"metadata": {"annotations": {ANNOTATION_SCALE_DOWN_DISABLED: None}}}
        world.server.patch(path, gone)
        await advance(5)
        assert disabled()
        await advance(3580)
        assert disabled()
        await advance(20)
        wrote = world.server.writes("m0")
        await advance(3600)

    assert not disabled()
    assert names.ANNOTATION_PRESERVE not in notes()
    (told,) = [
        one for one in world.node_object()["status"]["conditions"] if one["type"] == "Preserved"
    ]
    assert (told["status"], told.get("message", "")) == ("False", "")
    assert "preserveExpiryTime" not in world.status()["currentStatus"]
    assert world.server.writes("m0") == wrote
    assert world.reasons() == ["MachinePreserved", "PreservationEnded"]


@pytest.mark.parametrize("force", [False, True])
async def test_a_drain_of_a_preserved_node(world: World, force: bool) -> None:
    world.drains.seconds = 10
    world.drains.fails = ["a budget"]
    metadata = {
        "annotations": {names.ANNOTATION_PRESERVE: "now"},
        "labels": {"node": "m0", **({names.LABEL_FORCE_DRAIN: "True"} if force else {})},
    }
    world.joined(phase="Failed", metadata=metadata, drainTimeout="1h", ready="Unknown")
    told = list[str]()
    async with world.running("machine"):
        for _ in range(8):
            await advance(6)
            found = world.node_object()["status"]["conditions"]
            told += [
                f"{one['status']} {one['message']}" for one in found if one["type"] == "Preserved"
            ]

    assert [(one.node_name, one.force) for one in world.drains.tasks] == [("m0", force)] * 2
    assert world.drains.tasks[0].deadline == START + timedelta(hours=1)
    assert len(world.drains.stopped) == 1
    until = "Machine preserved until 2026-01-05T00:00:00Z."
    assert list(dict.fromkeys(told)) == [
        f"True {until}",
        f"False Preserved node could not be drained. {until}",
        f"True Preserved node drained successfully. {until}",
    ]
