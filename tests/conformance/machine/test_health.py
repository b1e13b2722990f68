"""Machines with unhealthy nodes per row of the conformance table; with an in-memory API server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base.metrics import REGISTRY
from ccm.controllers.machine import freeze as freezing
from ccm.controllers.machine.freeze import FreezeState
from ccm.gardener import names
from ccm.kube.errors import Invalid, ServerError, Unreachable
from ccm.kube.informer import Informer
from ccm.model.machines import Phase
from ccm.model.names import ANNOTATION_SCALE_DOWN_DISABLED
from ccm.testing.clock import START, VirtualTimeLoop, advance
from tests.conformance.machine.going import M, goes
from tests.conformance.table import case
from tests.unit.controllers.machines import NODES_PATH, Ready, World
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
async def test_machine_fails_at_its_creation_or_health_timeout(
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
async def test_phase_after_the_node_became_healthy(
    world: World, phase: str, more: Any, wanted: str
) -> None:
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
async def test_unhealthy_or_deleted_node_makes_its_machine_unknown(
    world: World, conditions: dict[str, str]
) -> None:
    world.joined()
    async with world.running("machine"):
        await advance(5)
        # With our finalizer, the deletion of the node would delete the machine.
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
async def test_machine_fails_after_its_node_was_deleted_by_force(world: World) -> None:
    world.joined()
    async with world.running("machine"):
        await advance(5)
        world.server.unmake(f"{NODES_PATH}/m0")
        await advance(595)
        assert world.phase() == "Unknown"
        await advance(20)

    assert world.phase() == "Failed"
    assert "is missing" in world.operation()["description"]


@pytest.mark.row("machine-health-07")
async def test_machine_health_settings_override_the_flags(world: World) -> None:
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

    # Machines without a group do not wait for each other.
    assert [world.phase(f"m{number}") for number in range(3)] == ["Failed"] * 3


@pytest.mark.row("machine-phase-11")
async def test_node_conditions_are_copied_to_the_machine_at_a_limited_rate(world: World) -> None:
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
async def test_health_timeout_continues_across_leaders(world: World) -> None:
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
async def test_machines_of_the_go_implementation_are_taken_over(world: World, phase: str) -> None:
    """With a healthy node they become Running, without cloud calls."""
    world.joined(phase=phase)
    await world.run(1800, "machine")

    wanted = "InPlaceUpdateFailed" if phase.startswith("InPlaceUpdat") else "Running"
    wanted = "Running" if phase == "InPlaceUpdateSuccessful" else wanted
    assert (world.phase(), world.driver.calls.total()) == (wanted, 0)


# --- bad weather ----------------------------------------------------------------------------


@pytest.mark.row("machine-phase-15")
async def test_wall_clock_jump_does_not_change_the_timeouts() -> None:
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
async def test_api_server_outage_restarts_the_health_timeout_unless_short(
    outage_s: int, left_s: int
) -> None:
    """Nodes cannot report during an outage: unless it is short, the timeout restarts. A
    long outage freezes the machine, which counts as healthy when it is unfrozen."""
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
        # The watch reconnects after a back-off.
        await advance(120)

    assert world.phase() == "Failed"


@pytest.mark.row("machine-phase-16")
async def test_after_an_outage_nodes_have_time_to_report() -> None:
    """Another controller sets Ready=Unknown, because the nodes could not report."""
    server = FragileServer()
    world = World(server)
    world.joined()
    async with world.running("machine"):
        await advance(5)
        server.goes()
        world.heartbeat(Ready="Unknown")
        await advance(400)
        server.returns()
        while world.caches.nodes.outage_since is not None:
            await advance(1)
        await advance(20)
        world.heartbeat(Ready="True")
        await advance(60)
        assert (world.phase(), world.events) == ("Running", [])
        world.heartbeat(Ready="Unknown")
        await advance(1)

    assert world.phase() == "Unknown"


async def test_disconnected_cache_fails_no_machine() -> None:
    """The API server has a healthy node; the disconnected cache still has an unhealthy one."""
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
async def test_flapping_node_causes_few_writes_and_finally_fails(world: World) -> None:
    """The node is healthy for ten seconds of every minute."""
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


async def test_slowly_flapping_node_does_not_fail_its_machine(world: World) -> None:
    """The node is healthy for longer than the required steady time."""
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
async def test_node_claimed_by_two_machines_fails_neither(world: World) -> None:
    world.lived()
    world.lived("m1", metadata={"labels": {"node": "m0"}})
    world.node(ready="Unknown")
    await world.run(3600, "machine")

    assert [world.phase(name) for name in ("m0", "m1")] == ["Running", "Running"]


@pytest.mark.row("machine-phase-20")
@pytest.mark.parametrize("unreadable", ["m0", ""], ids=["sick", "gone"])
async def test_malformed_node_does_not_change_the_phase(
    unreadable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty key means a malformed node without a readable name."""
    world, keys = World(), {unreadable}
    world.lived()
    if unreadable:
        world.node(ready="Unknown")
    monkeypatch.setattr(Informer, "malformed_keys", property(lambda _: keys))
    async with world.running("machine"):
        await advance(30)
        assert world.phase() == "Running"
        keys.clear()
        await advance(30)

    assert world.phase() == "Unknown"


