"""Many unhealthy nodes at once, per row of the conformance table: one replacement at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ccm.base.metrics import REGISTRY
from ccm.cloud import errors
from ccm.gardener import names
from ccm.kube.errors import Unreachable
from ccm.testing.clock import advance
from tests.conformance.table import case
from tests.unit.controllers.machines import BASE, NODES_PATH, World
from tests.unit.controllers.machinesets import owned

pytestmark = pytest.mark.virtual_time


def crowd(world: World, count: int = 8) -> None:
    """Add running machines, so that there is no meltdown."""
    for number in range(count):
        world.joined(f"w{number}", group="w")


@pytest.mark.parametrize(
    ("other", "group", "wanted"),
    [
        *(
            case("machine-meltdown-01", phase, "d", "Unknown", id=phase or "new")
            for phase in ("Failed", "Terminating", "Pending", "CrashLoopBackOff", "")
        ),
        *(
            case("machine-meltdown-02", phase, group, "Failed")
            for phase, group in (("Unknown", "d"), ("Failed", "e"))
        ),
    ],
)
async def test_machine_is_not_failed_while_another_of_its_group_is_replaced(
    world: World, other: str, group: str, wanted: str
) -> None:
    crowd(world)
    world.joined(phase="Unknown", group="d", ready="Unknown")
    world.lived("m1", phase=other, group=group, disableHealthTimeout=True, creationTimeout="9h")
    async with world.running("machine"):
        await advance(700)
        assert (world.phase(), world.phase("m1")) == (wanted, other or "CrashLoopBackOff")
        held = [text for reason, text in world.events if reason == "ReplacementHeld"]
        waiting = REGISTRY.get_sample_value("ccm_machine_replacements_waiting")
        gone = f"{BASE}/machines/m1"
        world.server.unmake(gone)
        await advance(2)

    assert world.phase() == "Failed"
    assert (len(held), waiting) == ((0, 0) if wanted == "Failed" else (1, 1))
    assert all("default/m1 is being created, replaced or deleted" in text for text in held)


@pytest.mark.row("machine-meltdown-03")
async def test_slow_api_server_still_fails_one_machine_at_a_time(world: World) -> None:
    crowd(world)
    for number in range(4):
        world.joined(f"m{number}", phase="Unknown", group="d", ready="Unknown")

    async def slow() -> None:
        await asyncio.sleep(1)

    async with world.running("machine"):
        world.server.point = slow
        await advance(660)

    assert sorted(world.phase(f"m{number}") for number in range(4)) == ["Failed", *["Unknown"] * 3]


async def test_unreadable_node_lets_the_next_machine_fail_instead(world: World) -> None:
    """Reads of one node time out."""
    crowd(world)
    for number in range(2):
        world.joined(f"m{number}", phase="Unknown", group="d", ready="Unknown")
    world.server.refuse = lambda method, path: (
        Unreachable("no", kind="timeout") if (method, path) == ("GET", f"{NODES_PATH}/m0") else None
    )
    await world.run(700, "machine")

    assert [world.phase(f"m{number}") for number in range(2)] == ["Unknown", "Failed"]


@pytest.mark.row("machine-meltdown-04")
@pytest.mark.parametrize(("of_set", "wanted"), [(True, 1), (False, 3)], ids=["of-a-set", "alone"])
async def test_machines_of_one_set_fail_one_by_one_and_unowned_ones_together(
    world: World, of_set: bool, wanted: int
) -> None:
    owner = owned("MachineSet", "s", "u")
    crowd(world)
    for number in range(3):
        metadata = {"ownerReferences": [owner]} if of_set else {}
        world.joined(f"m{number}", phase="Unknown", metadata=metadata, ready="Unknown")
    await world.run(700, "machine")

    assert [world.phase(f"m{number}") for number in range(3)].count("Failed") == wanted


@pytest.mark.row("machine-meltdown-05")
async def test_meltdown_replaces_unhealthy_machines_one_at_a_time() -> None:
    """Machines of five deployments: one at a time is replaced, and only unhealthy ones."""
    world, most = World(), 0
    for number in range(20):
        world.joined(f"m{number}", group=f"d{number % 5}")
    replaced = list[str]()

    def phases() -> dict[str, str]:
        every = world.server.list(f"{BASE}/machines")
        return {one["metadata"]["name"]: world.phase(one["metadata"]["name"]) for one in every}

    async with world.running("machine"):
        await advance(5)
        for number in range(12):
            world.heartbeat(f"m{number}", Ready="Unknown")
        await advance(5)
        assert list(phases().values()).count("Unknown") == 12
        for _ in range(12):
            await advance(605 if not replaced else 60)
            failed = [name for name, phase in phases().items() if phase == "Failed"]
            if len(replaced) == 0:
                most = len(failed)
            if failed:
                replaced += failed
            for name in failed:
                world.server.unmake(f"{BASE}/machines/{name}")
                world.server.unmake(f"{NODES_PATH}/{name}")

    assert most == 1
    assert len(replaced) == len(set(replaced)) == 12
    assert all(int(name[1:]) < 12 for name in replaced)


@pytest.mark.row("machine-meltdown-06", "machine-phase-13", "machine-preserve-21")
async def test_preserved_machine_blocks_no_other_replacement(world: World) -> None:
    crowd(world)
    world.lived(phase="Unknown", group="d")
    world.node(
        ready="Unknown", metadata={"annotations": {names.ANNOTATION_PRESERVE: "when-failed"}}
    )
    wrote = list[dict[str, Any]]()
    async with world.running("machine"):
        await advance(595)
        world.joined("m1", phase="Unknown", group="d", ready="Unknown")

        async def looks() -> None:
            wrote.append(world.status()["currentStatus"])
            await asyncio.sleep(0)

        world.server.point = looks
        await advance(15)
        node = world.node_object()
        await advance(600)
        kept = world.status()["currentStatus"]
        world.heartbeat(Ready="True")
        await advance(1)

    # The expiry is in the same write as the phase Failed.
    failed = [one for one in wrote if one["phase"] == "Failed"]
    assert 0 < len(failed) < len(wrote)
    assert all("preserveExpiryTime" in one for one in failed)
    assert names.TAINT_PRESERVED in str(node["spec"]["taints"])
    (told,) = [one for one in node["status"]["conditions"] if one["type"] == "Preserved"]
    assert (told["status"], told["reason"]) == ("True", "Preserved by user.")
    assert (world.phase("m1"), kept["phase"]) == ("Failed", "Failed")
    assert kept["preserveExpiryTime"] == failed[0]["preserveExpiryTime"]
    assert (world.phase(), "preserveExpiryTime" in world.status()["currentStatus"]) == (
        "Running",
        False,
    )


@pytest.mark.row("machine-meltdown-08")
@pytest.mark.parametrize("when", ["before the daemon", "after it"])
async def test_machine_without_quota_delays_no_replacement_of_other_groups(
    world: World, when: str
) -> None:
    """All nodes are unhealthy, and a machine of another group waits for quota."""
    world.driver.faults["create_machine"] = errors.ResourceExhausted("no quota")
    world.ready_class()
    for number in range(4):
        world.joined(f"m{number}", group=f"d{number}", healthTimeout="2m")

    def scale_up() -> None:
        world.machine("stuck", metadata={"labels": {"name": "d"}}, creationTimeout="9h")

    if when == "before the daemon":
        scale_up()
        await advance(1200)
    async with world.running("machine"):
        if when == "after it":
            scale_up()
        await advance(5)
        assert world.phase("stuck") == "CrashLoopBackOff"
        for number in range(4):
            world.heartbeat(f"m{number}", Ready="Unknown")
        await advance(140)
        (first,) = (f"m{number}" for number in range(4) if world.phase(f"m{number}") == "Failed")
        world.server.unmake(f"{BASE}/machines/{first}")
        await advance(5)

    # After the first replacement fewer than three are unhealthy, which ends the meltdown.
    others = {f"m{number}" for number in range(4)} - {first}
    assert {world.phase(name) for name in others} == {"Failed"}


@pytest.mark.row("machine-meltdown-09")
async def test_machine_without_quota_delays_its_group_for_a_limited_time(world: World) -> None:
    crowd(world)
    world.driver.faults["create_machine"] = errors.ResourceExhausted("no quota")
    world.ready_class()
    world.joined(group="d", healthTimeout="2m")
    async with world.running("machine"):
        world.heartbeat(Ready="Unknown")
        world.machine("stuck", metadata={"labels": {"name": "d"}}, creationTimeout="9h")
        await advance(1190)
        assert (world.phase("stuck"), world.phase()) == ("CrashLoopBackOff", "Unknown")
        await advance(15)

    assert (world.phase("stuck"), world.phase()) == ("CrashLoopBackOff", "Failed")
