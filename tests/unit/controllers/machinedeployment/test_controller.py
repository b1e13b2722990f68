"""MachineDeployments with concurrent writers, lagging caches and all controllers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest

from ccm.controllers.machinedeployment.controller import ARRIVAL_S, GATHER_S
from ccm.gardener import names
from ccm.gardener.decoding import NAMES
from ccm.kube.errors import Forbidden
from ccm.testing.apiserver.requests import parse
from ccm.testing.clock import advance
from tests.conformance.machine.test_inplace import IN_PLACE
from tests.unit.controllers.machinedeployments import (
    HOLD,
    MACHINES,
    NODES,
    SETS,
    WEB,
    Rolling,
    all_run,
    owned_by_deployment,
    rolling,
    template,
)
from tests.unit.controllers.machines import TOKENS
from tests.unit.controllers.machineset.test_controller import Lagging

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")


def meddle(world: Rolling, method: str, path: str, action: Callable[[], None]) -> list[str]:
    """Run `action` once before the first such request; return the paths that matched."""
    seen: list[str] = []

    def asked(told: str, where: str) -> None:
        if (told, where) == (method, path) and not seen:
            seen.append(where)
            action()

    world.server.refuse = asked
    return seen


async def test_condition_written_concurrently_by_another_client_is_kept(world: Rolling) -> None:
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
async def test_failed_machine_set_creation_sets_a_condition_and_is_retried(world: Rolling) -> None:
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
        world.server.answers()
        await advance(61)
        assert len(world.sets()) == 1
        assert world.said() == ("True", "MachineSetUpdated")


async def test_history_cleanup_keeps_a_machine_set_that_has_machines(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        (old,) = (one["metadata"]["name"] for one in world.sets())
        world.edit(template=template("large"))
        for _ in range(3):
            await all_run(world)
    path = f"{SETS}/{old}"
    busy = {"status": {"replicas": 1}}
    seen = meddle(world, "GET", path, lambda: world.change(f"{path}/status", **busy))
    world.edit(revisionHistoryLimit=0)
    async with world.running("machinedeployment"):
        await advance(5)
        assert seen == [path]
        assert not any("deletionTimestamp" in one["metadata"] for one in world.sets())
        world.change(f"{path}/status", status={"replicas": 0})
        await advance(60)
        world.change(path, metadata={"finalizers": None})

    assert world.server.get(path) is None


async def test_machine_sets_are_kept_when_the_deployment_was_recreated(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        first = world.sets()[0]["metadata"]["name"]

        def made_anew() -> None:
            world.change(WEB, metadata={"finalizers": None})
            world.deployment(replicas=1)

        seen = meddle(world, "GET", WEB, made_anew)
        world.server.drop(WEB)
        await advance(5)

    assert seen == [WEB]
    assert "deletionTimestamp" not in world.set_object(first)["metadata"]


async def test_machine_set_with_the_most_replicas_is_deleted_first(world: Rolling) -> None:
    uid = world.deployment(metadata={"finalizers": [NAMES.owner_finalizer]})
    for name, replicas in (("a", 0), ("b", 1), ("c", 2)):
        world.set(name, replicas=replicas, metadata=owned_by_deployment(uid))
    world.server.drop(WEB)
    await world.run(5, "machinedeployment")

    deleted = [path for method, path in world.server.requests if method == "DELETE"]
    assert deleted == [f"{SETS}/{name}" for name in "cba"]


async def test_rollout_waits_while_a_machine_is_malformed(world: Rolling) -> None:
    async with world.at_rest(replicas=1):
        unreadable = world.caches.machines._reflector.malformed_keys
        unreadable.add("default/odd")
        world.edit(template=template("large"))
        await advance(5)
        assert world.sizes() == {"small": 1}
        unreadable.clear()
        await advance(120)

    assert world.sizes() == {"small": 1, "large": 1}


async def test_orphan_machine_set_is_adopted_and_mismatched_one_released(
    world: Rolling,
) -> None:
    world.set("orphan", metadata={"labels": {"name": "web"}}, template=template("small"))
    uid, other = world.deployment(replicas=1), {"labels": {"name": "other"}}
    world.set(
        "stray",
        metadata={**owned_by_deployment(uid), **other},
        selector={"matchLabels": other["labels"]},
        template=template("small") | {"metadata": other},
    )
    await world.run(5, "machinedeployment")

    owners = {
        one["metadata"]["name"]: one["metadata"].get("ownerReferences") for one in world.sets()
    }
    assert [one["uid"] for one in owners["orphan"]] == [uid]
    assert not owners["stray"]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_deployment_deleted_in_a_rollout_stops_disabling_scale_down(
    world: Rolling, is_replaced: bool
) -> None:
    """The same holds if the watch shows the deletion only as another UID."""
    async with world.at_rest(replicas=1):
        world.edit(template=template("large"))
        await advance(1)
        shared = world.shared
        assert shared is not None
        sets = [one["metadata"]["uid"] for one in world.sets()]
        assert [shared.caches.initial_metadata.annotations_for(one) for one in sets] == [HELD, HELD]
        if is_replaced:
            web, target = world.web(), parse(world.server.store.kinds, WEB)
            assert target is not None
            web["metadata"]["uid"] = "another"
            world.server.store.put(target.kind, target.key, web)
        else:
            world.server.unmake(WEB)
        await advance(1)

    assert [shared.caches.initial_metadata.annotations_for(one) for one in sets] == [{}, {}]


def updated(world: Rolling, name: str) -> None:
    """Report a successful update by label and condition of the node."""
    told = [{"type": NAMES.update_condition, "status": "True", "reason": NAMES.update_succeeded}]
    world.server.patch(f"{NODES}/{name}/status", {"status": {"conditions": told}})
    done = {"labels": {NAMES.update_result: NAMES.update_successful}}
    world.server.patch(f"{NODES}/{name}", {"metadata": done})


def chosen(world: Rolling) -> list[str]:
    """Return the names of the nodes that are selected for an update."""
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in world.nodes()}
    return [name for name, one in labels.items() if NAMES.selected in one]


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Rolling, Lagging, str]]:
    """Yield a deployment of two machines in an in-place update, and the selected node."""
    world = Rolling()
    world.server = server = Lagging()
    world.define()
    world.ready_class()
    world.machine_class("large")
    world.secret("large")
    async with world.at_rest(replicas=2, strategy=IN_PLACE):
        for name in world.here():
            world.change(f"{MACHINES}/{name}", metadata={"labels": {"node": name}})
            world.node(name, metadata={"labels": {names.LABEL_MACHINE_NAME: name}})
        world.edit(template=template("large"))
        await advance(5)
        (first,) = chosen(world)
        yield world, server, first


@pytest.mark.row("rollout-event-01")
async def test_in_place_rollout_continues_after_the_machine_cache_lagged() -> None:
    """A moved machine keeps its update label until the sets observe it."""
    async with two() as (world, server, first):
        updated(world, first)
        while NAMES.update_result not in world.get(first)["metadata"]["labels"]:
            await advance(0.05)
        await advance(0.05)
        server.shows.clear()
        await advance(5)
        assert NAMES.update_result not in world.get(first)["metadata"]["labels"]
        assert chosen(world) == []
        server.shows.set()
        await advance(5)

        (second,) = chosen(world)
        assert second != first


async def test_machine_moved_between_sets_is_not_recreated_by_a_stale_cache() -> None:
    """Its old set becomes the new one again before the cache shows the change of owner."""
    async with two() as (world, server, first):
        before = world.here()
        server.shows.clear()
        updated(world, first)
        await advance(5)
        assert world.kinds() == {"small": 1, "large": 1}
        world.edit(template=template("small"))
        await advance(5)
        server.shows.set()
        await advance(5)
        assert world.here() == before


COUNT = 6
ACT = ("machine", "machineset", "machinedeployment")
"""Controllers of machines; without the one of classes, which the tests write themselves."""

HELD = {HOLD: "true", f"{HOLD}-by-mcm": "true"}


def told(world: Rolling, since: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    """Return the number of writes since `since`, by method and kind."""
    found: Counter[tuple[str, str]] = Counter()
    for (method, path), count in world.server.requests.items():
        for of in (MACHINES, NODES, TOKENS):
            if method != "GET" and f"{path}/".startswith(f"{of}/"):
                part = "/status" if path.endswith("/status") else ""
                kind = of.rpartition("/")[2] + part
                found[method, kind] += count - since.get((method, path), 0)
    return +found


async def rolled() -> tuple[Rolling, Mapping[tuple[str, str], int]]:
    """Return a world after a rollout, and the requests before the rollout."""
    world = Rolling()
    world.drains_really = True
    world.boot_s = 3.0
    world.deployment(replicas=COUNT, strategy=rolling(2, 1))
    async with world.at_work(*ACT):
        await advance(30)
        assert world.working() == COUNT
        before = dict(world.server.requests)
        world.edit(template=template("large"))
        await advance(120)
    assert (world.kinds(), world.working()) == ({"large": COUNT}, COUNT)
    return world, before


@pytest.mark.row("rollout-autoscaler-08")
async def test_rollout_writes_are_bounded_and_scale_down_is_enabled_again() -> None:
    world, before = await rolled()

    found = told(world, before)
    assert found.pop(("PATCH", "nodes")) <= 5 * COUNT  # join; hold off; taint; cordon; finalizer
    assert found == {
        ("POST", "machines"): COUNT,
        ("PATCH", "machines"): 2 * COUNT,  # provider ID; finalizer
        ("PATCH", "machines/status"): 3 * COUNT,  # Pending, Running, Terminating
        ("DELETE", "machines"): COUNT,
        ("POST", "secrets"): COUNT,
        ("DELETE", "secrets"): COUNT,
        ("PATCH", "nodes/status"): COUNT,
        ("DELETE", "nodes"): COUNT,
    }
    sets = [one["metadata"]["uid"] for one in world.sets()]
    assert [world.caches.initial_metadata.annotations_for(one) for one in sets] == [{}, {}]
    assert len(world.nodes()) == COUNT
    for one in world.nodes():
        assert not HELD.keys() & (one["metadata"].get("annotations") or {}).keys()


@pytest.mark.row("rollout-autoscaler-08")
async def test_node_joining_in_a_rollout_has_scale_down_disabled_at_once(world: Rolling) -> None:
    world.boot_s = 3.0
    world.deployment(replicas=2, strategy=rolling(1, 0))
    async with world.at_work():
        await advance(30)
        world.edit(template=template("large"))
        old = {one["metadata"]["name"] for one in world.nodes()}
        seen: list[dict[str, str]] = []
        while not seen:
            await advance(0.1)
            fresh = [one for one in world.nodes() if one["metadata"]["name"] not in old]
            # Written by the machine controller: the deployment has not observed the node yet.
            seen = [
                one["metadata"].get("annotations") or {}
                for one in fresh
                if names.FINALIZER_NODE in one["metadata"].get("finalizers", ())
            ]

    assert HELD.items() <= seen[0].items()


@pytest.mark.row("rollout-event-05")
async def test_machines_that_become_ready_together_are_one_rollout_step(world: Rolling) -> None:
    async with world.at_rest(replicas=4, strategy=rolling(2, 0)):
        await all_run(world)
        world.edit(template=template("large"))
        await advance(2)
        world.events.clear()
        fresh = world.of_class("large")
        world.becomes(fresh[0], "Running", state="Successful")
        await advance(0.4)
        assert world.reasons() == []
        world.becomes(fresh[1], "Running", state="Successful")
        await advance(GATHER_S)

    assert world.sizes() == {"small": 2, "large": 4}
    assert next(reason for reason, _ in world.events) == "ScalingMachineSet"


@pytest.mark.row("rollout-autoscaler-08")
async def test_late_scale_down_annotation_is_removed_after_the_rollout(world: Rolling) -> None:
    """The rollout ended between the decision and the write."""
    world.boot_s = 1.0
    world.deployment(replicas=1)
    async with world.at_work():
        await advance(30)
        (name,) = world.here()
        world.change(f"{NODES}/{name}", metadata={"annotations": HELD})
        await advance(5)

    assert not HELD.keys() & (world.node_object(name)["metadata"].get("annotations") or {}).keys()


@pytest.mark.row("machineset-create-06")
@pytest.mark.parametrize(
    ("kind", "which", "claims"),
    [
        ("small", ACT, True),
        ("loose", ACT, False),  # Without a class its machines could not be deleted.
        ("unknown", ACT, False),
        ("small", ACT[1:], False),  # No machine controller here would remove the finalizer.
    ],
    ids=["of-use", "not-held", "unknown", "alone"],
)
async def test_machine_is_created_with_finalizer_only_if_removable_later(
    world: Rolling, kind: str, which: tuple[str, ...], claims: bool
) -> None:
    world.machine_class("loose", metadata={"name": "loose"})
    world.secret("loose")
    bodies: list[Any] = []
    original = world.server.answer

    def answer(method: str, path: str, body: bytes = b"", *rest: Any) -> bytes:
        if (method, path) == ("POST", MACHINES):
            bodies.append(msgspec.json.decode(body)["metadata"])
        return original(method, path, body, *rest)

    world.server.answer = answer  # type: ignore[assignment, method-assign]
    world.deployment(replicas=1, template=template(kind))
    await world.run(1, *which)

    (found,) = bodies
    assert found.get("finalizers", []) == ([names.FINALIZER] if claims else [])
    claim = {names.ANNOTATION_PRIORITY, names.ANNOTATION_TOKEN_ID, names.ANNOTATION_CREATION}
    notes = claim if claims else set()
    assert found["annotations"].keys() == notes


async def test_machine_that_boots_for_long_delays_a_roll_only_briefly(world: Rolling) -> None:
    async with world.at_rest(replicas=10, strategy=rolling(surge=2)):
        world.edit(template=template("large"))
        await advance(5)
        first, last = world.of_class("large")
        world.becomes(last, "Pending", state="Successful")
        world.becomes(first, "Running", state="Successful")

        await advance(ARRIVAL_S / 2)
        assert world.sizes() == {"small": 10, "large": 2}
        await advance(ARRIVAL_S)

        assert world.sizes() == {"small": 9, "large": 3}
