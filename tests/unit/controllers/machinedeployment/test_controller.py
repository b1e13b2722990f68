"""Deployments with all controllers at work: what a user asks for happens, within the bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ccm.kube.errors import Forbidden
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    MACHINES,
    SETS,
    WEB,
    Rolling,
    all_run,
    owned_by_deployment,
    rolling,
    template,
)

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")


async def test_a_roll() -> None:
    world = Rolling()
    world.deployment(replicas=5, strategy=rolling(2, 1))
    async with world.at_work():
        await advance(60)
        assert (world.working(), world.said()) == (5, ("True", "NewMachineSetAvailable"))
        world.watch_bounds()
        world.edit(template=template("large"))
        await advance(300)

    assert (world.kinds(), world.sizes()) == ({"large": 5}, {"large": 5})
    assert world.said() == ("True", "NewMachineSetAvailable")
    assert world.peak <= 7
    assert world.least >= 4


def meddle(world: Rolling, method: str, path: str, action: Callable[[], None]) -> list[str]:
    """Somebody is faster, once: before such a request, which is noted, is carried out."""
    seen: list[str] = []

    def asked(told: str, where: str) -> None:
        if (told, where) == (method, path) and not seen:
            seen.append(where)
            action()

    world.server.refuse = asked
    return seen


async def test_a_set_that_has_machines_after_all_stays() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    async with world.running(*ONLY):
        await all_run(world)
        (old,) = (one["metadata"]["name"] for one in world.sets())
        world.edit(template=template("large"))
        for _ in range(3):
            await all_run(world)
    path = f"{SETS}/{old}"

    def busy() -> None:
        world.server.patch(f"{path}/status", {"status": {"replicas": 1}})

    seen = meddle(world, "GET", path, busy)
    world.edit(revisionHistoryLimit=0)
    async with world.running("machinedeployment"):
        await advance(5)
        assert seen == [path]
        assert not any("deletionTimestamp" in one["metadata"] for one in world.sets())
        world.server.patch(f"{path}/status", {"status": {"replicas": 0}})
        await advance(60)
        world.change(path, metadata={"finalizers": None})

    assert world.server.get(path) is None


async def test_sets_stay_where_the_deployment_was_made_anew() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    async with world.running(*ONLY):
        await all_run(world)
        first = world.sets()[0]["metadata"]["name"]

        def made_anew() -> None:
            world.change(WEB, metadata={"finalizers": None})
            world.deployment(replicas=1)

        seen = meddle(world, "GET", WEB, made_anew)
        world.server.drop(WEB)
        await advance(5)

    assert seen == [WEB]
    metadata = {one["metadata"]["name"]: one["metadata"] for one in world.sets()}
    assert "deletionTimestamp" not in metadata[first]


async def test_conditions_of_others_stay() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    frozen = {"type": "Frozen", "status": "True", "reason": "OverShootingReplicaCount"}
    world.server.patch(f"{WEB}/status", {"status": {"conditions": [frozen]}})
    async with world.running(*ONLY):
        await all_run(world)

    found = {one["type"]: one for one in world.status()["conditions"]}
    assert frozen.items() <= found["Frozen"].items()
    assert set(found) == {"Frozen", "Available", "Progressing"}


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


async def test_a_size_that_somebody_chose_meanwhile_counts() -> None:
    world = Rolling()
    world.deployment(replicas=2)
    async with world.running(*ONLY):
        await all_run(world)
        (name,) = (one["metadata"]["name"] for one in world.sets())
        path = f"{SETS}/{name}"
        seen = meddle(world, "PATCH", path, lambda: world.change(path, spec={"replicas": 7}))
        world.edit(replicas=3)
        await advance(5)

    assert (seen, world.sizes()) == ([path], {"small": 3})
    told = [text for reason, text in world.events if reason == "ScalingMachineSet"]
    assert told[-1] == f"Scaled down machine set {name} to 3"


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


async def test_a_machine_that_cannot_be_read_counts_as_nobody_knows_what() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    async with world.running(*ONLY):
        await all_run(world)
        assert world.shared is not None
        unreadable = world.shared.caches.machines._reflector.undecodable
        unreadable.add("default/odd")
        world.edit(template=template("large"))
        await advance(5)
        assert world.sizes() == {"small": 1}
        unreadable.clear()
        await advance(120)

    assert world.sizes() == {"small": 1, "large": 1}


async def test_a_deployment_that_goes_keeps_its_sets_from_being_forgotten() -> None:
    world = Rolling()
    world.deployment(replicas=1)
    async with world.running(*ONLY):
        await all_run(world)
        for name in world.here():
            world.change(f"{MACHINES}/{name}", metadata={"finalizers": ["example.com/slow"]})
        world.server.drop(WEB)
        await advance(5)
        assert (len(world.machines()), len(world.sets()), bool(world.web())) == (1, 1, True)
        for one in world.machines():
            path = f"{MACHINES}/{one['metadata']['name']}"
            world.change(path, metadata={"finalizers": None})
        await advance(30)

    assert (world.machines(), world.sets(), world.web()) == ([], [], {})


async def test_a_set_without_owner_is_adopted_and_one_that_does_not_match_released() -> None:
    world = Rolling()
    labels = {"labels": {"name": "web"}}
    world.set("orphan", metadata=labels, template=template("small"))
    uid = world.deployment(replicas=1)
    world.set(
        "stray",
        metadata={**owned_by_deployment(uid), "labels": {"name": "other"}},
        selector={"matchLabels": {"name": "other"}},
        template=template("small") | {"metadata": {"labels": {"name": "other"}}},
    )
    async with world.running("machinedeployment"):
        await advance(5)

    owners = {
        one["metadata"]["name"]: [
            each["uid"] for each in one["metadata"].get("ownerReferences", ())
        ]
        for one in world.sets()
    }
    assert owners == {"orphan": [uid], "stray": []}
