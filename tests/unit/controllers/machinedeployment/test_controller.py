"""Deployments with all controllers at work: what a user asks for happens, within the bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    SETS,
    WEB,
    Rolling,
    all_run,
)

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")


def meddle(world: Rolling, method: str, path: str, action: Callable[[], None]) -> list[str]:
    """Somebody is faster, once: before such a request, which is noted, is carried out."""
    seen: list[str] = []

    def asked(told: str, where: str) -> None:
        if (told, where) == (method, path) and not seen:
            seen.append(where)
            action()

    world.server.refuse = asked
    return seen


async def test_a_condition_of_another_writer_in_between_stays() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    frozen = {"type": "Frozen", "status": "True", "reason": "OverShootingReplicaCount"}
    async with world.running(*ONLY):
        await all_run(world)

        def freeze() -> None:
            conditions = [*world.status()["conditions"], frozen]
            world.server.patch(f"{WEB}/status", {"status": {"conditions": conditions}})

        seen = meddle(world, "PATCH", f"{WEB}/status", freeze)
        world.edit(replicas=2)
        await advance(5)

    assert seen
    assert world.said("Frozen") == ("True", "OverShootingReplicaCount")


@pytest.mark.row("rollout-pass-10")
async def test_a_set_that_cannot_be_made() -> None:
    world = Rolling()
    world.deployment(replicas=1)

    def refuse(method: str, path: str) -> Exception | None:
        full = method == "POST" and path == SETS
        return Forbidden(status=403, reason="Forbidden", message="quota") if full else None

    world.server.refuse = refuse
    async with world.running(*ONLY):
        await advance(5)
        assert "MachineSetCreateError" in {reason for reason, _ in world.events}
        assert world.said() == ("False", "MachineSetCreateError")
        (text,) = (
            one["message"] for one in world.status()["conditions"] if one["type"] == "Progressing"
        )
        assert text.endswith(": quota (403 Forbidden)")
        writes = world.server.writes("machinedeployments")
        await advance(10)
        assert world.server.writes("machinedeployments") == writes
        world.server.refuse = lambda _method, _path: None
        await advance(61)
        assert len(world.sets()) == 1
        assert world.said() == ("True", "MachineSetUpdated")