@pytest.mark.row("machine-phase-21")
@pytest.mark.parametrize("answers", [True, False], ids=["well", "away"])
async def test_stale_cache_alone_fails_no_machine(
    world: World, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch delivers nothing without reporting an error."""
    world.joined(phase="Unknown", ready="Unknown")
    refused = Unreachable("no", kind="timeout")
    async with world.running("machine"):
        await advance(500)
        old = world.caches.nodes.store.get("m0")
        monkeypatch.setattr(world.caches.nodes.store, "get", lambda _key: old)
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


@pytest.mark.row("machine-preserve-13")
async def test_machine_without_node_can_be_preserved(world: World) -> None:
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
async def test_preservation_disables_scale_down_until_it_expires(world: World) -> None:
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
async def test_failed_drain_of_a_preserved_node_is_retried(world: World, force: bool) -> None:
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


TIMEOUT_S, PERIOD_S = 30.0, 60.0
MACHINES, NODES = "/machines/", "/nodes/"


def away(world: World, part: str) -> list[bool]:
    """Fail the probes of one kind while the first item of the returned list is true."""
    is_away = [True]
    world.server.refuse = lambda method, path: (
        ServerError(status=503, reason="ServiceUnavailable", message="away")
        if is_away[0] and method == "GET" and path.endswith("probe") and part in path
        else None
    )
    return is_away


def frozen() -> float | None:
    """Return the value of the freeze metric."""
    return REGISTRY.get_sample_value("mcm_machine_controller_frozen")


ACTIVE, FROZEN = FreezeState(), FreezeState(is_frozen=True, away_since=0.0)
STARTED, ELAPSED = FreezeState(away_since=90.0), FreezeState(away_since=0.0)


@pytest.mark.parametrize(
    ("before", "is_there", "is_frozen"),
    [
        *(
            case("machine-freeze-01", one, True, False)
            for one in (ACTIVE, STARTED, ELAPSED, FROZEN)
        ),
        case("machine-freeze-02", ACTIVE, False, False),
        case("machine-freeze-02", STARTED, False, False),
        case("machine-freeze-03", ELAPSED, False, True),
        case("machine-freeze-04", FROZEN, False, True),
    ],
)
def test_machines_freeze_once_the_api_server_is_away_too_long(
    before: FreezeState, is_there: bool, is_frozen: bool
) -> None:
    assert freezing.next_state(before, is_there, 100.0, TIMEOUT_S).is_frozen is is_frozen


@pytest.mark.parametrize(
    ("reach", "after_s"), [(ACTIVE, 60.0), (STARTED, 6.0), (FROZEN, 6.0)], ids=str
)
def test_api_server_check_interval_depends_on_the_freeze_state(
    reach: FreezeState, after_s: float
) -> None:
    assert freezing.next_check_s(reach, PERIOD_S, TIMEOUT_S) == after_s


@pytest.mark.row("machine-freeze-03", "machine-freeze-04", "machine-freeze-05")
@pytest.mark.parametrize("part", [MACHINES, NODES])
async def test_machines_freeze_during_an_outage_and_unfreeze_after_it(
    world: Ready, part: str
) -> None:
    status = {"currentStatus": {"phase": "Unknown"}}
    world.machine("sick", providerID="fake:///s", metadata={"labels": {"node": "s"}}, status=status)
    is_away = away(world, part)
    with capture_logs() as lines:
        async with world.running("machine", "machineclass"):
            await advance(PERIOD_S + TIMEOUT_S + 10)
            assert frozen() == 1
            world.machine()
            await advance(600)
            assert (world.phase(), world.phase("sick")) == ("", "Unknown")
            assert world.driver.calls["create_machine"] == 0
            is_away[0] = False
            await advance(TIMEOUT_S / 5 + 1)
            operation: dict[str, Any] = world.operation("sick")
            assert (frozen(), world.phase("sick")) == (0, "Running")
            await advance(35)

    assert (operation["description"], operation["state"]) == (
        "Machine Health Timeout was reset due to APIServer being unreachable",
        "Successful",
    )
    assert operation["type"] == "HealthCheck"
    assert world.phase() == "Pending"
    said = [line["event"] for line in lines if "frozen" in line["event"]]
    assert said == [
        # About eleven minutes, in which the warning is repeated every five.
        *["API server unreachable, machines frozen"] * 3,
        "API servers reachable again, machines unfrozen",
    ]


@pytest.mark.row("machine-freeze-01", "machine-freeze-02")
async def test_short_outages_do_not_freeze_machines(world: Ready) -> None:
    is_away = away(world, NODES)
    async with world.running("machine", "machineclass"):
        for _ in range(5):
            is_away[0] = True
            await advance(PERIOD_S + TIMEOUT_S / 5)
            assert frozen() == 0
            is_away[0] = False
            await advance(2 * TIMEOUT_S / 5)
            assert frozen() == 0


@pytest.mark.row("machine-freeze-05")
async def test_machines_stay_frozen_until_the_unfreeze_is_written(world: Ready) -> None:
    status = {"currentStatus": {"phase": "Unknown"}}
    world.machine("sick", providerID="fake:///s", status=status)
    is_away = away(world, NODES)
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S + TIMEOUT_S + 10)
        is_away[0], looks = False, world.server.refuse
        world.server.refuse = lambda method, path: (
            ServerError(status=503, reason="ServiceUnavailable", message="away")
            if method == "PATCH"
            else looks(method, path)
        )
        await advance(60)
        assert frozen() == 1
        world.server.refuse = looks
        await advance(60)

    assert (frozen(), world.phase("sick")) == (0, "Running")


@pytest.mark.row("machine-freeze-05")
async def test_machine_whose_status_is_refused_keeps_no_other_frozen(world: Ready) -> None:
    for name in ("refused", "sick"):
        status = {"currentStatus": {"phase": "Unknown"}}
        world.machine(name, providerID=f"fake:///{name}", status=status)
    is_away, looks = away(world, NODES), world.server.refuse
    world.server.refuse = lambda method, path: (
        Invalid(status=422, reason="Invalid", message="spec.class.kind: Unsupported value")
        if method == "PATCH" and "/machines/refused" in path
        else looks(method, path)
    )
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S + TIMEOUT_S + 10)
        assert frozen() == 1
        is_away[0] = False
        await advance(60)

    assert (frozen(), world.phase("sick"), world.phase("refused")) == (0, "Running", "Unknown")


@pytest.mark.row("machine-freeze-06")
async def test_deletion_continues_while_machines_are_frozen(world: Ready) -> None:
    away(world, NODES)
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S + TIMEOUT_S + 10)
        goes(world)
        await advance(5)
        assert frozen() == 1

    assert world.get(M) == {}


@pytest.mark.row("machine-freeze-07")
async def test_machines_without_target_cluster_never_freeze() -> None:
    world = Ready(has_target=False)
    away(world, NODES)
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S * 5)
        world.machine()
        await advance(5)

    assert world.phase() == "Available"
