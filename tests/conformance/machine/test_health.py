"""Machines whose nodes fall sick, row by row; before an API server in memory."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ccm.base.metrics import REGISTRY
from ccm.gardener import names
from ccm.kube.errors import Unreachable
from ccm.kube.informer import Informer
from ccm.model.machines import Phase
from ccm.testing.clock import VirtualTimeLoop, advance
from tests.conformance.table import case
from tests.unit.controllers.machines import NODES_PATH, World
from tests.unit.controllers.memory_server import FragileServer

pytestmark = pytest.mark.virtual_time

CRITICAL = {"taints": [{"key": names.TAINT_CRITICAL, "effect": "NoSchedule"}]}
CREATION = {"type": "Create", "state": "Processing"}


# --- phases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", ["Unknown", None], ids=["sick", "absent"])
@pytest.mark.parametrize(
    ("phase", "operation", "minutes", "more", "wanted"),
    [
        case("machine-phase-01", "Pending", CREATION, 25, {}, "Failed"),
        case("machine-phase-02", "Pending", CREATION, 15, {}, "Pending"),
        case("machine-phase-06", "Unknown", None, 15, {}, "Failed"),
        case("machine-phase-07", "Unknown", None, 15, {"disableHealthTimeout": True}, "Unknown"),
    ],
)
@pytest.mark.row("machine-phase-18")
async def test_time_that_is_over(
    world: World,
    phase: str,
    operation: Any,
    minutes: int,
    more: Any,
    wanted: str,
    ready: str | None,
) -> None:
    world.lived(phase=phase, operation=operation, **more)
    if ready is not None:
        world.node(ready=ready)
    await advance(minutes * 60)
    async with world.running("machine"):
        await advance(50)
        assert world.phase() == phase
        await advance(20)
        assert world.phase() == wanted
        before = world.server.writes("machines")
        await advance(120)

    assert world.server.writes("machines") == before
    assert world.operation()["type"] == (operation or {"type": "HealthCheck"})["type"]


async def test_a_failed_join_is_counted() -> None:
    def failed() -> float:
        labels = {
            "namespace": "default",
            "machine_deployment": "d",
            "instance_type": "",
            "zone": "",
        }
        return REGISTRY.get_sample_value("mcm_machine_num_failed_join", labels) or 0

    before, world = failed(), World()
    world.lived(phase="Pending", group="d", creationTimeout="2m")
    await world.run(150, "machine")

    assert failed() == before + 1
    assert world.reasons() == ["MachineFailed"]


@pytest.mark.parametrize(
    ("phase", "more", "wanted"),
    [
        case("machine-phase-03", "Unknown", {}, "Running"),
        case("machine-phase-10", "Unknown", CRITICAL, "Running"),
        case("machine-phase-08", "Pending", CRITICAL, "Pending"),
        case("machine-phase-09", "Pending", {}, "Running"),
        case("machine-phase-12", "Failed", {}, "Running"),
        ("Dancing", {}, "Dancing"),
    ],
)
async def test_a_node_that_is_healthy(world: World, phase: str, more: Any, wanted: str) -> None:
    world.lived(phase=phase)
    world.node(**more)
    await world.run(5, "machine")

    assert world.phase() == wanted
    if wanted == "Running":
        assert (world.operation()["type"], world.operation()["state"]) == (
            "HealthCheck",
            "Successful",
        )


@pytest.mark.parametrize(
    "conditions",
    [
        case("machine-phase-04", {"Ready": "Unknown"}),
        case("machine-phase-04", {"DiskPressure": "True"}),
        case("machine-phase-05", {}, id="absent"),
    ],
)
async def test_a_node_that_falls_sick(world: World, conditions: dict[str, str]) -> None:
    world.joined()
    async with world.running("machine"):
        await advance(5)
        # Our finalizer holds it: whoever deletes it means the machine.
        world.server.patch(f"{NODES_PATH}/m0", {"metadata": {"finalizers": None}})
        if conditions:
            world.heartbeat(**conditions)
        else:
            world.server.drop(f"{NODES_PATH}/m0")
        await advance(5)
        assert (world.phase(), world.operation()["state"]) == ("Unknown", "Processing")
        assert world.status()["currentStatus"]["timeoutActive"] is True
        told = world.operation()["description"]
        world.heartbeat(Ready="True", DiskPressure="False") if conditions else world.node()
        await advance(5)

    assert world.phase() == "Running"
    assert "is not healthy" in told
    assert world.reasons() == ["NodeUnhealthy", "NodeHealthy"]


@pytest.mark.row("machine-phase-22")
async def test_a_node_that_somebody_deletes_by_force(world: World) -> None:
    world.joined()
    async with world.running("machine"):
        await advance(5)
        world.server.unmake(f"{NODES_PATH}/m0")
        await advance(595)
        assert world.phase() == "Unknown"
        await advance(20)

    assert world.phase() == "Failed"
    assert "is gone" in world.operation()["description"]


@pytest.mark.row("machine-health-07")
async def test_a_machine_with_settings_of_its_own(world: World) -> None:
    for number, timeout in enumerate(("2m", "0s", "soon")):
        world.joined(f"m{number}", healthTimeout=timeout, nodeConditions="Broken")
    async with world.running("machine"):
        for number in range(3):
            world.heartbeat(f"m{number}", DiskPressure="True")
        await advance(5)
        assert [world.phase(f"m{number}") for number in range(3)] == ["Running"] * 3
        for number in range(3):
            world.heartbeat(f"m{number}", Broken="Unknown")
        await advance(130)
        assert [world.phase(f"m{number}") for number in range(3)] == [
            "Failed",
            "Unknown",
            "Unknown",
        ]
        await advance(500)

    # Of machines without a group each is alone.
    assert [world.phase(f"m{number}") for number in range(3)] == ["Failed"] * 3


@pytest.mark.row("machine-phase-11")
async def test_conditions_of_the_node_are_told_by_the_machine(world: World) -> None:
    world.joined()
    async with world.running("machine"):
        await advance(31)
        before = world.server.writes("machines/m0/status")
        for number in range(60):
            world.heartbeat(MemoryPressure=("True", "False")[number % 2])
            await advance(1)
        wrote = world.server.writes("machines/m0/status") - before
        world.heartbeat(MemoryPressure="Unknown")
        await advance(40)

    found = {one["type"]: one["status"] for one in world.status()["conditions"]}
    assert found == {"Ready": "True", "MemoryPressure": "Unknown"}
    assert 2 <= wrote <= 3


@pytest.mark.row("machine-phase-18")
async def test_another_leader_goes_on_where_the_last_one_ended(world: World) -> None:
    world.joined(ready="Unknown")
    for seconds in (200, 200):
        async with world.running("machine"):
            await advance(seconds)
            assert world.phase() == "Unknown"
    async with world.running("machine"):
        await advance(198)
        assert world.phase() == "Unknown"
        await advance(5)

    assert world.phase() == "Failed"
    assert world.reasons() == ["NodeUnhealthy", "MachineFailed"]


@pytest.mark.parametrize(
    "phase", [one.value for one in Phase if one.value not in ("", "?", "CrashLoopBackOff")]
)
async def test_machines_of_the_reference_are_taken_over(world: World, phase: str) -> None:
    """With a node that is well they run, and the cloud is not asked about them."""
    world.joined(phase=phase)
    await world.run(1800, "machine")

    wanted = "InPlaceUpdateFailed" if phase.startswith("InPlaceUpdat") else "Running"
    wanted = "Running" if phase == "InPlaceUpdateSuccessful" else wanted
    assert (world.phase(), world.driver.calls.total()) == (wanted, 0)


# --- bad weather ----------------------------------------------------------------------------


@pytest.mark.row("machine-phase-15")
async def test_the_clock_on_the_wall_jumps() -> None:
    world, loop = World(), asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for name, phase in (("m0", "Running"), ("m1", "Pending")):
        world.lived(name, phase=phase)
        world.node(name, ready="Unknown")
    async with world.running("machine"):
        await advance(100)
        assert [world.phase(name) for name in ("m0", "m1")] == ["Unknown", "Pending"]
        loop.start += timedelta(hours=5)
        await advance(495)
        world.heartbeat("m0", MemoryPressure="False")
        await advance(1)
        assert [world.phase(name) for name in ("m0", "m1")] == ["Unknown", "Pending"]
        await advance(20)
        assert [world.phase(name) for name in ("m0", "m1")] == ["Failed", "Pending"]
        await advance(600)

    assert world.phase("m1") == "Failed"


@pytest.mark.row("machine-phase-16")
@pytest.mark.parametrize(
    ("outage_s", "left_s"),
    [(10, 600 - 530), (35, 600), (400, 600)],
    ids=["short", "unfrozen", "long"],
)
async def test_the_api_server_is_away(outage_s: int, left_s: int) -> None:
    """Whatever the time was before: nodes that could not report had no time to do so either. A
    long outage freezes the machine, which is taken for well when it thaws."""
    server = FragileServer()
    world = World(server)
    world.joined(phase="Unknown", ready="Unknown")
    async with world.running("machine"):
        await advance(530 - outage_s)
        server.goes()
        await advance(outage_s)
        server.returns()
        await advance(left_s - 5)
        assert world.phase() == "Unknown"
        # The watch comes back after a pause of its own.
        await advance(120)

    assert world.phase() == "Failed"


@pytest.mark.row("machine-phase-16")
async def test_after_an_outage_nodes_have_time_to_report() -> None:
    """Somebody else calls them sick, as they could not say anything."""
    server = FragileServer()
    world = World(server)
    world.joined()
    async with world.running("machine"):
        await advance(5)
        server.goes()
        world.heartbeat(Ready="Unknown")
        await advance(400)
        server.returns()
        assert world.shared is not None
        while world.shared.caches.nodes.trouble_since is not None:
            await advance(1)
        await advance(20)
        world.heartbeat(Ready="True")
        await advance(60)
        assert (world.phase(), world.events) == ("Running", [])
        world.heartbeat(Ready="Unknown")
        await advance(1)

    assert world.phase() == "Unknown"


async def test_what_a_cache_holds_that_nobody_feeds_counts_for_nothing() -> None:
    """The API server answers that the node is well; the cache has it sick, and stays so."""
    server = FragileServer()
    world = World(server)
    world.joined()
    async with world.running("machine"):
        await advance(5)
        world.heartbeat(Ready="Unknown")
        await advance(590)
        server.forgets(NODES_PATH)
        world.heartbeat(Ready="True")
        await advance(300)
        assert world.phase() == "Unknown"
        server.returns()
        await advance(120)

    assert world.phase() == "Running"
    assert world.reasons() == ["NodeUnhealthy", "NodeHealthy"]


@pytest.mark.row("machine-phase-17")
async def test_a_node_that_flaps_writes_little_and_is_replaced_in_the_end(world: World) -> None:
    """Well for ten seconds of every minute."""
    world.joined()
    async with world.running("machine"):
        await advance(5)
        for _ in range(12):
            world.heartbeat(Ready="False")
            await advance(50)
            world.heartbeat(Ready="True")
            await advance(10)
        wrote = world.server.writes("machines/m0/status")

    assert world.phase() == "Failed"
    assert wrote <= 30


async def test_a_node_that_flaps_slowly_is_left_alone(world: World) -> None:
    """Well for longer than it takes to be believed."""
    world.joined()
    async with world.running("machine"):
        for _ in range(20):
            world.heartbeat(Ready="False")
            await advance(50)
            world.heartbeat(Ready="True")
            await advance(50)

    assert world.phase() == "Running"
    assert "MachineFailed" not in world.reasons()


@pytest.mark.row("machine-phase-19")
async def test_a_node_of_two_machines(world: World) -> None:
    world.lived()
    world.lived("m1", metadata={"labels": {"node": "m0"}})
    world.node(ready="Unknown")
    await world.run(3600, "machine")

    assert [world.phase(name) for name in ("m0", "m1")] == ["Running", "Running"]


@pytest.mark.row("machine-phase-20")
@pytest.mark.parametrize("unreadable", ["m0", ""], ids=["sick", "gone"])
async def test_a_node_that_cannot_be_read(unreadable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty name: there is a node whose name could not be read."""
    world, keys = World(), {unreadable}
    world.lived()
    if unreadable:
        world.node(ready="Unknown")
    monkeypatch.setattr(Informer, "undecodable", property(lambda _: keys))
    async with world.running("machine"):
        await advance(30)
        assert world.phase() == "Running"
        keys.clear()
        await advance(30)

    assert world.phase() == "Unknown"


@pytest.mark.row("machine-phase-21")
@pytest.mark.parametrize("answers", [True, False], ids=["well", "away"])
async def test_nobody_is_given_up_by_the_cache_alone(
    world: World, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch brings nothing, and says nothing of it."""
    world.joined(phase="Unknown", ready="Unknown")
    refused = Unreachable("no", kind="timeout")
    async with world.running("machine"):
        await advance(500)
        assert world.shared is not None
        old = world.shared.caches.nodes.store.get("m0")
        monkeypatch.setattr(world.shared.caches.nodes.store, "get", lambda _key: old)
        if answers:
            world.heartbeat(Ready="True")
        else:
            world.server.refuse = lambda method, path: (
                refused if (method, path) == ("GET", f"{NODES_PATH}/m0") else None
            )
        await advance(300)
        monkeypatch.undo()

    assert ("NodeHealthy" in world.reasons()) is answers
    assert "MachineFailed" not in world.reasons()
