"""A machine from its object to its node: what it costs, and what may go wrong on the way."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machines import (
    DEFINITIONS,
    World,
)

pytestmark = pytest.mark.virtual_time

MANY = 50


# --- whose a VM is --------------------------------------------------------------------------


# --- bad weather ----------------------------------------------------------------------------


@pytest.mark.row("machine-command-05")
async def test_definitions_that_are_missing_are_waited_for() -> None:
    world = World()
    for name in ("machines", "machineclasses", "machinesets", "machinedeployments"):
        world.server.drop(f"{DEFINITIONS}/{name}.{names.GROUP}")
    with capture_logs() as lines:
        async with world.running():
            await advance(3600)
            asked = sum(world.server.requests.values())
            world.define()
            world.ready_class()
            world.machine()
            await advance(60)

    said = [line for line in lines if line["log_level"] == "warning"]
    assert {line["event"] for line in said} == {
        "machine controllers wait for what they need, retrying"
    }
    assert 6 <= len(said) <= 12, "once every five minutes at most"
    assert "apply manifests/crds.yaml" in said[0]["error"]
    assert asked < 150
    assert world.phase() == "Pending"
