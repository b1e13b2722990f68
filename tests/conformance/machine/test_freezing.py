"""Machines while an API server is away, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.base.metrics import REGISTRY
from ccm.controllers.machine import freeze as freezing
from ccm.controllers.machine.freeze import Reach
from ccm.kube.errors import ServerError
from ccm.testing.clock import advance
from tests.conformance.machine.going import M, goes
from tests.conformance.table import case
from tests.unit.controllers.machines import Ready, World

pytestmark = pytest.mark.virtual_time

TIMEOUT_S, PERIOD_S = 30.0, 60.0
MACHINES, NODES = "/machines/", "/nodes/"


def away(world: World, part: str) -> list[bool]:
    """No look at one of the kinds is answered, as long as the first of these is true."""
    is_away = [True]
    world.server.refuse = lambda method, path: (
        ServerError(status=503, reason="ServiceUnavailable", message="away")
        if is_away[0] and method == "GET" and path.endswith("probe") and part in path
        else None
    )
    return is_away


def frozen() -> float | None:
    """What the metric says."""
    return REGISTRY.get_sample_value("mcm_machine_controller_frozen")


ACTIVE, FROZEN = Reach(), Reach(is_frozen=True, away_since=0.0)
STARTED, ELAPSED = Reach(away_since=90.0), Reach(away_since=0.0)


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
def test_what_a_look_means(before: Reach, is_there: bool, is_frozen: bool) -> None:
    assert freezing.after(before, is_there, 100.0, TIMEOUT_S).is_frozen is is_frozen


@pytest.mark.parametrize(
    ("reach", "after_s"), [(ACTIVE, 60.0), (STARTED, 6.0), (FROZEN, 6.0)], ids=str
)
def test_when_to_look_again(reach: Reach, after_s: float) -> None:
    assert freezing.next_s(reach, PERIOD_S, TIMEOUT_S) == after_s


@pytest.mark.row("machine-freeze-03", "machine-freeze-04", "machine-freeze-05")
@pytest.mark.parametrize("part", [MACHINES, NODES])
async def test_frozen_and_thawed(world: Ready, part: str) -> None:
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
        *["an API server does not answer, machines are frozen"] * 3,
        "all API servers answer again, machines are frozen no longer",
    ]


@pytest.mark.row("machine-freeze-01", "machine-freeze-02")
async def test_a_server_that_is_away_for_a_moment_now_and_then(world: Ready) -> None:
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
async def test_a_thaw_that_cannot_be_written_is_none(world: Ready) -> None:
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


@pytest.mark.row("machine-freeze-06")
async def test_what_goes_goes_on(world: Ready) -> None:
    away(world, NODES)
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S + TIMEOUT_S + 10)
        goes(world)
        await advance(5)
        assert frozen() == 1

    assert world.get(M) == {}


@pytest.mark.row("machine-freeze-07")
async def test_without_target_nothing_is_looked_at() -> None:
    world = Ready(has_target=False)
    away(world, NODES)
    async with world.running("machine", "machineclass"):
        await advance(PERIOD_S * 5)
        world.machine()
        await advance(5)

    assert world.phase() == "Available"
